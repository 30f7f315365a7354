"""The last value of each option that is possible, and the first that is not."""

from __future__ import annotations

import pytest

from hf_curriculum import (
    BabySteps,
    ByImage,
    ByLength,
    Filter,
    Growing,
    InfoBatch,
    NodeSampling,
    OnlineSelection,
    Phases,
    SelfPaced,
    Weighted,
)
from hf_curriculum.tasks.captioning.schedules import ScheduledSampling, StepDecay
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

SHARES = {"rest_share": 0.5, "hard_share": 0.5}
EDGES = {
    BabySteps: [
        *(("num_buckets", 2, 1), ("patience", 1, 0), ("min_delta", 0.0, -0.1), ("min_epochs", 0.0, -0.1)),
        *(("epochs", 0.1, 0.0), ("examples", 1, 0)),
    ],
    Filter: [("keep", 1.0, 1.01), ("keep", 0.01, 0.0)],
    Growing: [
        *(("initial", 1.0, 1.01), ("initial", 0.01, 0.0), ("full_at", 1.0, 1.01), ("full_at", 0.01, 0.0)),
        *(("power", 0.01, 0.0), ("increase", 1.01, 1.0), ("every", 1.0, 1.01), ("every", 0.01, 0.0)),
    ],
    GuidanceSchedule: [("curriculum_epochs", 1, 0), ("curriculum_epochs", 10, 11), ("epochs", 8, 7)],
    AdaptiveGuidance: [("probe_examples", 1, 0), ("curriculum_epochs", 1, 0), ("curriculum_epochs", 10, 11)],
    NodeSampling: [
        *(("check_every", 1, 0), ("min_examples", 1, 0), ("decay", 0.99, 1.0), ("decay", 0.01, 0.0)),
        *(("floor", 1.0, 1.01), ("floor", 0.01, 0.0)),
    ],
    OnlineSelection: [("candidates", 1, 0), ("score_every", 1, 0), ("temperature", 0.01, 0.0)],
    Phases: [("num_phases", 1, 0), ("epochs_per_phase", 0.01, 0.0)],
    Weighted: [("temperature", 0.01, 0.0), ("cap", 0.01, 0.0)],
    InfoBatch: [("prune", 0.0, -0.01), ("prune", 0.99, 1.0), ("until", 1.0, 1.01), ("until", 0.01, 0.0)],
    SelfPaced: [
        *(("initial", 1.0, 1.01), ("initial", 0.01, 0.0), ("growth", 1.01, 1.0)),
        *(("warmup_epochs", 0.0, -0.1), ("final_epochs", 0.0, -0.1)),
    ],
    ByImage: [("captions_per_image", 1, 0)],
    ByLength: [("window", 2, 1)],
    StepDecay: [("rate", 1.0, 1.01), ("rate", 0.01, 0.0), ("every", 1, 0), ("start", 0, -1)],
    ScheduledSampling: [
        *(("increase", 1.0, 1.01), ("increase", 0.01, 0.0), ("max", 1.0, 1.01), ("max", 0.01, 0.0)),
        *(("every", 1, 0), ("start", 0, -1)),
    ],
}


@pytest.mark.parametrize(
    ("kind", "name", "last", "beyond"), [(kind, *edge) for kind, edges in EDGES.items() for edge in edges]
)
def test_edges_of_what_an_option_may_be(kind, name, last, beyond):
    needed = {"value": "loss"} if kind is OnlineSelection else {}
    assert getattr(kind(**needed, **{name: last}), name) == last
    with pytest.raises(ValueError, match=name):
        kind(**needed, **{name: beyond})


@pytest.mark.parametrize("name", ["rest_share", "hard_share"])
def test_edges_of_shares(name):
    for share in (0.01, 0.99):
        assert getattr(GuidanceSchedule(**{**SHARES, name: share}), name) == share
    with pytest.raises(ValueError, match=rf"GuidanceSchedule\({name}=0\) is not possible; a share is between 0 and 1"):
        GuidanceSchedule(**{**SHARES, name: 0})
    if name == "rest_share":
        assert GuidanceSchedule(**{**SHARES, name: 1}).rest_share == 1
        return
    with pytest.raises(ValueError, match=r"GuidanceSchedule\(hard_share=1\) is not possible"):
        GuidanceSchedule(**{**SHARES, name: 1})
