"""Algorithm 1 of DisCL: hard images become a spectrum of generated ones, from their prompt to the photograph."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from tqdm.auto import tqdm

from hf_curriculum.columns import CAPTION, GUIDANCE, HARD, IMAGE, IMAGE_ID, LABEL, SOURCE_ID, require_columns
from hf_curriculum.config import digest, kind_of
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.text import write_arrow
from hf_curriculum.files import is_intact, resolved, sole_writer, validate_intact
from hf_curriculum.parts import PartFolder, data_digest, launched, wait_for_files
from hf_curriculum.provenance import ScoreProvenance, read_column
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.generation.pipelines import ImageToImage
from hf_curriculum.tasks.long_tail.generation.plan import SpectrumPlan, validate_levels, validate_seeds
from hf_curriculum.tasks.long_tail.generation.prompts import Prompts, choose_prompt, prompt_choices

logger: logging.Logger = logging.getLogger(__name__)

SEED, PROMPT = "seed", "prompt"
FILE = "spectrum.arrow"
_TIMEOUT = 6 * 3600


@dataclass(frozen=True)
class Retry:
    """Draws an image again, with other noise, while its score is too low, and keeps the best try.

    Args:
        scorer: scores image and text, such as `CLIPSimilarity("openai/clip-vit-base-patch32")`.
        at_least: a try with this score or more is the last one.
        tries: draws of an image at most.
        prompt: the text to compare it with, a template as in `prompts`; None: the prompt it was drawn from.

    Raises:
        ValueError: fewer than two tries, or a scorer that does not read images and captions, or writes several scores.

    Source: Liang et al. 2024 (DisCL), released code: up to five tries while the cosine is at most 0.3.

    Example:
        >>> from hf_curriculum.scorers.alignment.clip import CLIPSimilarity
        >>> Retry(CLIPSimilarity(), at_least=0.3).tries
        5
    """

    scorer: Scorer
    at_least: float
    tries: int = 5
    prompt: str | None = None

    def __post_init__(self) -> None:
        validate_pair_scorer(self.scorer)
        if self.tries < 2:
            raise ValueError(f"`tries={self.tries}` draws nothing again. Give at least 2, or leave `retry` out.")


def validate_pair_scorer(scorer: Any) -> None:
    """Raises a `ValueError` for what does not score an image and a text with one number."""
    columns = [getattr(scorer, name, None) for name in ("image_column", "caption_column")]
    if not isinstance(scorer, Scorer) or None in columns or {*scorer.columns} != {*columns} or len(scorer.outputs) > 1:
        raise ValueError(
            f"{kind_of(scorer)} was given to compare generated images with prompts. That takes a scorer of image "
            'and caption, such as CLIPSimilarity("openai/clip-vit-base-patch32").'
        )


@validate_arguments
def generate_spectrum(
    data: Dataset,
    pipeline: Any,
    *,
    prompts: Prompts,
    levels: Sequence[float],
    seeds: int | Sequence[int],
    folder: str | Path,
    steps: int | None = None,
    guidance_scale: float | None = None,
    from_text: bool = False,
    resize: int | tuple[int, int] | None = None,
    retry: Retry | None = None,
    lora: str | Path | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    batch_size: int = 16,
    part_images: int = 64,
    allow_all_hard: bool = False,
    label_column: str = LABEL,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float = _TIMEOUT,
) -> Dataset:
    """Generates every hard image at every guidance level λ and seed, image-to-image at strength 1 − λ.

    The cost is logged first (`plan_spectrum` computes it without drawing), and an estimate of the time after the first
    batch. Images are kept in parts, so a killed run continues with the missing ones; under `accelerate launch` each
    process draws its part, and each returns the whole. An image depends on its source, prompt, level and seed alone.
    Its noise is keyed by (image_id, seed), the same at every level, and drawn on the CPU. The number of processes, the
    device, the order and the size of batches change only rounding.

    Args:
        data: with the columns `image`, `image_id` and `hard` (`mark_hard`); `label` and `caption` go along.
        pipeline: "scenes_diffusion" (ships with the package, for the embedded scenes), any image-to-image pipeline of
            `diffusers` by name or folder, or such an object.
        prompts: a template ("a photo of {label}"), a table of class → prompts or its .csv or .json file; of several
            prompts one is chosen, keyed by (image_id, seed).
        levels: Λ, each in [0, 1): 0 is the prompt, 1 would be the real image.
        seeds: m, or the seeds.
        folder: where the parts and the finished spectrum are, on a disk that every process sees.
        steps: denoising steps of an image from noise alone; None: the pipeline's default.
        guidance_scale: of the text; None: the pipeline's default.
        from_text: level 0 from the prompt alone. Otherwise it begins at its source with the most noise, and still
            depends on it.
        resize: resizes sources to (width, height), or their shorter side to a number of pixels and the other to the
            nearest size that the pipeline can draw. None: unchanged, an error if the pipeline would squeeze them.
        retry: draw images again whose score is too low.
        lora: LoRA weights for the pipeline.
        revision: of the pipeline on the Hub.
        dtype: of a named pipeline, "float32" (the default), "float16" or "bfloat16".
        arguments: further arguments of each call of the pipeline.
        batch_size: images of one level and one size that are drawn at once.
        part_images: images of a part: what a killed process loses at most.
        allow_all_hard: draw from every image of data in which all are hard.
        label_column: the column of classes, which the spectrum has as `label`.
        rank: of this process; by default as launched.
        world_size: how many processes there are; by default as launched.
        timeout: seconds to wait for other processes without a new part.

    Returns:
        The generated images, memory-mapped: `image`, `label`, `caption`, `image_id`, `guidance` (λ, float32, with the
        provenance), `hard` (True), `source_id`, `seed`, `prompt`. Real images are not among them: `join_spectrum`.

    Raises:
        ImportError: `diffusers` is not installed.
        FileNotFoundError: there is no such pipeline, LoRA or file of prompts.
        TypeError: not a map-style data set.
        ValueError: a column is missing, or has several captions in a row; no image or every image is hard; a level,
            seed, size or prompt is invalid (see `SpectrumPlan`, `prompt_choices`). Or a source cannot be read, or has
            a size that the pipeline does not draw; the pipeline takes no strength; the folder holds parts of another
            plan.
        TimeoutError: another process has stopped.
        RuntimeError: another process of this `rank` works in the folder.

    Source: Liang et al. 2024 (DisCL), algorithm 1; λ = 1 − strength as in the released code.

    Example:
        >>> spectrum = generate_spectrum(
        ...     mark_hard(train, below=0.2), "stabilityai/stable-diffusion-xl-refiner-1.0",
        ...     prompts="a photo of {label}", levels=(0.1, 0.3, 0.5, 0.7), seeds=8, folder="spectrum",
        ... )  # doctest: +SKIP
    """
    rank, world_size = launched(rank, world_size)
    levels, seeds = validate_levels(levels), validate_seeds(seeds)
    hard = hard_images(data, allow_all_hard)
    _validate_options(hard, batch_size, part_images, resize)
    choices = prompt_choices(hard, prompts, label_column)
    options = {"revision": revision, "lora": lora, "dtype": dtype, "steps": steps, "guidance_scale": guidance_scale}
    drawer = ImageToImage(pipeline, from_text=from_text, arguments=arguments, **options)
    sources = Sources(hard, resize, drawer.factor)
    plan = SpectrumPlan(sources.sizes, levels, seeds, drawer.steps, from_text)
    logger.info("%s", plan)
    checks = None if retry is None or retry.prompt is None else prompt_choices(hard, retry.prompt, label_column)
    run = _Run(plan, drawer, sources, choices, retry, checks, batch_size)
    manifest = {"data": data_digest(sources.data), "classes": _classes(hard, label_column), **run.manifest}
    manifest["batch_size"] = batch_size
    folder = resolved(folder)
    with sole_writer(f"the share of process {rank} in {folder}", folder / f".{rank}.lock"):
        parts = PartFolder(folder, manifest, plan.images, part_images, single_process=world_size == 1)
        first = range(min(64, len(hard)))
        drawer.validate_distribution([choices[at][0] for at in first], [sources[at] for at in first])
        run.make(parts, range(rank, parts.count, world_size))
        file = folder / FILE
        if rank == 0 and not is_intact(file):
            file.unlink(missing_ok=True)
            _merge(parts, run, file, label_column, timeout)
        wait_for_files(folder, [*(parts.file(part).name for part in range(parts.count)), FILE], timeout)
        validate_intact(file)
        return Dataset.from_file(str(file))


@validate_arguments
def plan_spectrum(
    data: Dataset,
    *,
    levels: Sequence[float],
    seeds: int | Sequence[int],
    steps: int = 50,
    from_text: bool = False,
    allow_all_hard: bool = False,
) -> SpectrumPlan:
    """Plans the images of `generate_spectrum` and their cost, without loading a pipeline or reading an image.

    Args:
        data: with the columns `image`, `image_id` and `hard`.
        levels: Λ, each in [0, 1).
        seeds: m, or the seeds.
        steps: denoising steps of an image from noise alone.
        from_text: level 0 from the prompt alone.
        allow_all_hard: draw from every image of data in which all are hard.

    Raises:
        TypeError: not a map-style data set.
        ValueError: a column is missing; no image or every image is hard; as `SpectrumPlan`.

    Example:
        >>> print(plan_spectrum(marked, levels=(0.1, 0.3, 0.5, 0.7), seeds=8))  # doctest: +SKIP
    """
    hard = hard_images(data, allow_all_hard)
    return SpectrumPlan(((0, 0),) * len(hard), validate_levels(levels), validate_seeds(seeds), steps, from_text)


def hard_images(data: Dataset, allow_all_hard: bool = False) -> Dataset:
    """The rows whose image is hard."""
    require_columns(
        data.column_names,
        [IMAGE, IMAGE_ID, HARD],
        reader="Hard images are drawn again, with noise keyed by `image_id`.",
        remedy="`mark_hard(data, below=0.2)` adds `hard`; `load_labelled` brings the others.",
    )
    if GUIDANCE in data.column_names and (read_column(data, GUIDANCE).to_numpy(zero_copy_only=False) != 1).any():
        raise ValueError(
            f"Some images have a `{GUIDANCE}` below 1, so they were generated, and images of images drift away from "
            "the real ones. Give the real ones alone."
        )
    hard = read_column(data, HARD).to_numpy(zero_copy_only=False).astype(bool)
    if not hard.any():
        raise ValueError(
            f"None of {len(data):,} images is hard, so there is nothing to generate. Mark more: "
            "`mark_hard(data, below=...)` with a higher threshold."
        )
    if hard.all() and not allow_all_hard:
        raise ValueError(
            f"All {len(data):,} images are hard: the curriculum would have none to show with the generated ones. "
            "Give a lower threshold to `mark_hard`, all images and not the hard ones alone, or `allow_all_hard=True`."
        )
    ids = read_column(data, IMAGE_ID)
    if ids.null_count or "" in (kept := ids.to_pylist()) or (kept and not isinstance(kept[0], str)):
        raise ValueError(
            f"`{IMAGE_ID}` is empty in some rows, or no text. Noise is keyed by it. Give each image a text of its own."
        )
    return data.with_format(None).select(np.flatnonzero(hard))


def _validate_options(hard: Dataset, batch_size: int, part_images: int, resize: int | tuple[int, int] | None) -> None:
    """Raises a `ValueError` for what would fail, or mean something else, when the images are drawn already."""
    if batch_size < 1 or part_images < 1:
        raise ValueError(f"`batch_size={batch_size}` and `part_images={part_images}` are at least 1 image.")
    sides = [resize, resize] if resize is None or isinstance(resize, int) else list(resize)
    if resize is not None and (len(sides) != 2 or not all(isinstance(one, int) and one > 0 for one in sides)):
        raise ValueError(
            f"`resize={resize!r}` was given. It is the pixels of the shorter side, or a width and a height, such as "
            "512 or (480, 272)."
        )
    kind = hard.features.get(CAPTION)
    if kind is not None and getattr(kind, "dtype", "") not in ("string", "large_string"):
        raise ValueError(
            f"`{CAPTION}` is {kind}, and each generated image takes the one caption of its source. Give one row for "
            f"each caption (`load_captioned`), or leave the column out: data.remove_columns({CAPTION!r})."
        )


def _classes(hard: Dataset, label_column: str) -> str | None:
    """A digest of the rows' classes: a finished spectrum holds them."""
    if label_column not in hard.column_names:
        return None
    return digest(json.dumps([str(hard.features[label_column]), hard[label_column][:]]))


class Sources(Sequence[Image.Image]):
    """Hard images as the pipeline gets them; each is read once for its sizes, before anything is drawn.

    Args:
        data: the hard rows.
        resize: see `generate_spectrum`.
        factor: both sides must be multiples of it.
    """

    def __init__(self, data: Dataset, resize: int | tuple[int, int] | None, factor: int) -> None:
        columns = [name for name in (IMAGE, IMAGE_ID, LABEL, CAPTION) if name in data.column_names]
        self.all = data
        self.data: Dataset = data.with_format(None).select_columns(columns)
        self._stored: Dataset = self.data
        if getattr(data.features[IMAGE], "decode", False):
            self._stored = self.data.cast_column(IMAGE, replace(data.features[IMAGE], decode=False))
        self.ids: list[str] = data[IMAGE_ID][:]
        self.resize, self.factor = resize, factor
        self.sizes: tuple[tuple[int, int], ...] = tuple(self._size(self._read(row).size) for row in range(len(data)))
        bad = [row for row, (width, height) in enumerate(self.sizes) if width % factor or height % factor]
        if bad:
            width, height = self.sizes[bad[0]]
            raise ValueError(
                f"{len(bad):,} of {len(data):,} hard images, the first of them {self.ids[bad[0]]!r} with {width} × "
                f"{height} pixels, have sides that are no multiples of {factor}: the pipeline would squeeze them "
                f"without a word. Pass `resize=`, such as {max(factor, round(min(width, height) / factor) * factor)}."
            )
        self._cached = lru_cache(maxsize=64)(self._open)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, row: int) -> Image.Image:  # type: ignore[override]
        return self._cached(row)

    def _open(self, row: int) -> Image.Image:
        image = self._read(row)
        size = self.sizes[row]
        return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)

    def _read(self, row: int) -> Image.Image:
        try:
            return to_rgb(self._stored[row][IMAGE])
        except UnreadableImageError as error:
            raise ValueError(
                f"The hard image {self.ids[row]!r} cannot be read: {error} Nothing could be drawn from it. Leave such "
                "images out (`load_labelled` and `load_captioned` do, with `check_images=True`)."
            ) from error

    def _size(self, size: tuple[int, int]) -> tuple[int, int]:
        if self.resize is None:
            return size
        if not isinstance(self.resize, int):
            return (int(self.resize[0]), int(self.resize[1]))
        scale = self.resize / min(size)
        width, height = (max(1, round(side * scale / self.factor)) * self.factor for side in size)
        return width, height


@dataclass(frozen=True)
class _Run:
    """A plan with what draws it."""

    plan: SpectrumPlan
    drawer: ImageToImage
    sources: Sources
    choices: list[tuple[str, ...]]
    retry: Retry | None
    checks: list[tuple[str, ...]] | None
    batch_size: int

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What must be equal for parts to belong together; to read the ends of all weights takes a moment."""
        retry = None
        if self.retry is not None:
            made = self.retry.scorer.describe()
            retry = {"scorer": made.to_json(), "at_least": self.retry.at_least, "tries": self.retry.tries}
            retry["prompts"] = digest(json.dumps(self.checks))
        plan = self.plan
        return {
            "levels": plan.levels,
            "seeds": plan.seeds,
            "from_text": plan.from_text,
            "sizes": digest(json.dumps(plan.sizes)),
            "prompts": digest(json.dumps(self.choices)),
            "name": self.drawer.name if not Path(self.drawer.name).exists() else Path(self.drawer.name).name,
            "revision": self.drawer.revision,
            **self.drawer.describe(),
            "retry": retry,
            "versions": self.drawer.versions(),
        }

    def provenance(self) -> ScoreProvenance:
        """Where the images came from: kept in the feature of `guidance`."""
        made = dict(self.manifest)
        versions, name, revision = made.pop("versions"), made.pop("name"), made.pop("revision")
        return ScoreProvenance(
            GUIDANCE, "generate_spectrum", {**made, "hard": len(self.sources)}, name, revision, versions, easy="low"
        )

    def make(self, parts: PartFolder, numbers: Sequence[int]) -> None:
        """Draws those parts that are missing."""
        missing = parts.missing(numbers)
        jobs = self.plan.jobs()
        total = sum(len(parts.rows_of(part)) for part in missing)
        todo = sum(self._steps(jobs[parts.rows_of(part).start : parts.rows_of(part).stop]) for part in missing)
        with tqdm(total=total, desc="Generating images", unit="image", disable=None) as bar:
            clock = _Clock(todo, bar)
            for part in missing:
                rows = parts.rows_of(part)
                parts.write(part, self._make_part(jobs[rows.start : rows.stop], clock))
        if self.drawer.flagged:
            logger.warning(
                "%d images were blacked out by the pipeline's safety checker. The filter drops them; or load the "
                "pipeline with `safety_checker=None` and pass it as an object.",
                self.drawer.flagged,
            )

    def _steps(self, jobs: np.ndarray) -> int:
        each = np.array([self.plan.steps_of(level) for level in self.plan.levels])
        return int(each[jobs[:, 0]].sum())

    def _make_part(self, jobs: np.ndarray, clock: _Clock) -> dict[str, Any]:
        """The images of a part, PNG, the prompt of each and which try it is."""
        best: list[tuple[float, Image.Image, str, int] | None] = [None] * len(jobs)
        pending = list(range(len(jobs)))
        for attempt in count():
            drawn = [
                each for batch in self._batches(jobs, pending) for each in self._draw(jobs, batch, attempt, clock)
            ]
            scores = self._scores(jobs, drawn)
            for (at, image, prompt), score in zip(drawn, scores, strict=True):
                kept = best[at]
                if kept is None or score > kept[0]:
                    best[at] = (score, image, prompt, attempt)
            # a score of NaN is no reason to stop
            pending = [at for at in pending if self.retry and not best[at][0] >= self.retry.at_least]
            if not pending or attempt + 1 == self.retry.tries:
                break
        images = [{"bytes": _png(image), "path": None} for _, image, _, _ in best]
        return {
            IMAGE: pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            PROMPT: pa.array([prompt for _, _, prompt, _ in best]),
            "tries": np.array([attempt + 1 for *_, attempt in best], np.int32),
        }

    def _batches(self, jobs: np.ndarray, pending: Sequence[int]) -> Iterator[list[int]]:
        """Jobs of one level and one size, at most `batch_size`, in order."""
        key = lambda at: (jobs[at, 0], self.plan.sizes[jobs[at, 1]])  # noqa: E731
        for _, same in groupby(pending, key):
            together = list(same)
            for start in range(0, len(together), self.batch_size):
                yield together[start : start + self.batch_size]

    def _draw(
        self, jobs: np.ndarray, batch: list[int], attempt: int, clock: _Clock
    ) -> list[tuple[int, Image.Image, str]]:
        """The images of one batch, each with its job and its prompt."""
        level, size = self.plan.levels[jobs[batch[0], 0]], self.plan.sizes[jobs[batch[0], 1]]
        sources = [int(jobs[at, 1]) for at in batch]
        seeds = [self.plan.seeds[jobs[at, 2]] for at in batch]
        ids = [self.sources.ids[source] for source in sources]
        named = zip(sources, ids, seeds, strict=True)
        prompts = [choose_prompt(self.choices[s], i, seed, attempt) for s, i, seed in named]
        images = None if self.plan.from_text and level == 0 else [self.sources[source] for source in sources]
        keys = [noise_seed(image_id, seed, attempt) for image_id, seed in zip(ids, seeds, strict=True)]
        made = self.drawer(prompts, images, size, self.plan.strength_of(level), keys)
        clock.tick(len(batch) if attempt == 0 else 0, len(batch) * self.plan.steps_of(level))
        return list(zip(batch, made, prompts, strict=True))

    def _scores(self, jobs: np.ndarray, drawn: Sequence[tuple[int, Image.Image, str]]) -> np.ndarray:
        """How well each image fits its text, −∞ where that is not known: float64 (images,)."""
        if self.retry is None:
            return np.zeros(len(drawn))
        texts = [prompt for _, _, prompt in drawn]
        if self.checks is not None:
            texts = [self.checks[jobs[at, 1]][0] for at, _, _ in drawn]
        scorer = self.retry.scorer
        found = scorer({scorer.image_column: [image for _, image, _ in drawn], scorer.caption_column: texts})
        return np.nan_to_num(found[scorer.name].astype(np.float64), nan=-np.inf)


class _Clock:
    """Moves the progress bar, and logs an estimate after the first batch."""

    def __init__(self, steps: int, bar: Any) -> None:
        self.steps, self.bar, self.start, self.told = steps, bar, time.perf_counter(), False

    def tick(self, images: int, steps: int) -> None:
        """A batch of so many new images and denoising steps is done."""
        if not self.told:
            seconds = (time.perf_counter() - self.start) / steps * self.steps
            logger.info(
                "The first batch says: about %s for the %s denoising steps of this process.",
                _duration(seconds),
                f"{self.steps:,}",
            )
            self.told = True
        self.bar.update(images)


def _duration(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 90:
        return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.1f} minutes"


def noise_seed(image_id: str, seed: int, attempt: int = 0) -> int:
    """The seed of an image's noise: of its source and its seed, not of its level; 63 bits."""
    return int(digest(json.dumps(["noise", image_id, seed, attempt])), 16) >> 1


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def _merge(parts: PartFolder, run: _Run, file: Path, label_column: str, timeout: float) -> None:
    """Writes the spectrum, part by part, completely or not at all."""
    wait_for_files(parts.folder, [parts.file(part).name for part in range(parts.count)], timeout)
    hard, jobs = run.sources.all, run.plan.jobs()
    features = spectrum_features(run.provenance(), hard.features.get(label_column))
    given = {CAPTION: hard[CAPTION][:] if CAPTION in hard.column_names else None}
    given[LABEL] = read_column(hard, label_column) if LABEL in features else None
    given["suffixes"] = _occurrences(run.sources.ids)
    tries: list[np.ndarray] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for part in range(parts.count):
            rows, drawn = parts.rows_of(part), parts.read(part)
            tries.append(drawn["tries"].to_numpy())
            columns = _columns(run, jobs[rows.start : rows.stop], drawn, given)
            yield from pa.table(columns).select(list(features)).cast(features.arrow_schema).to_batches()

    write_arrow(file, batches(), features.arrow_schema)
    if run.retry is not None:
        again = int((np.concatenate(tries) > 1).sum())
        logger.info("%s of %s images are a second try or a later one.", f"{again:,}", f"{run.plan.images:,}")


def _columns(run: _Run, jobs: np.ndarray, found: pa.Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a part of the spectrum."""
    level, source, seed = jobs.T
    ids, prompts = [run.sources.ids[each] for each in source], found[PROMPT].to_pylist()
    levels, seeds = np.array(run.plan.levels)[level], np.array(run.plan.seeds, np.int64)[seed]
    named = zip(ids, source, levels, seeds, strict=True)
    return {
        IMAGE: found[IMAGE],
        **({} if given[LABEL] is None else {LABEL: given[LABEL].take(pa.array(source))}),
        CAPTION: prompts if given[CAPTION] is None else [given[CAPTION][each] for each in source],
        IMAGE_ID: [f"{name}{given['suffixes'][at]}/guidance-{lam:g}/seed-{number}" for name, at, lam, number in named],
        GUIDANCE: levels.astype(np.float32),
        HARD: np.ones(len(ids), bool),
        SOURCE_ID: ids,
        SEED: seeds,
        PROMPT: prompts,
    }


def spectrum_features(provenance: ScoreProvenance, label: Any = None) -> Features:
    """Names and types of a spectrum's columns, in their order; `label` is the feature of the classes, if any."""
    return Features(
        {
            IMAGE: ImageFeature(),
            **({} if label is None else {LABEL: label}),
            CAPTION: Value("string"),
            IMAGE_ID: Value("string"),
            GUIDANCE: Value("float32", id=provenance.to_json()),
            HARD: Value("bool"),
            SOURCE_ID: Value("string"),
            SEED: Value("int64"),
            PROMPT: Value("string"),
        }
    )


def _occurrences(ids: Sequence[str]) -> list[str]:
    """ "" for the first row of an image, "#1" for its second caption, and so on: (rows,)."""
    seen: dict[str, int] = {}
    suffixes = []
    for image_id in ids:
        number = seen[image_id] = seen.get(image_id, -1) + 1
        suffixes.append(f"#{number}" if number else "")
    return suffixes
