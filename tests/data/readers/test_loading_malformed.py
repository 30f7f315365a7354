"""Caption files that are damaged: each error names the file, the image and what is wrong with it."""

from __future__ import annotations

import io
import json
import logging
import tarfile

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.coco import read_instances
from hf_curriculum.data.readers.img2dataset import load_img2dataset
from hf_curriculum.data.readers.url_lists import load_url_list

DEEP = "[" * 100_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def karpathy(folder, *images):
    file = folder / "dataset.json"
    file.write_text(json.dumps({"images": images}))
    return file


def one(number=0, split="train", **fields):
    return {"filename": f"{number}.jpg", "split": split, "sentences": [{"raw": "a dog"}]} | fields


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (one(1, sentences=[{"sentid": 3}]), "Image 1 .*'1.jpg'.*neither `raw` nor `tokens`"),
        (one(1, sentences=[{"raw": None}]), "Image 1 .*neither `raw` nor `tokens`"),
        (one(1, sentences=[{"raw": 5}]), "Image 1 .*neither `raw` nor `tokens`"),
        (one(1, sentences=[{"tokens": "a dog"}]), "Image 1 .*neither `raw` nor `tokens`"),
        (one(1, sentences=["a dog"]), "Image 1 .*neither `raw` nor `tokens`"),
        (one(1, sentences="a dog"), "Image 1 .*`sentences` .*no list"),
        (one(1, split=None), "Image 1 .*`split`.* None"),
        (one(1, filename=7), "Image 1 .*`filename`.* 7"),
        (7, "Image 1 .* is 7, no object"),
        (one(0, "test"), "image '0.jpg' .*'test'.* 'train'"),
        ({**one(1, "test", cocoid=9), "filename": "x.jpg"}, "image '9' .*'test'.* 'train'"),
    ],
)
def test_an_image_of_a_karpathy_file(tmp_path, image, match):
    first = one(cocoid=9) if isinstance(image, dict) and "cocoid" in image else one()
    for images in ((first, image), (first, image, one(2))):
        with pytest.raises(ValueError, match=rf"dataset\.json: .*{match}"):
            load_captioned(karpathy(tmp_path, *images), images=False)


def test_a_karpathy_file_whose_first_image_is_damaged_is_recognised(tmp_path):
    with pytest.raises(ValueError, match=r"dataset\.json: Image 0 .* is 7, no object"):
        load_captioned(karpathy(tmp_path, 7, one(1)), images=False)
    with pytest.raises(ValueError, match=r"dataset\.json: .*none of its 1 images has a sentence"):
        load_captioned(karpathy(tmp_path, one(sentences=[])), images=False)
    assert load_captioned(karpathy(tmp_path, one(sentences=[]), one(1)), images=False)["train"]["caption"][:] == [
        "a dog"
    ]


def test_tokens_stand_in_for_a_sentence_that_is_null(tmp_path):
    file = karpathy(tmp_path, one(sentences=[{"raw": None, "tokens": ["a", "dog"]}]))
    assert load_captioned(file, images=False)["train"]["caption"][:] == ["a dog"]


@pytest.mark.parametrize("name", ["captions_val.json", "dataset.json", "list.json", "metadata.jsonl"])
def test_json_nested_too_deeply(tmp_path, name):
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        load_captioned(tmp_path / name, images=False)


def test_objects_nested_too_deeply(tmp_path):
    (tmp_path / "instances.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"instances\.json cannot be read as objects .*nested too deeply"):
        read_instances(tmp_path / "instances.json", LeftOut())


def test_narratives_nested_too_deeply(tmp_path):
    (tmp_path / "images").mkdir()
    good = json.dumps({"image_id": "a", "caption": "a dog", "annotator_id": 1})
    (tmp_path / "x.jsonl").write_text(f"{good}\n{DEEP}\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*x\.jsonl is no narrative .*nested too deeply"):
        load_url_list(tmp_path / "x.jsonl", tmp_path / "images")


def png():
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "PNG")
    return content.getvalue()


def shard(folder, *members):
    (folder / "00000_stats.json").write_text(json.dumps({"count": 1, "successes": 1, "status_dict": {}}))
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            member.size = len(content or b"")
            tar.addfile(member, io.BytesIO(content or b""))
    return folder


def test_members_of_a_tar_that_lead_outside_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    names = ["1.png", "../../evil.png", "/elsewhere/evil.png"]
    members = [(name, png()) for name in names] + [("3.png", None), ("4.png", png()), ("4.txt", None)]
    assert load_img2dataset(shard(tmp_path, *members))["key"][:] == ["1", "4"]
    assert "links and devices in the archive (not followed): 2 ('3.png', for example)" in caplog.text
    assert "names lead outside of the archive: 2 ('../../evil.png', for example)" in caplog.text


@pytest.mark.parametrize("record", [b"{", b"[]", DEEP.encode(), b"\xff"])
def test_a_record_of_a_shard_that_is_damaged(tmp_path, record):
    with pytest.raises(ValueError, match=r"00000\.tar.*record of sample '1'"):
        load_img2dataset(shard(tmp_path, ("1.png", png()), ("1.json", record)))
