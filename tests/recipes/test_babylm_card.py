"""What BabyLM's recipes tell the card of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from babylm.evaluation import card_facts

RECALL = {"recall": 0.3, "shuffled": 0.1, "difference": 0.2, "lower": 0.15, "upper": 0.25, "n": 40}
TEXT = {"examples": 640, "steps": 10, "seconds": 2.5, "eval_loss": 1.5, "log": []}


def told(outcome=(), **settings):
    given = {
        "data": "scenes",
        "scene_size": 96,
        "captions_per_image": 2,
        "vision_weights": None,
        "freeze_vision": False,
    }
    args = SimpleNamespace(**{**given, **settings})
    return card_facts(args, args, {"recall": RECALL, **dict(outcome)})


def test_results_and_data():
    facts = told()
    assert facts["description"] == "embedded scenes of 96 × 96 pixels, 2 captions each, drawn by hf_curriculum"
    assert [one["value"] for one in facts["results"]] == [0.3, 0.1, 0.2, 0.15, 0.25]
    assert {one["source"] for one in facts["results"]} == {"40 held-out images"}
    assert facts["before"] == []
    assert told(data="me/photos")["description"] == "image-caption pairs"


@pytest.mark.parametrize(("frozen", "ending"), [(True, ", frozen"), (False, "")])
def test_stages_before_the_captions(tmp_path, frozen, ending):
    facts = told({"text": TEXT, "words": {"text": 1000}}, vision_weights="them/dino", freeze_vision=frozen)
    tower, text = facts["before"]
    assert tower == {"stage": f"vision tower: them/dino{ending}"}
    assert text == {
        "stage": "text alone, in random order", "words": 1000, "examples": 640, "steps": 10, "seconds": 2.5,
        "eval_loss": 1.5,
    }  # fmt: skip
    (tower,) = told(vision_weights=str(tmp_path), freeze_vision=frozen)["before"]
    assert tower == {"stage": f"vision tower: a local checkpoint{ending}"}
