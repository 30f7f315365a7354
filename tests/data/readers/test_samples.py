"""Which files of an archive are a sample: by hand, and as the `webdataset` library groups them."""

from __future__ import annotations

import io
import tarfile

import pytest

from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.samples import IMAGES, TEXTS, Sample, group_samples


def grouped(names):
    left_out = LeftOut()
    samples = [
        (sample.key, {ending: names[number] for ending, number in sample.files.items()})
        for sample in group_samples(names, left_out)
    ]
    return samples, dict(left_out.counts)


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        ("1.jpg 1.txt 2.jpg 2.txt", "1:.jpg.txt 2:.jpg.txt"),
        ("d.v1/1.JPG d.v1/1.Txt ./2.png ./2.json", "d.v1/1:.jpg.txt ./2:.png.json"),
        ("a/1.jpg b/1.jpg a/1.txt b/1.txt", "a/1:.jpg.txt b/1:.jpg.txt"),
        ("1.jpg 2.jpg 1.txt 2.txt", "1:.jpg.txt 2:.jpg.txt"),  # webdataset makes four of them
        ("1.jpg 1.txt 2.jpg 1.jpg 1.txt", "1:.jpg.txt 2:.jpg 1:.jpg.txt"),
        ("v1.0_a.jpg v1.0_a.txt v1.0_b.jpg v1.0_b.txt", "v1.0_a:.jpg.txt v1.0_b:.jpg.txt"),
        ("v1.jpg v1.txt v1.0.jpg v1.0.txt", "v1:.jpg.txt v1.0:.jpg.txt"),
        ("2023.01.05.jpg 2023.01.05.json 2023.01.06.jpg", "2023.01.05:.jpg.json 2023.01.06:.jpg"),
        ("cat.1.jpg cat.1.txt cat.2.jpg dog.2.jpg", "cat.1:.jpg.txt cat.2:.jpg dog.2:.jpg"),
        ("v1.0_a.jpg v1.0_a.cls v1.0_b.jpg v1.0_b.cls", "v1.0_a:.jpg.cls v1.0_b:.jpg.cls"),
        ("a.0.jpg a.0.json b.0.jpg b.0.json", "a.0:.jpg.json b.0:.jpg.json"),
        ("v1.a.jpg v1.b.jpg", "v1.a:.jpg v1.b:.jpg"),
        ("v1.a.jpg v1.b.txt", "v1.a:.jpg v1.b:.txt"),
        ("1.jpg 1.txt 1.seg.png 1.seg.json", "1:.jpg.txt.seg.png.seg.json"),
        ("v1.a.jpg v1.a.txt v1.a.seg.png", "v1.a:.jpg.txt.seg.png"),
        ("1.left.jpg 1.right.jpg 1.txt", "1:.left.jpg.right.jpg.txt"),
        ("1.a.jpg 1.b.jpg 2.a.jpg 2.b.jpg", "1.a:.jpg 1.b:.jpg 2.a:.jpg 2.b:.jpg"),
        ("1.a.npy 1.b.npy 2.a.npy 2.b.npy", "1:.a.npy.b.npy 2:.a.npy.b.npy"),
        ("1.image.jpg 1.text.txt 2.image.jpg 2.text.txt", "1:.image.jpg.text.txt 2:.image.jpg.text.txt"),
        ("1.jpg 1.jpg.txt", "1:.jpg.jpg.txt"),
        ("1.jpg ._1.jpg .DS_Store .git/2.jpg __MACOSX/._1.jpg __meta__/x.json PaxHeaders.7/1.jpg 1.txt", "1:.jpg.txt"),
    ],
)
def test_the_files_of_a_sample(names, samples):
    assert " ".join(f"{key}:{''.join(files)}" for key, files in grouped(names.split())[0]) == samples
    assert grouped(names.split())[1] == {}


@pytest.mark.parametrize(
    ("names", "samples", "count"),
    [
        ("1.png 1.txt 1.txt 1.png 2.png 2.txt", "1:.png.txt 1:.txt.png 2:.png.txt", 0),
        ("1.png 1.png 1.txt 1.txt 2.png 2.txt", "2:.png.txt", 3),  # sorted by name
        ("1.png 1.png 1.txt 2.png 2.txt", "2:.png.txt", 2),
        ("1.txt 1.png 2.png 2.txt 1.txt", "2:.png.txt", 2),
        ("1.png 1.txt 1.png 1.png 1.txt 1.txt", "", 4),
    ],
)
def test_a_key_that_stands_more_than_once(names, samples, count):
    found, left_out = grouped(names.split())
    assert " ".join(f"{key}:{''.join(files)}" for key, files in found) == samples
    reason = "samples of a key that stands more than once (which files belong together is not known)"
    assert left_out == ({reason: count} if count else {})


def test_files_that_belong_to_no_sample_are_counted():
    samples, left_out = grouped(["README", "1.jpg", "../2.jpg", "/3.jpg", "4.", "a/../5.jpg", "1.b"])
    assert samples == [("1", {".jpg": "1.jpg", ".b": "1.b"})]
    assert left_out == {"files without an ending": 2, "files whose names lead outside of the archive": 3}


USUAL = [
    *("000.jpg 000.txt 000.json", "001.png 001.txt", "train.v1/002.jpg train.v1/002.txt", "./003.jpeg ./003.TXT"),
    *(
        "a/b/004.webp a/b/004.cls",
        "005.jpg 005.seg.png 005.txt",
        "._005.jpg",
        "é.jpg é.txt",
        "007.npy",
        "008.input.jpg",
    ),
]


def test_names_without_odd_dots_are_grouped_as_webdataset_does(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    names = [name for sample in USUAL for name in sample.split()]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name.encode())
            archive.addfile(member, io.BytesIO(name.encode()))
    theirs = [
        (sample["__key__"], {f".{end}": content.decode() for end, content in sample.items() if end[0] != "_"})
        for sample in webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    ]
    assert grouped(names)[0] == theirs
    assert len(theirs) == 9


@pytest.mark.parametrize(
    ("endings", "images", "texts"),
    [
        (".png .jpg .txt", ".jpg", ".txt"),  # the usual one first
        (".seg.png .png .ocr.txt", ".png", ".ocr.txt"),
        (".left.jpg .cls .right.JPG .text .caption", ".left.jpg .right.JPG", ".caption"),
        (".cls .json", "", ""),
    ],
)
def test_the_files_that_may_be_the_image_or_the_text_of_a_sample(endings, images, texts):
    sample = Sample("0", {ending: number for number, ending in enumerate(endings.split())})
    assert (sample.candidates(IMAGES), sample.candidates(TEXTS)) == (images.split(), texts.split())
