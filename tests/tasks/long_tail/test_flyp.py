"""CLIP fine-tuned by its own loss: beside CLIP's, its zero-shot head, prompts by draw, and a run that resumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from labelled import NAMES, labelled
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from hf_curriculum import ClassProbability, CurriculumTrainer, CurriculumTrainingArguments
from hf_curriculum.data.seeding import IndexedCollator, IndexedDataset
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, SHIPPED
from hf_curriculum.tasks.long_tail import (
    CLIPClassifier,
    GuidanceSchedule,
    PromptCollator,
    class_counts,
    long_tail_metrics,
)
from hf_curriculum.tasks.long_tail.flyp import flyp_loss, tokens_of

TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED)
PROCESSOR = AutoImageProcessor.from_pretrained(SHIPPED, backend="pil")
PROMPTS = ["a {label} ball", "a small {label} ball"]


def model(**options):
    return CLIPClassifier(AutoModel.from_pretrained(SHIPPED), TOKENIZER, NAMES, PROMPTS, **options)


def collator(**options):
    return PromptCollator(PROCESSOR, TOKENIZER, NAMES, PROMPTS, **options)


def test_the_loss_is_clips():
    clip = AutoModel.from_pretrained(SHIPPED, dtype=torch.float32).eval()
    data = labelled((2, 1, 1))
    batch = collator()([data[row] for row in range(4)])
    with torch.no_grad():
        theirs = clip(**{name: batch[name] for name in ("pixel_values", "input_ids", "attention_mask")},
                      return_loss=True).loss  # fmt: skip
        ours = model().eval()(**batch)
    assert ours.loss.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert ours.logits is None


def test_pairs_of_the_same_class_may_be_left_out():
    rng = torch.Generator().manual_seed(0)
    images, texts = (F.normalize(torch.randn(4, 5, generator=rng), dim=-1) for _ in range(2))
    labels = torch.tensor([0, 0, 1, 2])
    found = flyp_loss(images, texts, 3.0, labels).item()
    total = 0.0
    for one, other in ((images, texts), (texts, images)):
        for row in range(4):
            kept = [column for column in range(4) if column == row or labels[column] != labels[row]]
            logits = 3.0 * one[row] @ other[kept].T
            total -= logits.log_softmax(0)[kept.index(row)].item() / 4
    assert found == pytest.approx(total / 2, rel=1e-5)
    assert found < flyp_loss(images, texts, 3.0).item()


def test_the_head_is_zero_shot():
    data = labelled((2, 1, 1))
    scores = ClassProbability(SCENES_CLIP, prompts=PROMPTS, classes=NAMES)(
        {"image": data["image"][:], "label": data["label"][:]}
    )["class_probability"]
    own = model().eval()
    batch = collator().without_augmentation()([data[row] for row in range(4)])
    assert set(batch) == {"pixel_values", "labels"}
    with torch.no_grad():
        found = own(**batch)
    probabilities = found.logits.softmax(-1)[torch.arange(4), batch["labels"]]
    np.testing.assert_allclose(probabilities.numpy(), scores, rtol=1e-3)
    assert found.loss.item() == pytest.approx(F.cross_entropy(found.logits, batch["labels"]).item())


def test_the_head_follows_training():
    own = model().eval()
    with torch.no_grad():
        before = own.head()
        assert own.head() is before
        own.train()
        own.clip.text_projection.weight.mul_(-1)
        assert not torch.allclose(own.eval().head(), before)
        after, others = own.head(), {name: values.flip(0) for name, values in own.state_dict().items()}
        own.load_state_dict(others)
        assert not torch.allclose(own.head(), after)
        assert own.double().head().dtype == torch.float64


def test_a_head_that_is_trained_or_has_a_gradient_is_not_kept():
    own = model().train()
    with torch.no_grad():
        assert own.head() is not own.head()
    own.eval()
    assert own.head().requires_grad
    assert own.head() is not own.head()


@pytest.mark.parametrize(("limit", "longest"), [(10**30, 10_000), (77, 77)])
def test_how_prompts_become_tokens(limit, longest):
    given = []

    class Words:
        model_max_length = limit

        def __call__(self, texts, **options):
            given.append((texts, options))
            return {"input_ids": torch.tensor([[5, 6], [7, 0]])}

    found = tokens_of(Words(), ("a dog", "a"))
    assert found["attention_mask"].tolist() == [[1, 1], [1, 1]]
    options = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
    assert given == [(["a dog", "a"], options)]


def test_what_is_saved_of_a_classifier_is_its_clip(monkeypatch):
    own, saved = model(), []
    assert all(name.startswith("clip.") for name in own.state_dict())
    monkeypatch.setattr(
        type(own.clip), "save_pretrained", lambda self, *given, **options: saved.append((given, options))
    )
    own.save_pretrained("there", max_shard_size="1GB")
    assert saved == [(("there",), {"max_shard_size": "1GB"})]
    assert (own.config, own.scale.item()) == (own.clip.config, pytest.approx(own.clip.logit_scale.exp().item()))


def test_the_prompt_is_drawn_by_the_draw():
    data, prompts = labelled((4,)), collator()
    assert prompts.is_random
    assert not PromptCollator(PROCESSOR, TOKENIZER, NAMES).is_random
    indexed = IndexedCollator(prompts, 5, True)

    def ids(*draws):
        batch = indexed(IndexedDataset(data, 5, False).__getitems__([(draw % 4, draw) for draw in draws]))
        return [row[row != TOKENIZER.pad_token_id].tolist() for row in batch["input_ids"]]

    some = ids(*range(16))
    assert some[3:7] == ids(3, 4, 5, 6)
    assert len({tuple(row) for row in some}) == 2


def trainer(folder, **settings):
    data = labelled((8, 4, 4), guidance=np.float32([1.0] * 12 + [0.5] * 4))
    args = CurriculumTrainingArguments(
        str(folder), curriculum=GuidanceSchedule(3, 2, levels=(0.5, 1.0)), score_column="guidance",
        global_batch_size=8, learning_rate=1e-4, weight_decay=0.2, warmup_steps=1, lr_scheduler_type="cosine",
        report_to=[], use_cpu=True, disable_tqdm=True, **settings,
    )  # fmt: skip
    return CurriculumTrainer(
        model(), args, collator(), data, {"test": labelled((3, 3, 3), 1)},
        compute_metrics=long_tail_metrics(class_counts(data), edges=(5, 8)),
    )  # fmt: skip


def test_a_run_over_levels_is_evaluated_by_its_head_and_resumes(tmp_path):
    whole = trainer(tmp_path / "whole", save_strategy="steps", save_steps=2, logging_steps=1)
    before = whole.evaluate()
    whole.train()
    after = whole.evaluate()
    assert after["eval_test_probability"] > before["eval_test_probability"] > 0.5
    assert {"eval_test_accuracy_many", "eval_test_accuracy_few", "eval_test_macro_f1"} <= set(after)
    rates = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert rates[1] == max(rates)
    assert rates[1:] == sorted(rates[1:], reverse=True)  # one schedule over all phases
    assert rates[-1] < 0.2 * max(rates)
    again = trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0)
    whole.model.save_pretrained(tmp_path / "clip")
    kept = AutoModel.from_pretrained(tmp_path / "clip")
    torch.testing.assert_close(kept.logit_scale, whole.model.clip.logit_scale)


def test_classes_without_a_prompt():
    with pytest.raises(ValueError, match=r"1 of 3 classes have no prompt \(\['blue'\]\)"):
        PromptCollator(PROCESSOR, TOKENIZER, NAMES, {"red": "a", "green": "b"})
    with pytest.raises(ValueError, match=r"has no place for the class"):
        CLIPClassifier(AutoModel.from_pretrained(SHIPPED), TOKENIZER, NAMES, "a photo")
    with pytest.raises(ValueError, match=r"`label` is 2, and there are prompts of 2 classes"):
        PromptCollator(PROCESSOR, TOKENIZER, NAMES[:2])([labelled((0, 0, 1))[0]])
