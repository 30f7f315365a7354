"""Which checkpoints are whole."""

from __future__ import annotations

import functools
import io
import logging
import os
from dataclasses import dataclass

import numpy as np
import pytest
import safetensors.torch
import torch
from datasets import Dataset, Features, Image, Value, load_from_disk
from PIL import Image as Picture
from small_task import Net
from transformers import ViTConfig, ViTForImageClassification

import hf_curriculum
from hf_curriculum import IID, BabySteps, CurriculumTrainer, CurriculumTrainingArguments, Phases, SelfPaced, make_plan
from hf_curriculum.files import write_sealed
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.stage import Stage
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.training.checkpoints import (
    invalidate,
    is_complete,
    last_complete_checkpoint,
    load_renamed_weights,
    next_rows,
    read_curriculum,
    read_losses,
    resume_plan,
    validate_complete,
    validate_same_plan,
    write_curriculum,
)


def checkpoint(root, step, *, complete=True, run=None):
    folder = root / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    if complete:
        plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
        write_curriculum(folder, plan, 1.5, step=0, run=run)
    return folder


def test_the_newest_whole_checkpoint_is_taken_and_broken_ones_are_named(tmp_path, caplog):
    checkpoint(tmp_path, 9)
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 100, complete=False)
    (checkpoint(tmp_path, 101) / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-best").mkdir()
    with caplog.at_level(logging.WARNING):
        assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    for name in ("checkpoint-101", "checkpoint-100"):
        assert f"{name} in {tmp_path} is incomplete" in caplog.text
    assert "Resuming from checkpoint-10" in caplog.text


def test_no_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"No valid checkpoint found .* \(.*nowhere\): there is none\."):
        last_complete_checkpoint(tmp_path / "nowhere")
    checkpoint(tmp_path, 3, complete=False)
    with pytest.raises(ValueError, match=r"No valid checkpoint .*: checkpoint-3 in .* is incomplete: the run ended"):
        last_complete_checkpoint(tmp_path)
    with pytest.raises(
        ValueError, match=r"checkpoint-3 has no curriculum\.json, so it was not saved by Curr.* or its"
    ):
        validate_complete(tmp_path / "checkpoint-3")
    (checkpoint(tmp_path, 4) / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-4 is incomplete: it has no trainer_state\.json"):
        validate_complete(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=r"Can't find a valid checkpoint at .*bogus: there is no such folder"):
        validate_complete(tmp_path / "checkpoint-bogus")


def test_a_checkpoint_written_again_is_not_whole_until_it_is(tmp_path):
    folder = checkpoint(tmp_path, 3)
    assert is_complete(folder)
    invalidate(folder)
    invalidate(folder)
    assert not is_complete(folder)


def test_the_curriculum_is_written_in_one_piece(tmp_path):
    plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
    write_curriculum(tmp_path / "new", plan, 1.5)
    saved = read_curriculum(tmp_path / "new")
    assert (saved["version"], saved["seconds"], saved["log"]) == (1, 1.5, [])
    assert saved["versions"]["hf_curriculum"] == hf_curriculum.__version__
    assert saved["plan"]["num_steps"] == 2
    assert saved["description"] == plan.describe()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["curriculum.json"]
    assert read_losses(tmp_path / "new") is None


def test_losses_that_a_plan_orders_by_are_kept_beside_it(tmp_path):
    plan = make_plan(SelfPaced(epochs=2, warmup_epochs=0, easy="low"), np.zeros(4), global_batch_size=2)
    losses = np.array([3, 1, np.nan, 2], np.float32)
    write_curriculum(tmp_path, plan.decided(Observed(0, {}, losses)), 0.0)
    assert np.array_equal(read_losses(tmp_path), losses, equal_nan=True)
    assert read_curriculum(tmp_path)["log"][0]["pool"] == 2
    # A later run writes the same folder before its own first decision.
    write_curriculum(tmp_path, plan, 0.0)
    assert read_losses(tmp_path) is None


def small_vit(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))


def load_as_trainer_does(model, folder):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    load_renamed_weights(model, folder, model.load_state_dict(weights, strict=False))


def test_weights_saved_under_older_names_come_back(tmp_path):
    saved, other = small_vit(0), small_vit(1)
    saved.save_pretrained(tmp_path)
    assert set(safetensors.torch.load_file(tmp_path / "model.safetensors")) != set(saved.state_dict())
    load_as_trainer_does(other, tmp_path)
    for name, weight in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight), name


def test_weights_that_are_not_there_are_an_error(tmp_path):
    small_vit(0).vit.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks 2 weights of a ViTForImageClassification \(\['classifier.bias'"):
        load_as_trainer_does(small_vit(1), tmp_path)
    plain = torch.nn.Linear(2, 2)
    result = plain.load_state_dict({"weight": plain.weight}, strict=False)
    with pytest.raises(ValueError, match=r"it lacks 1 weights \(\['bias'\] …\) and has 0 others"):
        load_renamed_weights(plain, tmp_path, result)


SIZE = 160


def picture(seed):
    """A PNG of random width, as bytes."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4 + seed % 7, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": f"{seed}.png"}


@functools.cache
def captioned(rows=SIZE):
    """Captions with five to a picture, and a noun count full of ties."""
    return Dataset.from_dict(
        {
            "image": [picture(row // 5) for row in range(rows)],
            "caption": [f"caption {row} of {'many ' * (row % 4)}words" for row in range(rows)],
            "noun_count": np.arange(rows, dtype=np.float32) // 5 % 4,
        },
        Features({"image": Image(), "caption": Value("string"), "noun_count": Value("float32")}),
    )


class PairCollator:
    """A number of each picture and caption."""

    columns = ("image", "caption")

    def __call__(self, rows):
        x = [
            [len(row["caption"]) / 30, row["image"].width / 10, *np.asarray(row["image"])[0, 0, :2] / 255]
            for row in rows
        ]
        return {
            "x": torch.tensor(x, dtype=torch.float32),
            "labels": torch.tensor([len(row["caption"]) % 2 for row in rows]),
        }


class OtherCollator(PairCollator):
    """The same under another name."""


def permuted(rows):
    """The data in another order of its rows."""
    return captioned().select(rows)


def other_column(name, order):
    """One column's values in another order."""
    data = captioned().cast_column("image", Image(decode=False))
    values = data[name][:]
    features = captioned().features
    changed = {**{other: data[other][:] for other in data.column_names}, name: [values[row] for row in order]}
    return Dataset.from_dict(changed, features)


@pytest.fixture
def run(tmp_path):
    """`run(data, curriculum, resume=…, **arguments)` trains to the end, with a checkpoint after step 5."""

    def train(data=None, curriculum=None, *, resume=None, collator=None, name="run", **arguments):
        settings = {"score_column": "noun_count", "save_strategy": "steps", "save_steps": 5, **arguments}
        args = CurriculumTrainingArguments(
            str(tmp_path / name),
            curriculum=curriculum or Phases(2),
            per_device_train_batch_size=16,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            seed_examples=False,
            **settings,
        )
        torch.manual_seed(0)
        trainer = CurriculumTrainer(
            Net(), args, train_dataset=captioned() if data is None else data, data_collator=collator or PairCollator()
        )
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / resume / "checkpoint-5"))
        return trainer

    return train


def rows_within_ties():
    """All rows, those of equal noun counts in another order."""
    counts = np.array(captioned()["noun_count"])
    return np.concatenate([np.random.default_rng(0).permutation(np.flatnonzero(counts == n)) for n in range(4)])[
        np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    ]


def swapped(first, second):
    order = np.arange(SIZE)
    order[[first, second]] = second, first
    return order


class TestOtherData:
    @pytest.mark.parametrize(
        ("data", "found"),
        [
            (lambda: other_column("caption", range(SIZE)[::-1]), r"`caption` of 160 differs \(first: row 0\)"),
            (lambda: other_column("image", range(SIZE)[::-1]), r"`image` of 160 differs \(first: row 0\)"),
            (lambda: permuted(rows_within_ties()), r"`image` and `caption` of \d+ differ \(first: row \d\)"),
            (lambda: permuted(swapped(20, 41)), r"`image` and `caption` of 2 differ \(first: row 20\)"),
        ],
        ids=["captions", "images", "ties", "two"],
    )
    def test_a_run_is_not_resumed_on_other_data(self, run, data, found):
        run()
        assert data()["noun_count"][:] == captioned()["noun_count"][:]  # the scores alone would not tell
        with pytest.raises(ValueError, match="was made for other data: 160 rows then and now, but " + found):
            run(data(), resume="run")

    def test_nor_without_scores_on_other_rows(self, run):
        data = captioned(200)
        rule = {"curriculum": IID(epochs=1), "score_column": None}
        run(data.select(range(160)), **rule)
        with pytest.raises(ValueError, match=r"other data: 160 rows then and now, but `image` and `caption` of 160"):
            run(data.select(range(40, 200)), resume="run", **rule)
        with pytest.raises(ValueError, match="was made for 160 rows but train_dataset has 200"):
            run(data, resume="run", **rule)

    def test_but_where_it_is_asked_for(self, run, caplog):
        run()
        with caplog.at_level(logging.WARNING):
            trainer = run(permuted(swapped(20, 41)), resume="run", resume_on_other_data=True)
        assert trainer.state.global_step == trainer.plan.num_steps
        assert "differ (first: row 20). The run continues: resume_on_other_data=True." in caplog.text

    def test_another_collator_or_transform(self, run):
        run()
        with pytest.raises(ValueError, match="other data: its collator was PairCollator, is OtherCollator"):
            run(resume="run", collator=OtherCollator())
        with pytest.raises(ValueError, match=r"its transform was none, is .*<lambda>\. The rest of"):
            run(captioned().with_transform(lambda rows: rows), resume="run")

    def test_equal_data_is_resumed_exactly(self, run, tmp_path):
        rule = Phases(2, easy="low")
        whole = run(curriculum=rule)
        captioned().save_to_disk(tmp_path / "saved")
        chunked = captioned().select([1, 0, *range(2, 160)]).select([1, 0, *range(2, 160)])
        renamed = captioned().rename_column("noun_count", "nouns").add_column("note", ["new"] * SIZE)
        for number, (data, column) in enumerate(
            [(load_from_disk(tmp_path / "saved"), "noun_count"), (chunked, "noun_count"), (renamed, "nouns")]
        ):
            again = run(data, rule, resume="run", name=f"again{number}", score_column=column)
            assert again.state.global_step == whole.state.global_step
            for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
                assert torch.equal(one, other)

    def test_a_renamed_score_is_the_same_and_turned_around_is_not(self, run):
        def scored(column, easy="low"):
            renamed = captioned().rename_column("noun_count", column)
            return attach_provenance(renamed, {column: ScoreProvenance(column, "counted", easy=easy)})

        run(scored("counts"), score_column="counts")
        run(scored("nouns"), resume="run", name="again", score_column="nouns")
        with pytest.raises(ValueError, match="easy has changed since it was saved"):
            run(scored("nouns", "high"), resume="run", score_column="nouns")
        others = scored("nouns").map(lambda row: {"nouns": 3 - row["nouns"]})
        with pytest.raises(
            ValueError, match=r"score_column has changed since it was saved \(was 'counts', is 'nouns'"
        ):
            run(others, resume="run", score_column="nouns")


@dataclass(frozen=True)
class Halves(Curriculum):
    """The easier half, then the harder one."""

    type = "halves"
    swap = False

    def stages(self, ranking, budget, log=()):
        halves = [(0, len(ranking) // 2), (len(ranking) // 2, len(ranking))]
        return tuple(
            Stage(number, f"half {number + 1}", "a half", (part,), len(ranking) // 2)
            for number, part in enumerate(halves[::-1] if Halves.swap else halves)
        )

    def nominal_epochs(self, budget, ranking):
        return 1.0


class TestOtherOrder:
    def test_a_rule_whose_code_changed(self, run, monkeypatch):
        run(curriculum=Halves())
        monkeypatch.setattr(Halves, "swap", True)
        found = (
            r"half 1 had the positions \[\[0, 80\]\] of the order for its pool and has \[\(80, 160\)\]. The code of"
        )
        with pytest.raises(
            ValueError, match=f"rule and scores are the same, but {found} Halves.* as here, so the code"
        ):
            run(curriculum=Halves(), resume="run", resume_on_other_data=True)

    def test_a_library_that_cuts_otherwise(self, run, monkeypatch, tmp_path):
        run(curriculum=Phases(3, cut="rank"))
        file = tmp_path / "run" / "checkpoint-5" / "curriculum.json"
        facts = read_curriculum(file.parent)
        write_sealed(file, {**facts, "versions": {**facts["versions"], "hf_curriculum": "0.0.9"}})
        stages = Phases.stages

        def cut_otherwise(self, ranking, budget, log=()):
            first, *others = stages(self, ranking, budget, log)
            fewer = ((0, first.pool_size - 1),)
            return (Stage(0, first.name, first.rule, fewer, first.num_draws), *others)

        monkeypatch.setattr(Phases, "stages", cut_otherwise)
        with pytest.raises(
            ValueError, match=r"phase 1 had pool=53 and has pool=52.* saved with hf_curriculum 0\.0\.9; h"
        ):
            run(curriculum=Phases(3, cut="rank"), resume="run")

    def test_other_draws_from_the_same_pools(self, run, monkeypatch):
        run()
        positions = Stage.positions
        monkeypatch.setattr(Stage, "positions", lambda self, *where: positions(self, *where)[::-1])
        with pytest.raises(ValueError, match="but the rows of steps 6 to 15 are others"):
            run(resume="run")

    def test_the_next_rows_are_those_of_the_steps(self):
        plan = make_plan(IID(epochs=4), np.zeros(10), global_batch_size=2)
        steps = [next_rows(plan, step, step + 2)["digest"] for step in range(18)]
        assert len(set(steps)) == 18
        other = make_plan(IID(epochs=4), np.zeros(10), global_batch_size=2, seed=1)
        assert next_rows(other, 0, 2)["digest"] != steps[0]


class TestDamage:
    """One clear error for each way in which `curriculum.json` can be broken."""

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", r"is damaged \(JSONDecodeError: Expecting value"),
            ('{"version": 1, "plan"', r"is damaged \(JSONDecodeError"),
            ("[]", r"is damaged \(TypeError"),
            ("{}", r"is damaged \(KeyError: 'seal'"),
            ('{"seal": "0123456789abcdef", "version": 1}', r"is damaged \(KeyError: 'versions'"),
        ],
    )
    def test_it_is_said(self, tmp_path, text, found):
        (tmp_path / "curriculum.json").write_text(text)
        with pytest.raises(ValueError, match=rf"curriculum\.json {found}.*Take another checkpoint"):
            read_curriculum(tmp_path)

    def test_an_unfinished_write_leaves_the_file_before(self, tmp_path, monkeypatch):
        plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
        write_curriculum(tmp_path, plan, 1.0)

        def fail(*_):
            raise OSError("no space left")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            write_curriculum(tmp_path, plan, 2.0)
        assert read_curriculum(tmp_path)["seconds"] == 1.0

    def test_a_newer_format_is_not_guessed_at(self, tmp_path):
        write_curriculum(tmp_path, make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2), 1.0)
        facts = read_curriculum(tmp_path)
        write_sealed(tmp_path / "curriculum.json", {**facts, "version": 3, "versions": {"hf_curriculum": "9.0"}})
        with pytest.raises(
            ValueError, match=r"is in format 3, .* reads format 1: .*written by hf_curriculum 9\.0; install"
        ):
            read_curriculum(tmp_path)

    @pytest.mark.parametrize(
        ("log", "found"), [([{"round": 0}], "KeyError"), ([{"round": 0, "step": 5}], "KeyError"), (["x"], "TypeError")]
    )
    def test_a_log_of_other_code_without_its_fields(self, tmp_path, log, found):
        plan = make_plan(BabySteps(2, epochs=4, easy="low"), np.arange(16.0), global_batch_size=2)
        write_curriculum(tmp_path, plan, 0.0)
        file = tmp_path / "curriculum.json"
        write_sealed(file, {**read_curriculum(tmp_path), "log": log})
        with pytest.raises(ValueError, match=rf"A decision in the log of .*curriculum\.json cannot be read \({found}"):
            resume_plan(read_curriculum(tmp_path), plan, tmp_path)


def test_the_columns_that_a_rule_reads_are_compared():
    facts = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2).fingerprint()
    with pytest.raises(
        ValueError, match=r"columns has changed since it was saved \(the columns themselves differ\), and"
    ):
        validate_same_plan({**facts, "columns": {"length": "a"}}, {**facts, "columns": {"length": "b"}}, "folder")
