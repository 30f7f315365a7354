"""The memory of pretraining on a large text corpus: the largest growth of the process over its imports.

    python recipes/benchmarks/text_memory.py                             # 100M words: minutes, most of them to write
    python recipes/benchmarks/text_memory.py --words 1_000_000 --steps 3 # seconds
    python recipes/benchmarks/text_memory.py --whole-tokenizer           # trains the tokenizer on all words, too

Counted is the process's unique memory, twice: `unique` is its anonymous memory, which the kernel cannot take back,
`uss` the unique set size, which also has the pages of the memory-mapped corpus as long as no other process maps them;
those are the kernel's cache, which it drops when it needs room.

The corpus is made of made-up words: 500,000 of them, word r with a probability of 1 / (r + 2.7), in lines of 12 words
on average; the same in every run. The text stage is the embedded preset's: its GIT (96 wide, 3 layers, 1,000 entries),
lines truncated to 50 tokens, batches of 256 in two accumulation steps as in the recipe, AdamW, one shuffled pass over
all lines, of which the first steps are run. Everything is in one process, the loader included. The tokenizer is
trained beforehand in a process of its own, from the first 100,000 lines, or from all words with its time and growth.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import AutoTokenizer, TrainerCallback

from hf_curriculum import IID, CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, train_wordpiece
from hf_curriculum.data.text import Texts, load_text
from hf_curriculum.models.git.build import git_from_config, small_git_config

TYPES, WORDS_PER_LINE, FEW_LINES = 500_000, 12, 100_000
SYLLABLES = [first + second for first in "bdfgklmnprstvwxz" for second in "aeiou"]
_AT_ONCE = 1 << 20


def memory_mb() -> dict[str, float]:
    """The process's anonymous memory (`unique`) and its unique set size (`uss`), in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    uss = sum(kilobytes[name] for name in ("Private_Clean", "Private_Dirty"))
    return {"unique": kilobytes["Anonymous"] * 1024 / 1e6, "uss": uss * 1024 / 1e6}


def growth_mb(work: Callable[[], object]) -> dict[str, float]:
    """The largest growth of each figure of `memory_mb` while `work` runs."""
    gc.collect()
    before = peak = memory_mb()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = {name: max(peak[name], value) for name, value in memory_mb().items()}

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return {name: max(peak[name], value) - before[name] for name, value in memory_mb().items()}


def made_up(number: int) -> str:
    """A word of its own for every number, the shorter the smaller it is."""
    word, number = "", number + 1
    while number:
        number, rest = divmod(number - 1, len(SYLLABLES))
        word = SYLLABLES[rest] + word
    return word


def text_parts(words: int, types: int = TYPES) -> Iterator[str]:
    """A corpus of so many words, in parts that end with a line."""
    every = [made_up(number) for number in range(types)]
    table = np.array([word + " " for word in every] + [word + "\n" for word in every], dtype=object)
    shares = 1 / (np.arange(types) + 2.7)
    bounds = np.cumsum(shares / shares.sum())
    draws = np.random.default_rng(0)
    for start in range(0, words, _AT_ONCE):
        count = min(_AT_ONCE, words - start)
        drawn = np.minimum(np.searchsorted(bounds, draws.random(count)), types - 1)
        last = draws.random(count) < 1 / WORDS_PER_LINE
        last[-1] = True
        yield "".join(table[drawn + types * last])


def corpus_file(folder: Path, options: argparse.Namespace) -> Path:
    """Where the corpus is."""
    return folder / f"made_up_{options.words}.train"


class StopAfter(TrainerCallback):
    """Ends the training after so many steps; the plan is of the whole corpus all the same."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Stops at the last one."""
        control.should_training_stop = state.global_step >= self.steps


def train_tokenizer(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Trains and saves the tokenizer; seconds and growth."""
    corpus = load_text(corpus_file(folder, options))
    if not options.whole_tokenizer:
        corpus = corpus.select(range(min(FEW_LINES, len(corpus))))
    start = time.perf_counter()

    def work() -> None:
        train_wordpiece(Texts(corpus), options.vocab_size, layout="compact").save_pretrained(folder / "tokenizer")

    grown = growth_mb(work)
    seconds = time.perf_counter() - start
    return {"tokenizer_lines": len(corpus), "tokenizer_mb": grown["unique"], "tokenizer_s": seconds}


def train(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """The first steps of the text stage; growth over the imports, after each part of it and at its highest."""
    facts, before = {}, memory_mb()["unique"]

    def work() -> None:
        corpus = load_text(corpus_file(folder, options))
        facts.update(lines=len(corpus), corpus_mb=memory_mb()["unique"] - before)
        tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        torch.manual_seed(0)
        sizes = {"image_size": 60, "patch_size": 12, "hidden_size": 96, "vision_layers": 3, "text_layers": 3}
        model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **sizes))
        arguments = CurriculumTrainingArguments(
            str(folder / "out"),
            curriculum=IID(1),
            per_device_train_batch_size=options.batch // options.accumulate,
            gradient_accumulation_steps=options.accumulate,
            learning_rate=3e-3,
            max_grad_norm=1.0,
            weight_decay=0.01,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=10,
            seed_examples=False,
        )
        trainer = CurriculumTrainer(
            model,
            arguments,
            data_collator=CaptionCollator(tokenizer, None, max_length=50),
            train_dataset=corpus,
            callbacks=[StopAfter(options.steps)],
        )
        facts["trainer_mb"] = memory_mb()["unique"] - before
        trainer.train()
        facts["last_loss"] = trainer.state.log_history[-1]["train_loss"]

    start = time.perf_counter()
    grown = growth_mb(work)
    facts.update(growth_mb=grown["unique"], growth_uss_mb=grown["uss"])
    return {**facts, "imports_mb": before, "seconds": time.perf_counter() - start}


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, float]]] = {
    "tokenizer": train_tokenizer,
    "training": train,
}


def in_a_process(part: str, folder: Path, given: list[str]) -> dict[str, float]:
    """What a part returns, in a process that does nothing else."""
    command = [sys.executable, __file__, *given, "--part", part, "--folder", str(folder)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=100_000_000, help="of the corpus")
    parser.add_argument("--batch", type=int, default=256, help="lines per step")
    parser.add_argument("--accumulate", type=int, default=2, help="parts that a step takes its lines in")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    parser.add_argument("--vocab-size", type=int, default=1000, help="most entries of the tokenizer")
    parser.add_argument("--whole-tokenizer", action="store_true", help="train the tokenizer on all words")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="keep corpus and tokenizer here, and use those that are there")
    options = parser.parse_args()
    if options.part:
        datasets.config.HF_DATASETS_CACHE = options.folder / "cache"
        print(json.dumps(PARTS[options.part](options.folder, options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        corpus = corpus_file(folder, options)
        start = time.perf_counter()
        if not corpus.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with corpus.open("w", encoding="utf-8") as file:
                file.writelines(text_parts(options.words))
        facts = {"words": options.words, "writing_s": time.perf_counter() - start}
        for part in PARTS:
            facts |= in_a_process(part, folder, sys.argv[1:])
    print(
        f"tokenizer of {facts['tokenizer_lines']:,} lines: {facts['tokenizer_s']:,.0f} s, "
        f"{facts['tokenizer_mb']:,.0f} MB over what was there\n"
        f"{facts['words']:,} words in {facts['lines']:,} lines, {options.steps} steps of {options.batch} "
        f"in {options.accumulate} part(s): memory "
        f"grows by {facts['growth_mb']:,.0f} MB over the imports ({facts['imports_mb']:,.0f} MB), asked for ≤ 300 "
        f"({facts['growth_uss_mb']:,.0f} MB with the corpus's mapped pages); "
        f"{facts['corpus_mb']:,.0f} MB with the corpus open, {facts['trainer_mb']:,.0f} MB before the first step"
    )
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
