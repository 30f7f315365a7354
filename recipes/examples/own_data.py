"""A captioner from a folder of photographs, easy captions first: `python recipes/examples/own_data.py PHOTOS OUT`.

PHOTOS holds images and a `captions.csv` (`file_name,caption`). Run it again after a kill: it continues.
"""

import sys
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    NounCount,
    Phases,
    add_scores,
    hold_out,
    load_captioned,
    make_image_processor,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config


def main(photos: Path, out: Path) -> None:
    data = add_scores(load_captioned(photos), NounCount(), per_image="max")  # + column noun_count
    data = hold_out(data, 0.1)  # no image is in both splits
    tokenizer = train_wordpiece(data["train"], vocab_size=2000)
    args = CurriculumTrainingArguments(
        out,
        curriculum=Phases(num_phases=3, epochs_per_phase=2, cut="value"),
        score_column="noun_count",
        global_batch_size=16,
        learning_rate=1e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
    )
    trainer = CurriculumTrainer(
        git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer)),
        args,
        data_collator=CaptionCollator(tokenizer, make_image_processor(64)),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
    )
    print(trainer.plan.describe())
    trainer.train(resume_from_checkpoint=out.is_dir() and get_last_checkpoint(str(out)) is not None)
    trainer.save_model(str(out / "model"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
