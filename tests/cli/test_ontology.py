"""`hf-curriculum ontology`: from captions and detections to a file, a review and a page."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import yaml
from PIL import Image
from ten_sentences import SENTENCES, make_pairs
from typer.testing import CliRunner

from hf_curriculum.cli import app
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.tasks.alignment import Ontology


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def one(name):
    """A detection as VinVL writes it."""
    return {"class": name, "rect": [0, 0, 9, 9], "conf": 0.9, "feature": packed(np.ones(8))}


SMALL = ("--min-pairs", 2, "--min-instances", 1)


def result(*words):
    return CliRunner().invoke(app, ["ontology", *map(str, words)])


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Ten captions with images, and what the images show: as a saved column, COCO's instances and VinVL's tables."""
    folder = tmp_path_factory.mktemp("given")
    make_pairs().save_to_disk(folder / "pairs")
    photos = folder / "photos"
    photos.mkdir()
    objects = {image: names for image, _, names in SENTENCES}
    for image in objects:
        Image.new("RGB", (40, 30), (90, 0, 0)).save(photos / f"{image}.png")
    lines = [f'{image}.png,"{caption}"' for image, caption, _ in SENTENCES]
    (photos / "captions.csv").write_text("\n".join(["file_name,caption", *lines]))
    names = sorted({name for found in objects.values() for name in found})
    annotations = [
        {"image_id": at, "category_id": names.index(name) + 1, "bbox": [0, 0, 9, 9]}
        for at, found in enumerate(objects.values())
        for name in found
    ]
    content = {
        "images": [{"id": at, "file_name": f"{image}.png"} for at, image in enumerate(objects)],
        "categories": [{"id": at + 1, "name": name} for at, name in enumerate(names)],
        "annotations": annotations,
    }
    (folder / "instances.json").write_text(json.dumps(content))
    shown = [image for image, found in objects.items() if found]
    for part, own in enumerate((shown[:4], shown[4:])):
        rows = [f"{image}\t" + json.dumps({"objects": [one(name) for name in objects[image]]}) for image in own]
        (folder / f"predictions{part}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "oscar").mkdir()
    features = [
        f"{image}\t"
        + json.dumps({"num_boxes": len(objects[image]), "features": packed(np.ones((len(objects[image]), 8)))})
        for image in shown
    ]
    labels = [f"{image}\t" + json.dumps([one(name) for name in objects[image]]) for image in shown]
    (folder / "oscar" / "features.tsv").write_text("\n".join(features) + "\n")
    (folder / "oscar" / "label.tsv").write_text("\n".join(labels) + "\n")
    rows = [f"{image}\t{len(objects[image])}\t{packed(np.ones((len(objects[image]), 8)))}" for image in shown]
    (folder / "retrieval.tsv").write_text("\n".join(rows) + "\n")
    return folder


def test_from_pairs_to_a_file(given, tmp_path):
    done = result(given / "pairs", *SMALL, "--output", tmp_path / "ontology.json", "--review", tmp_path / "mine.yaml")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        "10 pairs, 9 images; with objects 9 pairs, 8 images\n"
        "4 nouns, 0 corrected by hand; selected 4 nouns → 2 classes, 0 classes too small; 10 triplets\n\n"
        "entity 10 → dog 4 (dog, puppy) · frisbee 4 (man, frisbee)\n\n"
    )
    table = done.stdout.splitlines()[5:]
    assert table[0].split() == ["noun", "class", "pairs", "with", "it", "share", "PMI", "second", "most", "show"]
    assert table[1].split() == ["man", "frisbee", "4", "2", "50", "%", "0.81", "person", "person", "doubtful"]
    assert f"then --corrections {tmp_path / 'mine.yaml'}" in done.stderr
    assert Ontology.load(tmp_path / "ontology.json").nodes["man"] == "frisbee"
    # Corrected by hand, and the page beside it.
    lines = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**lines, "man": "person"}))
    options = ("--corrections", tmp_path / "mine.yaml", "--html", tmp_path / "page", "--images", "none", "--json")
    done = result(given / "pairs", *SMALL, *options)
    assert json.loads(done.stdout)["corrections"] == {"man": "person"}
    assert (tmp_path / "page" / "report.html").is_file()


TABLES = ("predictions0.tsv", "predictions1.tsv")


@pytest.mark.parametrize("objects", [("instances.json",), TABLES, ("oscar",), ("store",), ("oscar_store",)])
def test_objects_from_files(given, tmp_path, objects):
    """COCO's instances, VinVL's tables in several files, Oscar's folder, and stores of both: the same ontology."""
    source = given / ("photos" if objects == ("instances.json",) else "pairs")
    folder = given
    if "store" in objects[0]:
        packed_from = [given / name for name in TABLES] if objects == ("store",) else given / "oscar"
        folder = tmp_path
        pack_regions(packed_from, tmp_path / objects[0], progress=False)
    done = result(source, *SMALL, "--json", *(word for name in objects for word in ("--objects", folder / name)))
    assert done.exit_code == 0, done.output
    made = Ontology.from_dict(json.loads(done.stdout))
    expected = Ontology.induce(make_pairs(), min_pairs=2, min_instances=1)
    assert made.nouns == expected.nouns
    assert (made.sizes, made.counts) == (expected.sizes, expected.counts)
    if objects != ("instances.json",):
        columns = ["noun", "noun_start", "noun_end", "node"]
        rows = [one.triplets(make_pairs()).select_columns(columns)[:] for one in (made, expected)]
        assert rows[0] == rows[1]


def test_regions_without_classes(given):
    """Oscar's tables for retrieval have features alone."""
    done = result(given / "pairs", *SMALL, "--objects", given / "retrieval.tsv")
    assert done.exit_code == 1
    assert "Error: The regions of image 'i1' have no classes" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("{}/pairs", "--objects", "nowhere"), 1, "Error: There are no objects in 'nowhere'"),
        (("{}/pairs",), 1, "Error: None of 7 nouns has 20 pairs with a class (the most is 4)"),
        (("{}/pairs", "--min-pairs", 2), 1, "has 5,000 instances; the largest, 'frisbee', has 4"),
        (("{}/pairs", *SMALL, "--review", "{}/instances.json"), 2, "is there already"),
        (("{}/pairs", "--objects", "{}/instances.json", "--objects", "x"), 2, "COCO's instances were given with"),
        (("{}/pairs", *SMALL, "--tagger", "brill"), 1, "There is no tagger 'brill'"),
        (("{}/pairs", "--min-pairs", 0), 2, "Invalid value for '--min-pairs'"),
    ],
)
def test_what_cannot_work(given, words, status, message):
    done = result(*(str(word).format(given) for word in words))
    assert done.exit_code == status, done.output
    assert message in " ".join(done.output.replace("│", " ").split())


def test_a_split_that_is_not_there(given, tmp_path):
    from datasets import DatasetDict

    DatasetDict(train=make_pairs(), test=make_pairs()).save_to_disk(tmp_path / "splits")
    assert result(tmp_path / "splits", *SMALL).exit_code == 0
    done = result(tmp_path / "splits", *SMALL, "--split", "val")
    assert done.exit_code == 2
    assert "has the splits ['train', 'test'], and not 'val'" in " ".join(done.output.replace("│", " ").split())
