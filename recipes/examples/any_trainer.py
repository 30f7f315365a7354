"""A curriculum for a trainer of your own, here with a focal loss: `python recipes/examples/any_trainer.py OUT`.

`with_curriculum` takes any subclass of `Trainer`, also TRL's and those of Sentence Transformers.
"""

import sys
from pathlib import Path

import torch
from transformers import Trainer, ViTConfig, ViTForImageClassification, default_data_collator, set_seed

from hf_curriculum import Growing, make_image_processor, make_scenes, with_curriculum


class FocalTrainer(Trainer):
    """Weights each image by how unsure the model is of its class."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(pixel_values=inputs["pixel_values"])
        losses = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        loss = ((1 - torch.exp(-losses)) ** 2 * losses).mean()
        return (loss, outputs) if return_outputs else loss


def main(out: Path) -> None:
    set_seed(0)
    processor = make_image_processor(32)

    def encode(batch):
        pixels = processor(batch["image"], return_tensors="np")["pixel_values"]
        counts = [len(objects) for objects in batch["objects"]]
        return {"pixel_values": list(pixels), "labels": [min(n, 4) for n in counts], "crowd": counts}

    data = make_scenes(120, image_size=32)["train"]
    data = data.map(encode, batched=True, remove_columns=data.column_names)
    CurriculumFocalTrainer = with_curriculum(FocalTrainer)
    args = CurriculumFocalTrainer.args_class(
        out,
        curriculum=Growing(epochs=4, easy="low"),  # few objects first
        score_column="crowd",
        global_batch_size=16,
        report_to="none",
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=5, **sizes))
    trainer = CurriculumFocalTrainer(model, args, train_dataset=data, data_collator=default_data_collator)
    print(trainer.plan.describe())
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
