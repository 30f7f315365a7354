"""`hf-curriculum features`: from photos and from files to a store, and what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import load_captioned
from hf_curriculum.cli import app
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore


def result(*words):
    return CliRunner().invoke(app, ["features", *map(str, words)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images with a CSV of captions."""
    folder = tmp_path_factory.mktemp("given") / "photos"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (40, 30), (50 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / "captions.csv").write_text("file_name,caption\n" + "".join(f"{n}.png,a dog\n" for n in (0, 0, 1, 2, 3)))
    return folder


@pytest.fixture
def feats(tmp_path):
    """Two folders of features."""
    for name, count in (("a", 3), ("b", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            np.savez(tmp_path / name / f"{number}.npz", feat=np.full((number, 4), 1.0, np.float32))
    return tmp_path


def test_photos_with_captions(photos, tmp_path):
    done = result(photos, tmp_path / "store", "--model", "scenes_clip", "--grid", 2, "--standardise")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("4 images, 16 regions of 128 numbers, 0.0")
    assert f"saved to {tmp_path / 'store'}" in done.stderr
    store = RegionStore(tmp_path / "store")
    assert (set(store), store.facts["made_by"]["grid"]) == (set(load_captioned(photos)["image_id"]), 2)
    # A model that was trained on them finds the same in new photos, by its own detector.
    RegionProcessor.from_store(store).save_pretrained(tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    again = result(photos, tmp_path / "again", "--model", tmp_path / "run", "--json")
    assert json.loads(again.stdout)["fingerprint"] == store.fingerprint
    assert "the detector and its limits are those of" in again.stderr
    found = RegionStore(tmp_path / "again")
    torch.testing.assert_close(found.features("1.png"), store.features("1.png"), atol=1e-2, rtol=0)


def test_a_folder_of_images_alone(photos, tmp_path):
    (tmp_path / "plain").mkdir()
    for file in photos.glob("*.png"):
        (tmp_path / "plain" / file.name).write_bytes(file.read_bytes())
    done = result(tmp_path / "plain", tmp_path / "store", "--model", "scenes_clip", "--grid", 1, "--json")
    facts = json.loads(done.stdout)
    assert (facts["images"], facts["regions"], facts["empty"]) == (5, 5, 0)
    assert facts["bytes"] > 5 * 128 * 2
    assert list(RegionStore(tmp_path / "store")) == [f"{number}.png" for number in range(5)]


def test_files_are_put_together(feats):
    done = result(feats / "a", feats / "one", "--made-by", "BUTD")
    assert done.exit_code == 0, done.output
    assert "2 images have no region" not in done.stderr
    assert "1 images have no region" in done.stderr
    assert RegionStore(feats / "one").facts["made_by"] == "BUTD"
    assert "image '0' is in a and in b" in result(feats / "a", feats / "b", feats / "two").stderr
    assert result(f"coco={feats / 'a'}", f"cc={feats / 'b'}", feats / "two", "--json").exit_code == 0
    assert list(RegionStore(feats / "two")) == ["coco/0", "coco/1", "coco/2", "cc/0", "cc/1"]


def test_mistakes(photos, feats):
    def failed(status, *words):
        done = result(*words)
        assert done.exit_code == status, done.output
        return " ".join(done.stderr.replace("│", " ").split())

    assert "--grid would not count" in failed(2, feats / "a", feats / "x", "--grid", 3)
    assert "--threshold and --max-regions would not" in failed(
        2, feats / "a", feats / "x", "--threshold", 0.5, "--max-regions", 20
    )
    assert "Some sources have a prefix" in failed(2, f"a={feats / 'a'}", feats / "b", feats / "x")
    assert "2 sources were given with a model" in failed(2, photos, photos, feats / "x", "--model", "scenes_clip")
    assert "--made-by were given with a model" in failed(
        2, photos, feats / "x", "--model", "scenes_clip", "--made-by", "me"
    )
    assert "holds no regions: it is no store" in failed(1, photos, feats / "x")  # photos and no --model
    (feats / "none").mkdir()
    empty = failed(1, feats / "none", feats / "x", "--model", "scenes_clip")
    assert f"There is no image in the folder {feats / 'none'}. Regions" in empty
    text = [{"filename": "0.jpg", "split": "train", "imgid": 0, "sentences": [{"raw": "A dog."}]}]
    (feats / "d.json").write_text(json.dumps({"images": text}))
    alone = failed(2, feats / "d.json", feats / "x", "--model", "scenes_clip")
    assert "Invalid value for --images" in alone
    assert "has captions and no images beside it, in which regions could be found" in alone
    assert "There are no regions at" in failed(1, feats / "none.tsv", feats / "x")
    (feats / "features.pt").write_bytes(b"\x80\x04N.")
    assert "features.pt holds pickled Python objects" in failed(1, feats / "features.pt", feats / "x")
    assert "There is no 'me/none' to find regions with" in failed(1, photos, feats / "x", "--model", "me/none")
    assert not (feats / "x").exists()


def test_an_interrupted_command_says_how_to_go_on(feats, monkeypatch):
    def stop(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_curriculum.data.regions.pack.pack_regions", stop)
    done = result(feats / "a", feats / "x")
    assert done.exit_code == 130
    assert "the same command continues" in done.stderr
