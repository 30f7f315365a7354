"""LLaVA's JSON and a vision-language model, short answers first, trained by TRL.

    accelerate launch recipes/examples/vision_language.py MODEL llava.json IMAGES OUT

MODEL is a folder or a name on the Hub, such as HuggingFaceTB/SmolVLM-256M-Instruct.
TRL comes with `pip install 'hf-curriculum[vlm]'`. The loss and the score are those of a conversation's last answer.
"""

import sys

import torch
from transformers import AutoProcessor
from trl import SFTTrainer

from hf_curriculum import Phases, ResponseLength, add_scores, load_conversations, with_curriculum
from hf_curriculum.training.setup import close_process_group


def main(model: str, conversations: str, images: str, out: str) -> None:
    data = load_conversations(conversations, images=images)  # columns messages, images

    def last_turn(row):  # so that the loss counts this answer alone
        return {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}

    data = data.map(last_turn, remove_columns="messages")
    data = add_scores(data, ResponseLength(column="completion"))  # + column response_length, in words
    CurriculumSFTTrainer = with_curriculum(SFTTrainer)
    args = CurriculumSFTTrainer.args_class(
        out,
        curriculum=Phases(num_phases=3, cut="value"),
        score_column="response_length",
        global_batch_size=8,
        learning_rate=2e-5,
        max_length=None,  # a truncated prompt would lose its image
        bf16=torch.cuda.is_available(),
        report_to="none",
    )
    trainer = CurriculumSFTTrainer(
        model, args, train_dataset=data, processing_class=AutoProcessor.from_pretrained(model)
    )
    if trainer.is_world_process_zero():
        print(trainer.plan.describe())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(*sys.argv[1:5])
    close_process_group()
