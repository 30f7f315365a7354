"""A curriculum of your own, its plan and a short run: `python recipes/examples/own_curriculum.py OUT`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM

import hf_curriculum as hfc
from hf_curriculum.names import CURRICULA


@dataclass(frozen=True)
class MiddleFirst(hfc.Curriculum):
    """Examples of medium difficulty first, then all of them."""

    type: ClassVar[str] = "middle_first"
    share: float = 0.5
    """The share of all examples that the first part shows."""

    def nominal_epochs(self, budget, ranking):
        return 2  # i.i.d. epochs to compare the cost with; the stages say how many steps there are

    def stages(self, ranking, budget, log=()):
        size = len(ranking)  # positions run from 0, the easiest example, to size - 1
        kept = round(size * self.share)
        start = (size - kept) // 2
        multiple = self.batch_multiple(budget)
        return (
            hfc.Stage(0, "middle", f"middle {self.share:.0%}", ((start, start + kept),), kept, multiple),
            hfc.Stage(1, "all", "all", ((0, size),), size, multiple),
        )


CURRICULA[MiddleFirst.type] = MiddleFirst  # JSON, YAML and checkpoints know it by this name


def main(out: Path) -> None:
    data = hfc.add_scores(hfc.make_scenes(100)["train"], hfc.CaptionLength())
    tokenizer = hfc.train_wordpiece(data["caption"], vocab_size=200)
    data = data.map(lambda row: tokenizer(row["caption"]), remove_columns="image")
    args = hfc.CurriculumTrainingArguments(
        out, curriculum=MiddleFirst(0.4), score_column="caption_length", global_batch_size=16, report_to="none"
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    trainer = hfc.CurriculumTrainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)),
        args,
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    print(trainer.plan.describe())
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
