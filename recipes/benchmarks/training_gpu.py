"""What one GPU does with the library's models: runs alone, where the wheel of `hf_curriculum` and this file are.

    python training_gpu.py                             # at most 8 minutes: a table, and training_gpu.json
    python training_gpu.py --minutes 4 --out h100.json
    python training_gpu.py --device cpu --size tiny    # that it runs
    python training_gpu.py --only "GIT, compiled" "GIT, eager" --out some.json      # parts by their names

It measures in order of importance until the time is up, and names what it left out: the rate of multiplying matrices;
every model at its paper's sizes and batch; GIT compared with stock `GitForCausalLM` on the same images and captions,
one or five an image, where losses have to agree; training by `CurriculumTrainer` from JPEG files, and what the paper's
15,054,492 pairs would take; then the same compiled, with CUDA graphs. A step is forward, backward and fused AdamW, at
a learning rate of 0, so that all steps compute the same. The best of three rounds of steps counts; compiling is
printed apart. `autocast` is bf16 as in `--preset paper_fast`; with `weights` these are bf16 themselves, trained by
`MasterAdamW`.

MFU divides by the maker's figure for dense bf16, the next column by the rate measured here. Operations are counted in
forward and backward of our model, attention in full; stock is charged with ours. Waits are those of forward and
backward. WSDDN needs torchvision. Scripts that run side by side compile together, and measure in turn.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import functools
import gc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import transformers
from datasets import Dataset, Image
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import BertConfig, GitConfig, GitForCausalLM, PrinterCallback, TrainerCallback

import hf_curriculum
from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.flamingo.build import flamingo_from_config, paper_flamingo_config, small_flamingo_config
from hf_curriculum.models.git.build import git_from_config, git_from_stock, paper_git_config, small_git_config
from hf_curriculum.models.on_host import host_values, note_host_values
from hf_curriculum.names import MODELS
from hf_curriculum.tasks.alignment import AlignerConfig, AlignerModel
from hf_curriculum.tasks.detection import ConvBackboneConfig, WsddnConfig, WsddnForObjectDetection
from hf_curriculum.training.master_adamw import MasterAdamW
from hf_curriculum.training.speed import peak_of

FULL_RUN = 15_054_492  # Saha et al. 2024 (BabyLM): two epochs of each of four growing pools
TOKENS = 20
LOSS_TOLERANCE = 0.03
SMALL = {"hidden_size": 32, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
COLUMNS = {
    "model": ("model", ""),
    "mode": ("eager/compiled", ""),
    "precision": ("bf16 by", ""),
    "batch": ("batch", ""),
    "milliseconds": ("ms a step", ",.1f"),
    "pairs_per_second": ("pairs/s", ",.1f"),
    "mfu": ("MFU", ".1%"),
    "matmul_share": ("of the matmul rate", ".1%"),
    "waits": ("waits", ""),
    "gib": ("GiB", ".1f"),
}
"""Fields of a `Row` with their headings and formats."""


@dataclass
class Row:
    """What a step of a model costs; None where it cannot be known, such as the peak of a CPU."""

    model: str
    mode: str
    precision: str
    batch: str
    milliseconds: float
    pairs_per_second: float
    flops: int | None = None
    mfu: float | None = None
    matmul_share: float | None = None
    waits: int | None = None
    gib: float | None = None
    loss: float | None = None
    compile_seconds: float | None = None
    idle: float | None = None
    loader_pairs_per_second: float | None = None
    hours_of_the_paper: float | None = None


class Case(NamedTuple):
    """A model on the host, a batch for it, how many pairs or images that has, and the same in words."""

    model: nn.Module
    inputs: dict[str, Any]
    pairs: int
    batch: str


def captions(texts: int, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Random texts without padding, trained on throughout."""
    ids = torch.randint(5, min(vocabulary - 1, 30_000), (texts, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def git(tiny: bool) -> Case:
    """BabyLM's GIT, 198M parameters: batches of 32 (Saha et al. 2024, §4)."""
    images, pixels = (2, 32) if tiny else (32, 224)
    config = small_git_config(500, image_size=pixels, **SMALL) if tiny else paper_git_config()
    batch = captions(images, TOKENS, config.vocab_size) | {"pixel_values": torch.randn(images, 3, pixels, pixels)}
    return Case(git_from_config(config), batch, images, f"{images} × {pixels} px")


def flamingo(tiny: bool) -> Case:
    """BabyLM's Flamingo, 255M parameters, its tower frozen: as GIT."""
    images, pixels = (2, 32) if tiny else (32, 224)
    config = small_flamingo_config(500, image_size=pixels, **SMALL) if tiny else paper_flamingo_config()
    batch = captions(images, TOKENS, 499 if tiny else 32_768) | {
        "pixel_values": torch.randn(images, 3, pixels, pixels)
    }
    batch["input_ids"][:, 0], batch["labels"][:, 0] = config.image_token_id, -100
    return Case(flamingo_from_config(config), batch, images, f"{images} × {pixels} px")


def on_regions(name: str, small: dict[str, int], tiny: bool) -> Case:
    """A captioner of Simi-CL: batches of 10 (Zhang et al. 2022, §4.1), captions of 16 words between their ends."""
    pairs, regions = (2, 4) if tiny else (10, 36)
    sizes = {"vocab_size": 200, "region_feature_size": 8, "hidden_size": 16, **small} if tiny else {}
    config = MODELS[name].config_class(feature_dropout=0.4, **sizes)
    batch = captions(pairs, 18, config.vocab_size)
    batch["region_features"] = torch.randn(pairs, regions, config.region_feature_size)
    batch["region_mask"] = torch.ones(pairs, regions, dtype=torch.int64)
    return Case(MODELS[name](config), batch, pairs, f"{pairs} × {regions} regions")


def aligner(tiny: bool) -> Case:
    """TOnICS' aligner, 116M parameters: batches of 256 (Srinivasan et al. 2023, §4.2), 50 of VinVL's regions."""
    pairs, regions = (4, 3) if tiny else (256, 50)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = BertConfig(vocab_size=200, **small) if tiny else BertConfig()
    config = AlignerConfig(text, region_feature_size=8 if tiny else 2048)
    batch: dict[str, Any] = captions(pairs, 16, config.vocab_size)
    batch["noun_mask"] = torch.zeros_like(batch.pop("labels"))
    batch["noun_mask"][:, 3] = 1
    batch["region_features"] = torch.randn(pairs, regions, config.region_feature_size)
    batch["region_mask"] = torch.ones(pairs, regions, dtype=torch.int64)
    return Case(AlignerModel(config), batch | {"return_loss": True}, pairs, f"{pairs} × {regions} regions")


def wsddn(tiny: bool) -> Case:
    """WSOD's detector, 135M parameters: four images (Nebbia & Kovashka 2024, §4.2) in four of WSDDN's five sizes."""
    edges, proposals, classes = ((32, 48), 5, 3) if tiny else ((480, 576, 864, 1200), 500, 80)
    small = {"backbone_config": ConvBackboneConfig(((4,), (8,))), "head_sizes": (16,)} if tiny else {}
    corners = torch.rand(len(edges), proposals, 2) / 2
    boxes = torch.cat([corners, corners + 0.1 + 0.4 * torch.rand_like(corners)], -1)
    sides = torch.tensor([[edge, edge * 3 // 4] * 2 for edge in edges])
    batch = {
        "pixel_values": [torch.randn(3, edge * 3 // 4, edge) for edge in edges],
        "proposals": boxes * sides[:, None],
        "proposal_counts": torch.full((len(edges),), proposals),
        "labels": (torch.arange(classes) % 40 == 1).float().expand(len(edges), -1).contiguous(),
    }
    model = WsddnForObjectDetection(WsddnConfig(num_labels=classes, **small))
    return Case(model, batch, len(edges), f"{len(edges)} × {proposals} boxes, {edges[0]} to {edges[-1]} px")


_LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CASES: dict[str, Callable[[bool], Case]] = {
    "GIT": git,
    "Flamingo": flamingo,
    "region Transformer": functools.partial(on_regions, "transformer", _LAYERS),
    "aligner": aligner,
    "WSDDN": wsddn,
    "UpDown": functools.partial(on_regions, "updown", {"attention_size": 4}),
    "AoANet": functools.partial(on_regions, "aoanet", {"num_attention_heads": 2, "num_refiner_layers": 1}),
}
"""Every model of the library, in the order in which they are measured."""


@functools.cache
def case(name: str, tiny: bool) -> Case:
    """A case of `CASES`, built once."""
    torch.manual_seed(0)
    return CASES[name](tiny)


def stock_git(width: int, layers: int, vocabulary: int, pixels: int) -> GitForCausalLM:
    """Stock GIT with random weights and no dropout, patches of 16."""
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "initializer_range": 0.8 * width**-0.5,  # a loss that depends on the image, in small models too
    }
    vision = {**shape, "image_size": pixels, "patch_size": 16}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    return GitForCausalLM(GitConfig(vision_config=vision, vocab_size=vocabulary, **shape, **still))


@functools.cache
def stock_and_ours(tiny: bool) -> tuple[nn.Module, nn.Module]:
    """Two GITs of equal weights, whose loss is not that of guessing."""
    stock = stock_git(64, 2, 500, 64) if tiny else stock_git(768, 12, 32_778, 224)
    with torch.no_grad():
        stock.output.weight.mul_(4)  # new weights give all words about the same logit, whatever the model reads
    return stock, git_from_stock(stock)


class TimeUp(BaseException):
    """No `Exception`: what handles those would go on."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends what is done inside when the time is up."""

    def ring(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 5)  # again, should a `__del__` have swallowed it
    try:
        yield
    except TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Operations(TorchDispatchMode):
    """Counts multiplications and additions, and on a CPU what a GPU would have been waited for.

    `FlopCounterMode` has the same formulas, but its hooks fail in a forward pass that computes gradients, as the loss
    of our captioners does.
    """

    flops, waits = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts, and goes on."""
        found = func(*args, **(kwargs or {}))
        self.waits += func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=found)
        return found


def waits_in(passes: Callable[[], object], device: torch.device) -> int:
    """How often the host waits for the device."""
    if device.type != "cuda":
        with Operations() as seen:
            passes()
        return seen.waits
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            passes()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in caught)


@contextmanager
def alone() -> Iterator[None]:
    """No other process of this script measures meanwhile."""
    with open(Path(tempfile.gettempdir()) / "training_gpu.lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Logs(TrainerCallback):
    """Keeps what is logged of speed; the second half of the steps is trained `alone`."""

    def __init__(self) -> None:
        self.entries: list[dict[str, float]] = []
        self._alone = ExitStack()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Half of the steps are done."""
        if state.global_step == state.max_steps // 2:
            self._alone.enter_context(alone())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All of them are."""
        self._alone.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Entries with a loss."""
        if "loss" in (logs or {}):
            self.entries.append(dict(logs))


class Bench:
    """Measures on one device.

    Args:
        device: where.
        tiny: sizes that show that it runs and no more.
        backend: of `torch.compile`; None compiles nothing. Inductor compiles to CUDA graphs.
    """

    def __init__(self, device: torch.device, tiny: bool, backend: str | None) -> None:
        self.device, self.tiny, self.backend = device, tiny, backend
        self.mode = "reduce-overhead" if backend == "inductor" else None
        self.peak = peak_of(device)
        self.workers = 1 if tiny else 12
        self.loader_rate: float | None = None
        self.round_seconds = 0.05 if tiny else 0.5
        size = 128 if tiny else 8192
        one, two = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
        self.rate = 2 * size**3 / self.best_of(lambda: one @ two)[1]

    def best_of(self, step: Callable[[], object]) -> tuple[float, float]:
        """Seconds of the first step, and of one step in the best of three rounds."""

        def seconds(steps: int) -> float:
            self.wait()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            self.wait()
            return (time.perf_counter() - start) / steps

        first = seconds(1)
        with alone():
            once = max(seconds(2), seconds(1))  # a CUDA graph is made in the second step
            steps = max(1, min(20, int(self.round_seconds / once)))
            return first, min(seconds(steps) for _ in range(3))

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A batch as a trainer hands it to a model: on the device, small values noted on the host."""

        def moved(value: Any) -> Any:
            if isinstance(value, list):
                return [moved(one) for one in value]
            return value.to(self.device) if isinstance(value, torch.Tensor) else value

        batch = {name: moved(value) for name, value in inputs.items()} | host_values(inputs)
        note_host_values(batch)
        return batch

    def row(self, name: str, mode: str, given: Case, precision: str = "autocast", flops: int | None = None) -> Row:
        """What a step costs."""
        model = copy.deepcopy(given.model).to(self.device).train()
        by_weights = precision == "weights"
        model = model.bfloat16() if by_weights else model
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = (MasterAdamW if by_weights else torch.optim.AdamW)(weights, lr=0.0, fused=True)
        inputs = self.on_device(given.inputs)
        losses: list[torch.Tensor] = []

        def passes(called: Callable[..., Any] = model) -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not by_weights):
                loss = called(**inputs).loss
            loss.backward()
            losses[:] = [loss.detach()]

        if flops is None:
            with sdpa_kernel(SDPBackend.MATH), Operations() as seen:  # other kernels have no formula everywhere
                passes()
            flops = seen.flops
        if mode == "compiled":
            torch.compiler.reset()
            passes = functools.partial(passes, torch.compile(model, backend=self.backend, mode=self.mode))

        def step() -> None:
            optimizer.zero_grad()
            passes()
            optimizer.step()

        self.forget()
        first, seconds = self.best_of(step)
        row = self.finished(Row(name, mode, precision, given.batch, 1000 * seconds, given.pairs / seconds, flops))
        row.loss = losses[0].item()
        row.compile_seconds = first if mode == "compiled" else None
        if mode == "eager" or self.device.type == "cuda":
            row.waits = waits_in(passes, self.device)
        return row

    def forget(self) -> None:
        """Frees the device's memory, and begins to look for its peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def finished(self, row: Row) -> Row:
        """A row with its shares and its memory."""
        per_second = None if row.flops is None else row.flops / row.milliseconds * 1000
        row.matmul_share = None if per_second is None else per_second / self.rate
        row.mfu = None if per_second is None or self.peak is None else per_second / self.peak
        row.gib = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else None
        return row

    def model(self, name: str, mode: str, precision: str = "autocast") -> Iterator[Row]:
        """A row of a case."""
        yield self.row(name, mode, case(name, self.tiny), precision)

    def compared(self, captions_each: int, mode: str) -> Iterator[Row]:
        """Our GIT and stock GIT on the same images and captions, whose losses have to agree."""
        stock, ours = stock_and_ours(self.tiny)
        torch.manual_seed(1)
        number, size, vocabulary = (2, 64, 500) if self.tiny else (32, 224, 32_778)
        images, texts = torch.randn(number, 3, size, size), captions(captions_each * number, TOKENS, vocabulary)
        index = torch.arange(captions_each * number) % number
        packed = {**texts, "pixel_values": images} | ({"image_index": index} if captions_each > 1 else {})
        apart = {**texts, "pixel_values": images[index]}
        told = f"{number} × {size} px, {captions_each} caption{'s' * (captions_each > 1)} each"
        mine = self.row("ours from stock GIT", mode, Case(ours, packed, len(index), told))
        yield mine
        theirs = self.row("stock GIT", mode, Case(stock, apart, len(index), told), flops=mine.flops)
        if not abs(mine.loss - theirs.loss) <= LOSS_TOLERANCE:
            raise ValueError(f"The losses {mine.loss} of ours and {theirs.loss} of stock differ: no comparison.")
        yield theirs

    def trainer(self, folder: Path, mode: str, steps: int) -> tuple[CurriculumTrainer, Logs]:
        """Of GIT on JPEG files, as `--preset paper_fast` does, in batches of `git`."""
        batch, pixels = case("GIT", self.tiny).inputs["pixel_values"].shape[::3]
        drawn = make_scenes(20 if self.tiny else 200, image_size=256, validation=0, test=0)["train"]
        for number, image in enumerate(drawn["image"]):
            image.convert("RGB").save(folder / f"{number}.jpg", quality=90)
        places = [row % len(drawn) for row in range(batch * steps)]
        rows = {
            "image": [str(folder / f"{place}.jpg") for place in places],
            "caption": [drawn["caption"][place] for place in places],
        }
        tokenizer, logs = train_wordpiece(drawn["caption"], 400), Logs()
        backend = "torchvision" if importlib.util.find_spec("torchvision") else "pil"
        processor = make_image_processor(pixels, backend=backend)
        args = CurriculumTrainingArguments(
            str(folder / "out"),
            curriculum=IID(epochs=1),
            per_device_train_batch_size=batch,
            bf16=True,
            use_cpu=self.device.type == "cpu",
            torch_compile=mode == "compiled",
            torch_compile_backend=self.backend if mode == "compiled" else None,  # a name alone would compile
            torch_compile_mode=self.mode if mode == "compiled" else None,
            uint8_images=True,
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            learning_rate=1e-5,
            dataloader_num_workers=self.workers,
            dataloader_prefetch_factor=4,
            accelerator_config={"non_blocking": True},
            logging_steps=steps // 2,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = CurriculumTrainer(
            copy.deepcopy(case("GIT", self.tiny).model),
            args,
            data_collator=CaptionCollator(tokenizer, processor, max_length=25, pad_to_multiple_of=25),
            train_dataset=Dataset.from_dict(rows).cast_column("image", Image()),
            callbacks=[logs],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer, logs

    def from_files(self, mode: str) -> Iterator[Row]:
        """A row of training, of the second half of its steps; the first time also measures the loader alone."""
        steps = 8 if self.tiny else 200  # half of them are more than workers prefetch
        with tempfile.TemporaryDirectory() as folder:
            trainer, logs = self.trainer(Path(folder), mode, steps)
            batch = trainer.args.train_batch_size
            if self.loader_rate is None:
                loader = iter(trainer.get_train_dataloader())
                for _ in islice(loader, steps // 2):
                    pass
                start = time.perf_counter()
                self.loader_rate = batch * sum(1 for _ in loader) / (time.perf_counter() - start)
            torch.compiler.reset()
            self.forget()
            trainer.train()
        found = logs.entries[-1]
        rate = found["examples_per_second"]
        row = self.finished(Row("GIT, trained from JPEGs", mode, "autocast", f"{batch}", 1000 * batch / rate, rate))
        row.idle, row.mfu, row.loader_pairs_per_second = found["idle"], found.get("mfu"), self.loader_rate
        row.matmul_share = None if row.mfu is None else row.mfu * self.peak / self.rate
        row.hours_of_the_paper = FULL_RUN / rate / 3600
        yield row

    def work(self) -> dict[str, Callable[[], Iterator[Row]]]:
        """What to measure, the most important first."""
        run = functools.partial
        first = ("GIT", "GIT in bf16 weights", "training")
        eager = (*first[:2], "stock GIT, 1 caption", "stock GIT, 5 captions", *list(CASES)[1:], first[2])
        compiled = (*first, *list(CASES)[1:5], "stock GIT, 1 caption", *list(CASES)[5:], "stock GIT, 5 captions")
        found = {}
        for mode, names in (("eager", eager), ("compiled", compiled if self.backend else ())):
            special = {
                "GIT in bf16 weights": run(self.model, "GIT", mode, "weights"),
                "training": run(self.from_files, mode),
                "stock GIT, 1 caption": run(self.compared, 1, mode),
                "stock GIT, 5 captions": run(self.compared, 5, mode),
            }
            found |= {f"{name}, {mode}": special.get(name, run(self.model, name, mode)) for name in names}
        return found


def table(rows: Sequence[dict[str, Any]], columns: dict[str, tuple[str, str]]) -> str:
    """Rows as a Markdown table: of each column's field its heading and format."""

    def cell(value: Any, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = ["| " + " | ".join(heading for heading, _ in columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(cell(row.get(name), form) for name, (_, form) in columns.items()) + " |")
    return "\n".join(lines)


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """How many times faster ours is than stock, eager and compiled."""
    found = {(row.batch, row.model, row.mode): row for row in rows}
    modes = (("eager", "eager"), ("compiled", "compiled"), ("compiled", "eager"))
    result = []
    for batch in dict.fromkeys(row.batch for row in rows if row.model == "stock GIT"):
        for mine, theirs in modes:
            ours, stock = found.get((batch, "ours from stock GIT", mine)), found.get((batch, "stock GIT", theirs))
            if ours and stock:
                ratio = ours.pairs_per_second / stock.pairs_per_second
                losses = {"loss_of_ours": ours.loss, "loss_of_stock": stock.loss}
                result.append({"batch": batch, "ours": mine, "stock": theirs, "ratio": ratio, **losses})
    return result


def described(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    peak = report["peak_flops_per_second"]
    lines = [
        f"{report['device']}, torch {report['torch']}, transformers {report['transformers']}, {report['date']}. "
        f"Matrices are multiplied in bf16 at {report['matmul_flops_per_second'] / 1e12:,.3g} TFLOP/s"
        + ("." if peak is None else f"; the maker says {peak / 1e12:,.0f}."),
        "",
        table(report["rows"], COLUMNS),
        "",
    ]
    for one in report["comparisons"]:
        lines.append(
            f"- {one['batch']}: ours {one['ours']} is {one['ratio']:.2f} × as fast as stock {one['stock']} (losses "
            f"{one['loss_of_ours']:.4f} and {one['loss_of_stock']:.4f})."
        )
    for row in report["rows"]:
        if row["hours_of_the_paper"]:
            lines.append(
                f"- Training, {row['mode']}: idle {row['idle']:.1%}; the loader alone gives "
                f"{row['loader_pairs_per_second']:,.1f} pairs/s by {report['workers']} workers. BabyLM's {FULL_RUN:,} "
                f"pairs would take {row['hours_of_the_paper']:,.1f} hours (projected, not run)."
            )
        if row["compile_seconds"]:
            told = f"{row['model']} ({row['precision']}, {row['batch']})"
            lines.append(f"- Compiling {told}: {row['compile_seconds']:.0f} s, in no time above.")
    lines += [f"- Failed: {name}: {error}" for name, error in report["failed"].items()]
    lines += [f"- Left out, the time was up: {name}." for name in report["left_out"]]
    return "\n".join(lines)


def measure(
    bench: Bench, seconds: float, write: Callable[[dict[str, Any]], None], only: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of what was measured until the time was up; it is written after each part, too."""
    work, rows, failed = bench.work(), [], {}
    work = {name: work[name] for name in only or work}
    left = list(work)
    cuda = bench.device.type == "cuda"

    def report() -> dict[str, Any]:
        return {
            "device": torch.cuda.get_device_name() if cuda else "CPU",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "hf_curriculum": hf_curriculum.__version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "size": "tiny" if bench.tiny else "paper",
            "backend": bench.backend,
            "workers": bench.workers,
            "matmul_flops_per_second": bench.rate,
            "peak_flops_per_second": bench.peak,
            "rows": [asdict(row) for row in rows],
            "comparisons": ratios(rows),
            "failed": failed,
            "left_out": left,
        }

    with time_limit(seconds):
        for name, measured in work.items():
            start = time.perf_counter()
            try:
                for row in measured():
                    rows.append(row)
            except Exception as error:  # the rest of the time is worth as much without it
                traceback.print_exc()
                failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            left.remove(name)
            bench.forget()
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
            write(report())
    write(found := report())
    return found


def main() -> None:
    """Measures, prints a table and writes a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--minutes", type=float, default=8, help="from the start of the process")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--size", choices=("paper", "tiny"), default="paper", help="tiny: that it runs")
    parser.add_argument(
        "--backend", help="of torch.compile: inductor; on a CPU nothing is compiled unless it is named"
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="PART", help="instead of all: names as printed")
    parser.add_argument("--out", type=Path, default=Path("training_gpu.json"), help="the figures as JSON")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        # It takes compiling for exporting, and a ViT's compiled attention then has a mask that no fused kernel takes.
        transformers.masking_utils.is_torchdynamo_exporting = lambda: False
    backend = options.backend or ("inductor" if options.device == "cuda" else None)
    bench = Bench(torch.device(options.device), options.size == "tiny", backend)
    gone = time.time() - psutil.Process(os.getpid()).create_time()

    def write(report: dict[str, Any]) -> None:
        options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")

    if unknown := set(options.only) - set(bench.work()):
        parser.error(f"--only names no part: {', '.join(sorted(unknown))}. There are: {', '.join(bench.work())}.")
    report = measure(bench, 60 * options.minutes - gone - 5, write, options.only)
    print(described(report))
    sys.exit(1 if report["failed"] else 0)


if __name__ == "__main__":
    main()
