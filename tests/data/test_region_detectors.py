"""What of an image a model's states show, by hand; and where a detector is put."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hf_curriculum.data.regions import processor as module
from hf_curriculum.data.regions.detectors import _seen, feature_map


def tower(states, **config):
    outputs = SimpleNamespace(last_hidden_state=states)
    made = lambda pixel_values: outputs  # noqa: E731
    made.config = SimpleNamespace(**config)
    return made


@pytest.mark.parametrize(
    ("times", "extra"), [(1, 16), *((times, extra) for times in (1, 2, 4, 8, 16, 32) for extra in (0, 1))]
)
@pytest.mark.parametrize("patch", [{"patch_size": 2}, {"patch_size": (2, 7)}, {}])
def test_states_of_every_stage(patch, times, extra):
    size = 2 if patch else 1
    rows, columns = 64 // times, 32 // times
    states = torch.arange(extra + rows * columns).view(1, -1, 1).float()
    pixels = {"pixel_values": torch.zeros(1, 3, 64 * size, 32 * size)}
    found = feature_map(tower(states, **patch), pixels)
    assert torch.equal(found, states[0, extra:, 0].view(1, 1, rows, columns))


@pytest.mark.parametrize(("states", "side"), [(5, 8), (4 + 17, 32)])
def test_states_that_fit_no_stage(states, side):
    with pytest.raises(ValueError, match=f"has {states} states for an image of {side} by {side} pixels"):
        feature_map(tower(torch.zeros(1, states, 2), patch_size=16), {"pixel_values": torch.zeros(1, 3, side, side)})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0, 0, 1, 1)),
        ({"do_center_crop": False, "crop_size": {"height": 10, "width": 10}}, (0, 0, 1, 1)),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 10}}, (0, 0, 1, 1)),
        ({"do_center_crop": True, "crop_size": {"height": 10, "width": 20}}, (0.375, 0.375, 0.625, 0.625)),
        (
            {"do_center_crop": True, "crop_size": {"height": 10, "width": 10}, "do_resize": True,
             "size": {"shortest_edge": 20}},
            (0.375, 0.25, 0.625, 0.75),
        ),
        (
            {"do_center_crop": True, "crop_size": {"height": 10, "width": 10}, "do_resize": True,
             "size": {"height": 40, "width": 20}},
            (0.25, 0.375, 0.75, 0.625),
        ),
        (
            {"do_center_crop": True, "crop_size": {"height": 10, "width": 10}, "do_resize": False,
             "size": {"shortest_edge": 20}},
            (0.4375, 0.375, 0.5625, 0.625),
        ),
    ],
)  # fmt: skip
def test_which_part_of_an_image_is_seen(options, expected):
    assert _seen(SimpleNamespace(**options), (80, 40)) == expected


@pytest.mark.parametrize(("rank", "worker", "expected"), [("5", None, [2]), (None, None, [1]), ("5", "one", [])])
def test_a_detector_goes_to_the_accelerator_of_its_process(monkeypatch, rank, worker, expected):
    moved = []
    loaded = SimpleNamespace(kind="grid", model=SimpleNamespace(to=moved.append))
    monkeypatch.setattr(module, "load_detector", lambda *_: loaded)
    for name, value in {
        "is_available": True, "current_accelerator": SimpleNamespace(type="cuda"), "device_count": 3,
        "current_device_index": 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.accelerator, name, lambda value=value: value)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: worker)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    module.RegionProcessor("name", batch_size=1).load()
    assert moved == [torch.device("cuda", index) for index in expected]
