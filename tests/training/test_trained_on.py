"""A saved model says what it was trained on, and its scores do too."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Grounding,
    ModelLoss,
    Phases,
    add_scores,
    concat_scored,
    hold_out,
    load_scored,
    make_scenes,
    read_provenance,
    save_scored,
)
from hf_curriculum.fingerprint import share_trained_on, sketch_texts
from hf_curriculum.models.captioner import new_captioner
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.training import publishing
from hf_curriculum.training.checkpoints import read_curriculum

SMALL = {"image_size": 16, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Halves of scenes, and the folder of a captioner that was trained on the first one."""
    folder = tmp_path_factory.mktemp("trained")
    rows = make_scenes(80, image_size=32, captions_per_image=1, validation=0, test=0)["train"]
    rows = rows.map(lambda row, number: {"caption": f"{row['caption']} {number}"}, with_indices=True)  # none twice
    parts = hold_out(rows, 0.5)
    model, processor = new_captioner(rows, **SMALL)
    args = CurriculumTrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=16, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = CurriculumTrainer(
        model,
        args,
        data_collator=CaptionCollator(processor.tokenizer, processor.image_processor),
        train_dataset=parts["train"],
        processing_class=processor,
    )
    trainer.save_model(str(folder / "untrained"))
    trainer.train()
    with mock.patch.object(publishing, "sketch_texts", wraps=sketch_texts) as sketched:
        for name in ("again", "model"):
            trainer.save_model(str(folder / name))
    assert sketched.call_count == 1, "captions of one data set are read once, however often a model is saved"
    return parts["train"], parts["validation"], folder


def test_the_model_s_folder_says_so_and_checkpoints_do_not(trained):
    rows, _, folder = trained
    saved = read_curriculum(folder / "model")
    assert saved["trained_on"] == {"examples": 80, "captions": sketch_texts(rows)}
    assert saved["plan"]["num_rows"] == 40
    (checkpoint,) = folder.glob("checkpoint-*")
    assert "trained_on" not in read_curriculum(checkpoint)
    assert not (folder / "untrained" / "curriculum.json").exists()


def test_scores_by_it_say_how_much_of_the_rows_it_saw(trained, tmp_path):
    rows, others, folder = trained
    loss, grounding = ModelLoss(str(folder / "model")), Grounding(str(folder / "model"), k=1).fit(others)
    for part, share in ((rows, 1.0), (others, 0.0)):
        scored = add_scores(part, [loss, grounding])
        save_scored(scored, tmp_path / f"{share}")
        for made in (read_provenance(scored), read_provenance(load_scored(tmp_path / f"{share}"))):
            assert made["model_loss"].trained_on["examples"] == 80
            assert {column: share_trained_on(one, part) for column, one in made.items()} == {
                "model_loss": share,
                "grounding": share,
            }
    unknown = add_scores(rows, ModelLoss(str(folder / "untrained")))
    assert share_trained_on(read_provenance(unknown)["model_loss"], rows) is None


def test_columns_of_several_models_say_nothing(trained):
    rows, _, folder = trained
    parts = [add_scores(rows, ModelLoss(str(folder / name))) for name in ("model", "untrained")]
    joined = read_provenance(concat_scored(parts, same_scorer=False))["model_loss"]
    assert joined.trained_on == {}
    before = read_provenance(parts[0])["model_loss"].to_dict()
    before.pop("trained_on")  # as it was scored by an earlier version
    earlier = attach_provenance(parts[0], {"model_loss": ScoreProvenance(**before)})
    assert read_provenance(concat_scored([parts[0], earlier]))["model_loss"].trained_on == {}


def test_a_run_without_captions_has_its_examples(make_trainer, tmp_path):
    trainer = make_trainer(Phases(2, 2, easy="low"))
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    assert read_curriculum(tmp_path / "model")["trained_on"] == {"examples": trainer.examples_seen()}
    trainer._save_curriculum()  # as a push does
    pushed = json.loads(Path(trainer.args.output_dir, "curriculum.json").read_text())
    assert pushed["trained_on"] == {"examples": trainer.examples_seen()}
