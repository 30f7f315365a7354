"""A training loop of your own in the order of a curriculum: `accelerate launch recipes/examples/own_loop.py OUT`.

Several processes see what one sees in every step. Run it again after a kill: it goes on where it was.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup, set_seed

from hf_curriculum import CaptionLength, CurriculumSampler, Phases, add_scores, make_plan, make_scenes, train_wordpiece

BATCH_SIZE, SAVE_EVERY = 16, 10


def main(out: Path) -> None:
    set_seed(0)
    stateful = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(dataloader_config=stateful, step_scheduler_with_optimizer=False)
    data = add_scores(make_scenes(200)["train"], CaptionLength())
    plan = make_plan(Phases(3, cut="value"), data, score_column="caption_length", global_batch_size=BATCH_SIZE)
    accelerator.print(plan.describe())
    tokenizer = train_wordpiece(data["caption"], vocab_size=200)

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        batch = tokenizer([one["caption"] for one in examples], padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}

    size = BATCH_SIZE // accelerator.num_processes
    loader = DataLoader(data, size, sampler=CurriculumSampler(plan), collate_fn=collate)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = get_linear_schedule_with_warmup(optimizer, 5, plan.num_steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    if (out / "step").exists():  # written last: the state that it names is complete
        step = int((out / "step").read_text())
        accelerator.load_state(out / f"state-{step}")
    for batch in loader:
        tokens = accelerator.gather((batch["labels"][:, 1:] != -100).sum()).sum()  # of all processes
        loss = model(**batch, num_items_in_batch=tokens).loss * accelerator.num_processes  # gradients are averaged
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 or step == plan.num_steps:
            accelerator.print(f"step {step} of {plan.num_steps}: loss {accelerator.reduce(loss.detach(), 'mean'):.4f}")
            accelerator.save_state(out / f"state-{step}")
            if accelerator.is_main_process:
                (out / "step").write_text(str(step))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
