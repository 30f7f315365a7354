"""Captioners under `torch.compile`: one graph for each shape of a batch, and the losses of eager ones."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from hf_curriculum import IID
from tests.helpers.every_model import case

pytestmark = pytest.mark.slow
CASES = {
    "git, shared": "right",
    "git, text": "left",
    "flamingo": "left",
    "transformer, shared": "right",
    "updown": "left",
    "aoanet": "right",
}
"""Cases with the side on which texts are padded."""


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


@pytest.mark.parametrize(("name", "side"), CASES.items())
def test_one_graph_for_each_shape_and_none_later(name, side):
    model, collator, data, *_ = case(name)
    model, collator.tokenizer.padding_side = without_dropout(model), side
    by_length = sorted(range(len(data)), key=lambda row: len(data[row]["caption"]))
    parts = by_length[:4], by_length[-4:], by_length[1:5]
    batches = {}
    for multiple in (1, 3):
        collator.pad_to_multiple_of = multiple
        batches[multiple] = [collator([data[row] for row in rows]) for rows in parts]
    widths = [batch["input_ids"].shape[1] for batch in batches[3]]
    assert len(set(widths)) == 2
    assert any(len(set(batch["labels"][0].tolist()) & {-100}) for batch in batches[3])
    losses = [model(**batch).loss for batch in batches[1]]
    torch.testing.assert_close([model(**batch).loss for batch in batches[3]], losses, atol=1e-6, rtol=1e-6)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    found = [compiled(**batch).loss for batch in batches[3]]
    shapes = {tuple((key, *value.shape) for key, value in batch.items()) for batch in batches[3]}
    assert counter.frame_count <= len(shapes)
    torch.testing.assert_close(found, losses, atol=2e-6, rtol=1e-6)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in batches[3]:
            compiled(**batch).loss.backward()


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
