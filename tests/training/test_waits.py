"""No training step reads a value of the device: not in forward or backward, of any model, with its real collator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_curriculum import IID, ByImage, OnlineSelection
from hf_curriculum.models.on_host import known, note
from hf_curriculum.models.packed_loss import ExampleTerms, token_loss
from hf_curriculum.training.selection import Selector
from tests.helpers.dispatched import Dispatched, as_on_a_device, watched
from tests.helpers.every_model import case

STILL = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_steps": 5}


def train(folder, name, kind_of_step, rule=None, **settings):
    model, collator, data, kind, more = case(name)
    options = more.pop("trainer", {})

    class Watched(kind):
        training_step = kind_of_step(kind)

    args = kind.args_class(str(folder), curriculum=rule or IID(epochs=4), **{**STILL, **more, **settings})
    trainer = Watched(model, args, data_collator=collator, train_dataset=data, **options)
    trainer.train()
    return trainer


CASES = [
    "git", "git, shared", "git, text", "git, joint", "git, weighted", "flamingo", "flamingo, shared", "transformer",
    "transformer, shared", "updown", "updown, shared", "updown, sampled", "aoanet", "aligner", "wsddn",
    "wsddn, spatial",
]  # fmt: skip


def test_what_waits_is_seen(monkeypatch):
    seen, values = Dispatched(), torch.arange(4.0)
    as_on_a_device(monkeypatch, seen)
    for wait, name in (
        (lambda: values.sum().item(), "item"),
        (values.tolist, "tolist"),
        (lambda: bool(values.any()), "__bool__"),
        (lambda: [1, 2][values.argmin()], "__index__"),
        (values.nonzero, "aten::nonzero"),
        (lambda: values[values > 1], "aten::index.Tensor by a mask"),
        (lambda: values.masked_select(values > 1), "aten::masked_select"),
        (lambda: torch.unique(values), "aten::_unique2"),
    ):
        seen.waits.clear()
        wait()
        assert not seen.waits
        with watched(seen):
            wait()
        assert seen.waits[name] == 1, (name, seen.waits)


@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_its_device(monkeypatch, tmp_path, name):
    seen, losses = Dispatched(), []
    as_on_a_device(monkeypatch, seen)

    def counted(kind):
        def training_step(self, *args, **kwargs):
            with watched(seen):
                loss = kind.training_step(self, *args, **kwargs)
            losses.append(loss.item())
            return loss

        return training_step

    train(tmp_path, name, counted, per_device_train_batch_size=6, seed=3)
    assert len(losses) == 5
    assert np.isfinite(losses).all()
    assert sum(seen.kernels.values()) > 50
    assert seen.waits == {}


@pytest.mark.parametrize("value", ["loss", "grounding"])
@pytest.mark.parametrize("name", ["git", "git, shared", "flamingo", "transformer"])
def test_online_selection_waits_once_for_the_values(monkeypatch, tmp_path, name, value):
    seen, waits = Dispatched(), []
    as_on_a_device(monkeypatch, seen)

    def counted(kind):
        def training_step(self, *args, **kwargs):
            with watched(seen):
                return kind.training_step(self, *args, **kwargs)

        return training_step

    own = Selector._chosen

    def chosen(self, *args):
        before = sum(seen.waits.values())
        with watched(seen):
            found = own(self, *args)
        waits.append(sum(seen.waits.values()) - before)
        return found

    monkeypatch.setattr(Selector, "_chosen", chosen)
    batches = {"batches": ByImage(2)} if "shared" in name else {}
    rule = OnlineSelection(2, value, then=IID(epochs=4), **batches)
    train(tmp_path, name, counted, rule, per_device_train_batch_size=4)
    assert waits == [1] * 5
    assert seen.waits == {"cpu": 5}


@pytest.mark.parametrize("items", [None, torch.tensor(9)])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 7.0, 1.0])])
@pytest.mark.parametrize("labelled", [True, False])
def test_labels_that_the_device_alone_has_give_the_same_loss(monkeypatch, items, weights, labelled):
    torch.manual_seed(0)
    output, states = torch.nn.Linear(6, 50), torch.randn(4, 7, 6, requires_grad=True)
    labels = torch.randint(50, (4, 7))
    labels[0, 3:], labels[2], labels[3, 1:4] = -100, -100, -100
    labels = labels if labelled else torch.full_like(labels, -100)
    values, terms = (states, *output.parameters()), [ExampleTerms(weights) for _ in range(2)]
    losses = [token_loss(output, states, labels, items, terms[0])]
    seen = Dispatched()
    as_on_a_device(monkeypatch, seen)
    with watched(seen):
        losses.append(token_loss(output, states, labels, items, terms[1]))
        found = torch.autograd.grad(losses[1], values)
    assert seen.waits == {}
    torch.testing.assert_close(*losses, equal_nan=True)
    torch.testing.assert_close(found, torch.autograd.grad(losses[0], values))
    torch.testing.assert_close(terms[0].sums, terms[1].sums)
    assert torch.equal(terms[0].counts, terms[1].counts)
    # Noted values are taken, until somebody writes into the tensor.
    note(labels, labels.numpy())
    assert known(labels) is not None
    labels[0, 0] = 1
    assert known(labels) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_a_gpu(tmp_path, name):
    def strict(kind):
        def training_step(self, *args, **kwargs):
            torch.cuda.set_sync_debug_mode("error" if self.state.global_step else "default")  # memory comes first
            try:
                return kind.training_step(self, *args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return training_step

    trainer = train(tmp_path, name, strict, per_device_train_batch_size=6, seed=3, use_cpu=False)
    assert trainer.state.global_step == 5
