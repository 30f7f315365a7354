"""`MasterAdamW`: the steps of float32 AdamW by half-precision gradients, exactly, resumed or not."""

import pytest
import torch
from torch import nn

from hf_curriculum import IID
from hf_curriculum.training.master_adamw import MasterAdamW
from tests.helpers.every_model import case

SETTINGS = {"lr": 1e-5, "weight_decay": 0.01}


def gradients(step, shapes):
    draw = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=draw).bfloat16() for shape in shapes]


def test_its_copies_are_stepped_as_float32_weights_and_survive_saving():
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).bfloat16()
    with torch.no_grad():
        layer.weight.add_(1)
    start = [weight.detach().clone() for weight in layer.parameters()]
    exact = [nn.Parameter(weight.float()) for weight in start]
    plain = [nn.Parameter(weight.clone()) for weight in start]
    ours, reference, lossy = (
        MasterAdamW([{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}], **SETTINGS),
        torch.optim.AdamW([{"params": exact[:1]}, {"params": exact[1:], "weight_decay": 0.0}], **SETTINGS),
        torch.optim.AdamW(plain, **SETTINGS),
    )
    for step in range(40):
        if step == 25:  # as a resumed run: other tensors, the same state
            saved = ours.state_dict()
            weights = [weight.detach().clone() for weight in layer.parameters()]
            layer = nn.Linear(6, 4).bfloat16()
            for weight, value in zip(layer.parameters(), weights, strict=True):
                weight.data.copy_(value)
            ours = MasterAdamW([{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}], **SETTINGS)
            ours.load_state_dict(saved)
        for params in (list(layer.parameters()), exact, plain):
            for weight, gradient in zip(params, gradients(step, [(4, 6), (4,)]), strict=True):
                weight.grad = gradient.to(weight.dtype)
        assert ours.step(lambda: 7) == 7
        reference.step()
        lossy.step()
    for weight, wanted in zip(layer.parameters(), exact, strict=True):
        assert torch.equal(weight, wanted.bfloat16())
        assert weight.dtype == torch.bfloat16
    masters = [master for group in ours.param_groups for master in group["params"]]
    assert all(torch.equal(*pair) for pair in zip(masters, exact, strict=True))
    assert torch.equal(plain[0], start[0])  # plain AdamW loses every update of a weight of 1
    assert not torch.equal(masters[0], start[0].float())
    ours.zero_grad(set_to_none=False)
    assert all(not weight.grad.any() for weight in layer.parameters())
    ours.zero_grad()
    assert all(weight.grad is None for weight in layer.parameters())


def test_a_state_of_another_optimizer_or_model_is_refused():
    ours, other = MasterAdamW(nn.Linear(2, 3).parameters()), torch.optim.AdamW(nn.Linear(2, 3).parameters())
    with pytest.raises(ValueError, match="has no copies for 2 weights: it was written by another optimizer"):
        ours.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="has copies of 2 weights of other shapes"):
        ours.load_state_dict(MasterAdamW(nn.Linear(4, 3).parameters()).state_dict())


def test_a_run_in_bfloat16_resumes_exactly(tmp_path):
    def run(resume=None):
        model, collator, data, kind, _ = case("git")
        args = kind.args_class(
            str(tmp_path), curriculum=IID(epochs=1), per_device_train_batch_size=6, learning_rate=1e-3, save_steps=2,
            use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, seed=3,
        )  # fmt: skip
        made = MasterAdamW, {"lr": 1e-3}
        trainer = kind(
            model.bfloat16(), args, data_collator=collator, train_dataset=data, optimizer_cls_and_kwargs=made
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run()
    weights = {name: weight.clone() for name, weight in whole.model.state_dict().items()}
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    before = case("git")[0].bfloat16().state_dict()
    assert sum(torch.equal(weights[name], weight) for name, weight in before.items()) <= 2
    resumed = run(str(tmp_path / "checkpoint-2"))
    assert all(torch.equal(weights[name], weight) for name, weight in resumed.model.state_dict().items())
