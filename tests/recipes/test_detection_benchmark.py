"""The benchmark of detection runs, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

FOLDER = Path(__file__).parents[2] / "recipes" / "benchmarks"


@pytest.mark.slow
def test_every_part_runs(call_main, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    import detection

    call_main(detection, "--size", "tiny", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["what"].partition(":")[0] for row in rows] == [
        *3 * ["propose"],
        "train",
        "collate",
        "evaluate",
        "memory",
    ]
    assert all(row["ratio"] > 0 for row in rows if row["what"] != "collate: 500 proposals beside decoding")
    assert "evaluate: speed beside pycocotools" in capsys.readouterr().out


def test_labels_and_proposals_of_photographs(call_main, monkeypatch, tmp_path, capsys):
    """COCO's two files for four scenes, of which one has an object with sides of less than 20 pixels."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import coco_photographs

    (tmp_path / "images").mkdir()
    images, captions, boxes = [], [], []
    for number in range(4):
        picture = Image.new("RGB", (96, 96), "white")
        picture.paste("red", (10, 10, 50, 60))
        picture.save(tmp_path / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 96, "height": 96})
        captions.append({"id": number, "image_id": number, "caption": "a man and a dog" if number else "a lady"})
        sizes = [(18, [10, 10, 40, 50])] + ([(1, [70, 70, 8, 8])] if number else [])
        boxes += [
            {"id": len(boxes) + at, "image_id": number, "category_id": kind, "bbox": box, "iscrowd": 0, "area": 9}
            for at, (kind, box) in enumerate(sizes)
        ]
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    objects = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(objects))
    with pytest.raises(SystemExit):
        call_main(coco_photographs, "--folder", tmp_path / "nowhere")
    assert "nowhere/instances.json: give --folder" in capsys.readouterr().err
    call_main(coco_photographs, "--folder", tmp_path, "--limit", 2)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    found = {row[0]: row[1:] for row in rows}
    assert found["COCO's names as they are"] == ["1.000", "0.429"]  # three dogs of seven objects
    assert found["with plurals, and words for people"] == ["0.857", "0.857"]  # the lady is a dog
    assert "share of 7 objects that they cover (IoU 0.5)" in found
    assert float(found["share of the 4 with sides of 20 pixels or more"][0]) == 1
    assert float(found["CPU seconds a photograph, quality, 2 photographs"][0]) >= 0
