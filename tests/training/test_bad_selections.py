"""What cannot be chosen from, and what works together with choosing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from selection_task import (
    PLAIN,
    ShortCaptions,
    captioned,
    captions_collator,
    captions_trainer,
    recorded,
    small_git,
    weights_of,
)
from tiny_vlm import make_vlm_trainer
from transformers import Seq2SeqTrainer, Trainer

from hf_curriculum import (
    IID,
    BabySteps,
    BucketedStream,
    ByImage,
    CaptionCollator,
    CurriculumTrainer,
    Filter,
    OnlineSelection,
    Phases,
    Staged,
    curriculum_from,
    make_plan,
    save_bucketed,
    train_wordpiece,
    with_curriculum,
)
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.training.joint_text import JointTextTrainer
from hf_curriculum.training.selection import select_rows, validate_image_per_row
from hf_curriculum.training.setup import validate_metric, validate_selection

NAN = float("nan")
REDUCIBLE = OnlineSelection(3, "reducible_loss", "reference")

# ---- The rule ----


def test_a_curriculum_in_the_place_of_the_number_is_named():
    with pytest.raises(TypeError, match=r"OnlineSelection\(value='loss', then=IID\(\.\.\.\)\)"):
        OnlineSelection(IID(epochs=1))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"candidates": 0},
            r"OnlineSelection\(candidates=0\) is not possible; candidates is a whole number of at least",
        ),
        ({"score_every": 0}, r"OnlineSelection\(score_every=0\) is not possible"),
        ({"temperature": 0.0}, r"OnlineSelection\(temperature=0\.0\) is not possible; a temperature is a number more"),
        ({"temperature": NAN}, "temperature"),
        ({"value": "entropy"}, r"OnlineSelection\(value='entropy'\) is not possible; value is one of 'loss'"),
        ({"value": "reducible_loss"}, r"this value needs a reference\. Give value='reducible_loss' and the column"),
        ({"reference": "reference"}, r"this value reads none\. Give value='reducible_loss'"),
        (
            {"then": OnlineSelection(value="loss")},
            r"OnlineSelection\(then=\.\.\.\) holds an OnlineSelection: what the inner",
        ),
        (
            {"then": Filter(0.5, OnlineSelection(1, "loss"))},
            r"OnlineSelection\(then=\.\.\.\) holds an OnlineSelection: what",
        ),
        ({"then": IID(partial_batches="keep")}, r"holds a curriculum with partial_batches='keep': in the last batch"),
        ({"then": Filter(0.5, IID(partial_batches="keep"))}, r"holds a curriculum with partial_batches='keep'"),
        ({"then": Phases(2, easy="low")}, r"OnlineSelection\(then=\.\.\.\) holds a curriculum with `easy`"),
        ({"then": IID(batches=ByImage(2))}, r"OnlineSelection\(then=\.\.\.\) holds a curriculum with `batches`"),
    ],
)
def test_rules_that_cannot_be(given, match):
    with pytest.raises(ValueError, match=match):
        OnlineSelection(**{"value": "loss", **given})


def test_what_the_best_is_has_no_default():
    message = r"does not say which candidate is the best, and nothing is in general\. Give value='reducible_loss' with"
    for given in ({}, {"reference": "reference"}):
        with pytest.raises(ValueError, match=message):
            OnlineSelection(2, **given)
    with pytest.raises(ValueError, match=message):
        curriculum_from({"type": "filter", "keep": 0.5, "then": "online_selection"})
    assert ShortCaptions(2).value is None


def test_candidates_are_whole():
    with pytest.raises(
        TypeError, match=r"OnlineSelection\(candidates=1\.5\) is not possible; candidates is a whole numb"
    ):
        OnlineSelection(1.5)


@pytest.mark.parametrize("inner", [OnlineSelection(2, "loss"), Filter(0.5, OnlineSelection(2, "loss"))])
def test_a_part_of_staged_cannot_choose(inner):
    with pytest.raises(ValueError, match=r"Staged has an OnlineSelection for 'b', and a step has as many candidates"):
        Staged({"a": IID(), "b": inner})


def test_passes_within_staged_that_end_with_smaller_batches_have_no_candidate_for_some_places():
    with pytest.raises(ValueError, match=r"partial_batches='keep'"):
        OnlineSelection(2, "loss", then=Staged({"a": IID(epochs=1), "b": IID(epochs=1, partial_batches="keep")}))


def test_streams_cannot_be_chosen_from(tmp_path):
    data = Dataset.from_dict({"x": list(range(12)), "difficulty": np.arange(12.0)})
    folder = tmp_path / "buckets"
    save_bucketed(data, folder, 2, score_column="difficulty", easy="low")
    for rule in (
        OnlineSelection(2, "loss"),
        Filter(0.5, OnlineSelection(2, "loss")),
        OnlineSelection(2, "loss", then=Phases(2)),
    ):
        with pytest.raises((TypeError, ValueError), match="OnlineSelection"):
            BucketedStream(folder, rule, global_batch_size=2)


# ---- The data ----


def with_reference(values):
    data = captioned()[0].remove_columns("reference")
    return data if values is None else data.add_column("reference", np.asarray(values, np.float32))


def test_a_reference_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"`reference`"):
        captions_trainer(REDUCIBLE, tmp_path, trainer={"train_dataset": with_reference(None)})
    with pytest.raises(
        ValueError, match=r"OnlineSelection reads `reference` of each row, and was given scores without"
    ):
        make_plan(REDUCIBLE, np.arange(24.0), global_batch_size=4)


def test_a_reference_without_a_number(tmp_path):
    with pytest.raises(ValueError, match=r"`reference` has no number for any of the 24 examples: there would be noth"):
        captions_trainer(REDUCIBLE, tmp_path, trainer={"train_dataset": with_reference([NAN] * 24)})
    by_image = OnlineSelection(2, "reducible_loss", "reference", batches=ByImage(2))
    with pytest.raises(ValueError, match=r"`reference` has no number for any of the 24 examples: there would be noth"):
        make_plan(by_image, with_reference([NAN] * 24), global_batch_size=4)


def test_rows_without_a_reference_are_counted_and_end_no_run(tmp_path):
    """One of two rows in three lacks it, so that now and then a whole batch of one place does."""
    values = np.where(np.arange(24) % 3 == 0, 4.0, NAN)
    settings = {"per_device_train_batch_size": 1, "max_steps": 12, "logging_steps": 12}
    rule = OnlineSelection(2, "reducible_loss", "reference", then=IID(epochs=3))
    trainer = captions_trainer(rule, tmp_path, trainer={"train_dataset": with_reference(values)}, **settings)
    assert "`reference` has no number for 16 of 24 examples: they are trained on only where" in trainer.plan.describe()
    trainer.train()
    lines, unvalued = recorded(tmp_path), 0
    for step, (row,), (value,) in lines:
        place = trainer.plan.step_rows(step)
        known = [one for one in place if np.isfinite(values[one])]
        unvalued += 2 - len(known)
        assert row in known if known else row == place[0]
        assert (value is None) == (not known)
    assert any(value is None for _, _, (value,) in lines)
    assert trainer.state.log_history[0]["curriculum/unvalued"] == unvalued


@pytest.mark.parametrize("candidates", [8, 10**9])
def test_fewer_rows_than_candidates_are_refused(candidates):
    rule = OnlineSelection(candidates, "loss", then=IID(epochs=10))
    with pytest.raises(ValueError, match=f"There are 5 examples, and each place has {candidates:,} candidates"):
        make_plan(rule, np.arange(5.0), global_batch_size=2)


# ---- The values ----


class Returning(OnlineSelection):
    """Values that are none."""

    def values(self, candidates):
        numbers = np.arange(len(candidates.rows), dtype=np.float64)
        if self.value == "grounding":
            return np.where(numbers % 2, NAN, -numbers)
        return numbers * NAN if self.value == "-loss" else np.append(numbers, 0)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (
            Returning(3),
            r"Returning\.values returned shape \(13,\) for 12 candidates, and each needs a value of its own",
        ),
        (Returning(3, "-loss"), r"None of the 12 candidates of a batch has a value that is finite \(rows \["),
    ],
)
def test_values_of_another_shape_or_none_at_all_are_found_before_the_first_step(tmp_path, rule, match):
    trainer = captions_trainer(rule, tmp_path)
    before = weights_of(trainer)
    with pytest.raises(ValueError, match=match):
        trainer.train()
    assert trainer.state.global_step == 0
    assert torch.equal(weights_of(trainer), before)


def test_some_values_that_are_none_are_counted(tmp_path):
    trainer = captions_trainer(Returning(3, "grounding"), tmp_path, max_steps=2)
    trainer.train()
    assert [entry["curriculum/unvalued"] for entry in trainer.state.log_history if "loss" in entry] == [6, 6]
    for step, rows, _ in recorded(tmp_path):
        places = trainer.plan.step_rows(step).reshape(4, 3)
        assert rows == [place[number % 2] for number, place in enumerate(places)]


def test_a_model_that_diverges_is_said_to(tmp_path):
    class Diverging(CurriculumTrainer):
        def example_losses(self, model, inputs):
            return super().example_losses(model, inputs) * (NAN if self.state.global_step == 2 else 1)

    trainer = captions_trainer(OnlineSelection(2, "loss"), tmp_path, kind=Diverging)
    with pytest.raises(
        ValueError, match=r"the model has diverged, or the rule gives none\. There is nothing to choose"
    ):
        trainer.train()
    assert trainer.state.global_step == 2


def test_losses_of_another_shape_are_found_before_the_first_step(tmp_path):
    class Mean(CurriculumTrainer):
        def example_losses(self, model, inputs):
            return super().example_losses(model, inputs).mean(0, keepdim=True)

    trainer = captions_trainer(OnlineSelection(2, "loss"), tmp_path, kind=Mean)
    with pytest.raises(ValueError, match=r"example_losses returned a tensor of shape \(1,\) for 8 examples"):
        trainer.train()


# ---- The trainer ----


class Packed(CaptionCollator):
    """A batch that rows cannot be cut out of."""

    def collate(self, prepared):
        batch = super().collate(prepared)
        return {**batch, "lengths": batch["attention_mask"].sum(1).cumsum(0)[:-1]}


class Listed(CaptionCollator):
    """A batch that is no mapping."""

    def collate(self, prepared):
        return list(super().collate(prepared).items())


def test_batches_that_cannot_be_cut_are_found_before_the_first_step(tmp_path):
    tokenizer, processor = captioned()[1], captions_collator().image_processor

    class Loose(CurriculumTrainer):
        def example_losses(self, model, inputs):
            return super().example_losses(model, {name: one for name, one in inputs.items() if name != "lengths"})

    for collator, kind, error, match in (
        (Packed, Loose, ValueError, r"`lengths` of the collator's batch has 7 entries for 8 rows"),
        (
            Listed,
            CurriculumTrainer,
            TypeError,
            r"The collator's batch is a list, and candidates are chosen by rows of a",
        ),
    ):
        made = collator(tokenizer, processor, max_length=14)
        trainer = captions_trainer(OnlineSelection(2, "loss"), tmp_path, kind=kind, trainer={"data_collator": made})
        with pytest.raises(error, match=match):
            trainer.train()
        assert trainer.state.global_step == 0


def test_another_loss_than_is_chosen_by(tmp_path):
    class Own(CurriculumTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    class Both(Own):
        def example_losses(self, model, inputs):
            return super().example_losses(model, inputs)

    rule = Filter(0.5, OnlineSelection(2, "loss"), easy="low")
    for kind, given, arguments, what in (
        (Own, {}, {}, "Own has a compute_loss of its own"),
        (CurriculumTrainer, {"compute_loss_func": len}, {}, "compute_loss_func= was given"),
        (CurriculumTrainer, {}, {"label_smoothing_factor": 0.1}, "label_smoothing_factor= was given"),
    ):
        with pytest.raises(ValueError, match=f"{what}, and Filter chooses by `example_losses`, which would still be"):
            captions_trainer(rule, tmp_path, kind=kind, trainer=given, **arguments)
        captions_trainer(OnlineSelection(1, "loss"), tmp_path, kind=kind, trainer=given, **arguments)
    captions_trainer(rule, tmp_path, kind=Both)


def test_images_are_not_torn_apart(tmp_path):
    rule = OnlineSelection(2, "loss", batches=ByImage(2))
    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    with pytest.raises(
        ValueError, match=r"A forward pass trains on 1 examples, and a candidate is an image with 2 capt"
    ):
        captions_trainer(rule, tmp_path, **settings)
    captions_trainer(OnlineSelection(1, "loss", batches=ByImage(2)), tmp_path, **settings)


def test_completions_have_no_loss_before_they_are_written():
    class Arguments:
        num_generations = 2

    columns = read_columns(captioned()[0], {"image_id": "groups"})
    ranking = Ranking.unordered(24)
    object.__setattr__(ranking, "columns", columns)
    plan = make_plan(OnlineSelection(2, "loss", batches=ByImage(2)), ranking, global_batch_size=4)
    with pytest.raises(
        ValueError, match=r"compares num_generations=2 completions of one prompt, which have none before"
    ):
        validate_selection(plan, Arguments(), 4)


def test_the_metric_of_a_curriculum_deep_inside_is_one_that_is_returned(tmp_path):
    rule = Filter(0.5, OnlineSelection(2, "loss", then=BabySteps(2, metric="cider")), easy="low")
    data = captioned()[0].select(range(4))
    trainer = captions_trainer(rule, tmp_path, trainer={"eval_dataset": data})
    with pytest.raises(
        ValueError, match=r"Filter decides on 'eval_cider', and evaluate\(\) will return \['eval_loss'\]"
    ):
        validate_metric(trainer)


def test_resumed_in_the_middle_of_a_window_with_another_batch_size(tmp_path):
    rule = OnlineSelection(2, "loss", score_every=3)
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
    captions_trainer(rule, tmp_path, **settings).train()
    other = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **settings}
    trainer = captions_trainer(rule, tmp_path, **other)
    with pytest.raises(ValueError, match=r"was saved between two times that candidates were valued \(score_every=3\)"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    held = tmp_path / "checkpoint-2" / "selection_0.npz"
    with np.load(held) as saved:
        values = saved["values"]
    assert values.shape == (1, 4, 2)
    np.savez(held, values=values, processes=2)
    with pytest.raises(ValueError, match=r"selection_0\.npz holds something else than was written"):
        captions_trainer(rule, tmp_path, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    held.unlink()
    with pytest.raises(ValueError, match=r"selection_0\.npz is missing"):
        captions_trainer(rule, tmp_path, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    trainer = captions_trainer(rule, tmp_path, **other)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert trainer.state.global_step == 6


# ---- What works together with it ----


def chosen_of(folder, plan):
    """Whether each row is one of its place's candidates, and not the first of all of them."""
    lines = recorded(folder)
    places = [plan.step_rows(step).reshape(4, -1) for step, _, _ in lines]
    own = all(
        row in place
        for (_, rows, _), part in zip(lines, places, strict=True)
        for row, place in zip(rows, part, strict=True)
    )
    first = [part[:, 0].tolist() for part in places]
    return own and first != [rows for _, rows, _ in lines]


@pytest.mark.parametrize("name", ["bf16", "gradient_checkpointing", "torch_compile", "lora", "max_seconds"])
def test_it_works_together_with(name, tmp_path):
    rule, settings, model = OnlineSelection(3, "loss"), {"max_steps": 3}, small_git()
    if name == "torch_compile":
        settings |= {"torch_compile": True, "torch_compile_backend": "eager"}
    elif name == "lora":
        peft = pytest.importorskip("peft")
        names = [part for part, one in model.named_modules() if isinstance(one, torch.nn.Linear)][-3:-1]
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=names))
    elif name == "max_seconds":
        settings["max_seconds"] = 1e-6
    else:
        settings[name] = True
    trainer = captions_trainer(rule, tmp_path, trainer={"model": model}, **settings)
    trainer.train()
    assert trainer.state.global_step == (1 if name == "max_seconds" else 3)
    assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
    assert chosen_of(tmp_path, trainer.plan)
    assert model.training


def test_a_batch_size_that_is_lowered_for_memory(tmp_path):
    class Small(CurriculumTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            if len(inputs["labels"]) > 2:
                raise RuntimeError("CUDA out of memory. (not really)")
            return super().training_step(model, inputs, *args, **kwargs)

    trainer = captions_trainer(
        OnlineSelection(3, "loss"), tmp_path, kind=Small, max_steps=3, auto_find_batch_size=True
    )
    trainer.train()
    assert trainer.plan.global_batch_size == 2
    assert trainer.plan.samples_per_step == 6
    for step, rows, values in recorded(tmp_path):
        places = trainer.plan.step_rows(step).reshape(2, 3)
        assert all(row in place for row, place in zip(rows, places, strict=True))
        assert len(values) == 2


def test_text_beside_captions_has_no_say(tmp_path):
    tokenizer = captioned()[1]
    text = Dataset.from_dict({"caption": ["a small ball", "the dog sleeps", "two cats"]})
    collator = JointText(captions_collator(), text, CaptionCollator(tokenizer, None, max_length=9))
    runs = {}
    for name, kind, made in (("joint", JointTextTrainer, collator), ("alone", CurriculumTrainer, captions_collator())):
        given = {"data_collator": made, **({"text_weight": 0.5} if name == "joint" else {})}
        trainer = captions_trainer(OnlineSelection(3, "loss"), tmp_path / name, kind=kind, trainer=given, max_steps=2)
        trainer.train()
        runs[name] = recorded(tmp_path / name)
        assert ("text_loss" in trainer.state.log_history[0]) == (name == "joint")
    assert runs["joint"][0] == runs["alone"][0]
    assert runs["joint"][1][2] != runs["alone"][1][2]


def test_generation_of_seq2seq_and_other_trainers(tmp_path):
    for other in (Seq2SeqTrainer, Trainer):
        kind = with_curriculum(other)
        settings = {name: value for name, value in PLAIN.items() if name != "score_column"}
        args = kind.args_class(str(tmp_path / other.__name__), curriculum=ShortCaptions(3), max_steps=2, **settings)
        trainer = kind(small_git(), args, captions_collator(), captioned()[0])
        trainer.train()
        assert chosen_of(tmp_path / other.__name__, trainer.plan)


def test_a_language_model_of_trl(tmp_path):
    trl = pytest.importorskip("trl")
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_wordpiece(captioned()[0], 200)
    tokenizer.eos_token = tokenizer.sep_token or "[SEP]"
    kind = with_curriculum(trl.SFTTrainer)
    settings = {name: value for name, value in PLAIN.items() if name != "score_column"}
    data = Dataset.from_dict({"text": captioned()[0]["caption"][:]})
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    args = kind.args_class(
        str(tmp_path),
        curriculum=OnlineSelection(3, "loss"),
        max_steps=2,
        eos_token=tokenizer.eos_token,
        bf16=False,
        **settings,
    )
    trainer = kind(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    assert chosen_of(tmp_path, trainer.plan)


@pytest.mark.parametrize("images", [1, 2, None], ids=["one", "two", "one to three"])
def test_dialogues_are_chosen_among_as_from_batches_of_one_row(images, tmp_path):
    trainer = make_vlm_trainer(tmp_path, OnlineSelection(2, "loss", then=IID(epochs=2)), images=images)
    chosen = {}
    taken = trainer.selector._chosen

    def noted(model, batch, step):
        kept = taken(model, batch, step)
        one_by_one = []
        for row in batch["example_index"].tolist():
            alone = trainer.data_collator([trainer.train_dataset[row]])
            one_by_one.append(float(trainer.example_losses(model, alone)))
        assert kept.values.ravel() == pytest.approx(one_by_one, rel=1e-5)
        best = np.reshape(one_by_one, (-1, 2)).argmax(1)
        rows = batch["example_index"].reshape(-1, 2)[np.arange(4), best]
        assert torch.equal(kept.batch["example_index"], rows)
        anew = trainer.data_collator([trainer.train_dataset[row] for row in rows.tolist()])
        assert {*anew} == {*kept.batch} - {"example_index"}
        assert all(torch.equal(kept.batch[name], value) for name, value in anew.items())
        chosen[step] = rows
        return kept

    trainer.selector._chosen = noted
    trainer.train()
    assert len(chosen) == trainer.state.global_step == 6


def test_dialogues_of_several_images_resume_bit_for_bit_and_with_workers(tmp_path):
    rule = OnlineSelection(2, "loss", then=IID(epochs=2))
    whole = make_vlm_trainer(tmp_path / "whole", rule, images=None)
    whole.train()
    for name, workers in (("again", 0), ("workers", 2)):
        again = make_vlm_trainer(tmp_path / name, rule, images=None, dataloader_num_workers=workers)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
        assert recorded(tmp_path / name) == recorded(tmp_path / "whole")[3:]
        for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_rows_without_an_image_and_any_choice_of_rows_are_cut_out_of_packed_patches():
    grid = torch.tensor([[1, 2, 2], [1, 4, 2], [1, 2, 6], [1, 2, 2]])
    patches = grid.prod(1)
    kinds = torch.zeros(4, 7, dtype=torch.long)
    for row, places in enumerate([3, 0, 4, 0]):  # a place for 4 patches: images 0 and 1, none, 2 and 3, none
        kinds[row, :places] = 1
    batch = {"pixel_values": torch.arange(28.0)[:, None], "image_grid_thw": grid, "mm_token_type_ids": kinds}
    parts = batch["pixel_values"].split(patches.tolist())
    for rows, images in (([2, 1, 0], [2, 3, 0, 1]), ([0, 0], [0, 1, 0, 1]), ([3, 2], [2, 3])):
        found = select_rows(batch, np.array(rows), size=4)
        assert torch.equal(found["image_grid_thw"], grid[images])
        assert torch.equal(found["pixel_values"], torch.cat([parts[number] for number in images]))
    assert {*select_rows(batch, np.array([3, 1]), size=4)} == {"mm_token_type_ids"}  # as a batch of text has it
    kinds[0, 2] = 0  # a row now ends within an image
    with pytest.raises(ValueError, match=r"packed `pixel_values`: with `image_grid_thw` and `mm_token_type_ids`\)"):
        select_rows(batch, np.array([0]), size=4)


def test_images_as_many_as_rows_that_are_not_one_of_each_are_refused():
    config = SimpleNamespace(image_token_id=9)
    one_each = {"input_ids": torch.tensor([[9, 1], [2, 9]]), "pixel_values": torch.zeros(2, 3, 4, 4)}
    validate_image_per_row(one_each, config, 2)
    uneven = {**one_each, "input_ids": torch.tensor([[9, 9], [2, 1]])}
    with pytest.raises(ValueError, match="The batch has 2 images and 2 rows, and some rows show none"):
        validate_image_per_row(uneven, config, 2)
    tiles = {**uneven, "pixel_values": torch.zeros(2, 5, 3, 4, 4)}
    validate_image_per_row(tiles, config, 2)  # Idefics3: a row's images, padded
    with pytest.raises(ValueError, match="some rows show none"):
        validate_image_per_row({**tiles, "image_sizes": torch.zeros(2, 2)}, config, 2)  # LLaVA-NeXT
    for others in (SimpleNamespace(), None):
        validate_image_per_row(uneven, others, 2)
    validate_image_per_row({**uneven, "pixel_values": torch.zeros(3, 3, 4, 4)}, config, 2)  # refused when it is cut
