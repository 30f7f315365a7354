"""Captioners under `torch.compile`: one graph for each length of texts, and the losses of eager ones."""

from __future__ import annotations

import pytest
import torch

from hf_curriculum import IID
from tests.helpers.every_model import case

pytestmark = pytest.mark.slow
CASES = ["git", "git, shared", "git, text", "flamingo", "transformer", "transformer, shared", "updown", "aoanet"]


def without_dropout(model):
    for module in model.modules():
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for config in (model.config, getattr(model.config, "text_config", None)):
        for name in ("attention_probs_dropout_prob", "attention_dropout"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
    return model.train()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_each_length_and_none_later(name, side):
    model, collator, data, *_ = case(name)
    model, collator.tokenizer.padding_side = without_dropout(model), side
    by_length = sorted(range(len(data)), key=lambda row: len(data[row]["caption"]))
    parts = by_length[:4], by_length[-4:], by_length[1:5]
    batches = {}
    for multiple in (1, 4):
        collator.pad_to_multiple_of = multiple
        batches[multiple] = [collator([data[row] for row in rows]) for rows in parts]
    widths = [batch["input_ids"].shape[1] for batch in batches[4]]
    assert widths[0] < widths[1]
    assert any(len(set(batch["labels"][0].tolist()) & {-100}) for batch in batches[4])
    losses = [model(**batch).loss for batch in batches[1]]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    found = [compiled(**batch).loss for batch in batches[4]]
    torch.testing.assert_close(found, losses, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close([model(**batch).loss for batch in batches[4]], losses, atol=2e-6, rtol=1e-6)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in batches[4]:
            compiled(**batch).loss.backward()


def test_a_compiled_step_of_inductor():
    model, collator, data, *_ = case("git")
    batch = collator([data[row] for row in range(4)])
    model = without_dropout(model)
    own, found = model(**batch).loss, torch.compile(model, fullgraph=True)(**batch).loss
    torch.testing.assert_close(found, own, atol=1e-5, rtol=1e-5)
    wanted, gradients = (
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in (own, found)
    )
    torch.testing.assert_close(gradients, wanted, atol=1e-4, rtol=1e-3)


def test_a_compiled_run_resumes_exactly(tmp_path):
    def run(folder, steps, resume=False):
        model, collator, data, kind, _ = case("git")
        args = kind.args_class(
            str(folder), curriculum=IID(epochs=2), per_device_train_batch_size=6, max_steps=steps, learning_rate=0.01,
            save_steps=2, torch_compile=True, torch_compile_backend="eager", lr_scheduler_type="constant", seed=3,
            use_cpu=True, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = kind(model, args, data_collator=collator, train_dataset=data)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
        return trainer

    whole = run(tmp_path / "whole", 4)
    assert isinstance(whole.model_wrapped, torch._dynamo.eval_frame.OptimizedModule)
    resumed = run(tmp_path / "whole", 4, resume=True)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
