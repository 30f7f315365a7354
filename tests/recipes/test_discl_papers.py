"""The paper's two presets from end to end, on tiny folders of ImageNet-LT's and iWildCam's own forms."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from discl.arguments import PRESETS
from PIL import Image
from spectrum_data import tiny_pipeline

RECIPE = PRESETS.parents[1] / "discl_longtail.py"
COLOURS = {"red": (200, 60, 60), "green": (60, 180, 60), "blue": (60, 60, 200)}


def photograph(path, label, seed):
    """A noisy image of its class's colour, in a file."""
    noise = np.random.default_rng(seed).integers(-40, 40, (24, 32, 3))
    pixels = (np.array(list(COLOURS.values())[label]) + noise).clip(0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def pipeline(tmp_path):
    pytest.importorskip("diffusers")
    tiny_pipeline().save_pretrained(tmp_path / "pipeline")
    return tmp_path / "pipeline"


def options(folder, pipeline, preset):
    """Of both: a pipeline and a CLIP that are here, and sizes at which an image takes milliseconds."""
    return [
        *("--preset", preset, "--grid", preset, "--output_dir", folder / "out", "--pipeline", pipeline),
        *(
            "--pipeline_dtype",
            "float32",
            "--generation_steps",
            10,
            "--resize",
            16,
            "--scorer",
            "{clip_similarity: {}}",
        ),
        *("--at_least", -1, "--validation_images", 2, "--dataloader_num_workers", 0, "--bf16", "false"),
    ]


def results(folder):
    """Arm → its run; and the report's page."""
    runs = json.loads((folder / "out" / "results.json").read_text())
    return {run["name"]: run for run in runs}, (folder / "out" / "report" / "report.html").read_text()


@pytest.mark.slow
def test_imagenet_lt(launch, tmp_path, pipeline):
    """Two lists, synsets with names, classes of 104, 24 and 4 images: the last is hard by its size."""
    for split, counts in (("train", (104, 24, 4)), ("test", (4, 4, 4))):
        lines = [f"{split}/n0{label}/{row}.JPEG {label}" for label, count in enumerate(counts) for row in range(count)]
        (tmp_path / f"ImageNet_LT_{split}.txt").write_text("\n".join(lines) + "\n")
        for row, line in enumerate(lines):
            photograph(tmp_path / "ILSVRC2012" / line.split()[0], int(line.split()[1]), row)
    (tmp_path / "names.txt").write_text("\n".join(COLOURS))
    data = ["--data", tmp_path / "ImageNet_LT_train.txt", "--test", tmp_path / "ImageNet_LT_test.txt"]
    data += ["--images", tmp_path / "ILSVRC2012", "--classes", tmp_path / "names.txt", "--image_size", 16]
    arms = ["--arms", "BS, DisCL", "--mining_epochs", 1]
    launch(RECIPE, *options(tmp_path, pipeline, "imagenet_lt"), *data, *arms)
    runs, page = results(tmp_path)
    assert list(runs) == ["BS, DisCL"]
    *levels, last = runs["BS, DisCL"]["plan"]["stages"]
    assert [(stage["name"], stage["epochs"]) for stage in levels] == [
        (f"level {level}", 15) for level in ("0.1", "0.3", "0.5", "1")
    ]
    assert (last["name"], round(last["epochs"] - 5)) == ("real images", 1)  # five, and the rest of a batch of 128
    # 0.3 of 128 images that are not hard, and so many of the tail that they are 0.136 of an epoch, both rounded down.
    assert [one["draws"] for one in runs["BS, DisCL"]["shown"][:4]] == 4 * [15 * (38 + 5)]
    assert runs["BS, DisCL"]["parameters"] == 4_907_331  # ResNet-10 with three classes
    assert {"accuracy_many", "accuracy_medium", "accuracy_few"} <= runs["BS, DisCL"].keys()
    table = (tmp_path / "out" / "study.md").read_text()
    assert "21.36" in table
    assert "From prompt to photograph" in page


@pytest.mark.slow
def test_iwildcam(launch, tmp_path, pipeline):
    """`metadata.csv` and `categories.csv`, images of all splits in one folder, a CLIP fine-tuned by its own loss."""
    rows, number = [], 0
    for split, counts in (("train", (24, 21, 6)), ("val", (1, 1, 1)), ("test", (3, 3, 3)), ("id_test", (2, 2, 2))):
        for label, count in enumerate(counts):
            for _ in range(count):
                name = f"{number:08}.jpg"
                rows.append({"split": split, "filename": name, "y": label, "location_remapped": number % 5})
                photograph(tmp_path / "iwildcam" / "train" / name, label, number)
                number += 1
    categories = [{"y": label, "category_id": label, "name": name} for label, name in enumerate(COLOURS)]
    for file, table in (("metadata.csv", rows), ("categories.csv", categories)):
        with (tmp_path / "iwildcam" / file).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    clip = PRESETS.parents[2] / "hf_curriculum" / "models" / "scenes_clip"
    rule = "{type: adaptive_guidance, epochs: 3, curriculum_epochs: 2, probe_examples: 32, aggregate: trimmed}"
    changed = ["--data", tmp_path / "iwildcam", "--classifier", clip, "--model", clip, "--curriculum", rule]
    changed += ["--global_batch_size", 32, "--arms", "FLYP", "FLYP, DisCL", "--generation_seeds", 10]
    launch(RECIPE, *options(tmp_path, pipeline, "iwildcam"), *changed)
    runs, page = results(tmp_path)
    assert list(runs) == ["FLYP", "FLYP, DisCL"]
    decisions = runs["FLYP, DisCL"]["decisions"]
    taken = [entry for entry in decisions if entry["decision"] == "level"]
    assert [list(entry["progress"]) for entry in taken] == 2 * [["0.1", "0.3", "0.5", "0.7", "0.8", "0.9", "1"]]
    assert {"macro_f1", "id_test_macro_f1"} <= runs["FLYP"].keys()
    assert "Progress per level: FLYP, DisCL" in page
    table = (tmp_path / "out" / "study.md").read_text()
    assert "38.2" in table
    assert "54.3" in table
