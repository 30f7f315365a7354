"""The BabyLM benchmarks: catalogue, runs and tables."""

from __future__ import annotations

import gzip
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_curriculum.config import without_nan
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.files import DamagedFileError, read_sealed, write_together
from hf_curriculum.markdown import table
from hf_curriculum.models.captioner import reads
from hf_curriculum.scorers.pretrained import load_model
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.babylm.devbench import DEVBENCH, LOOKING, run_devbench
from hf_curriculum.tasks.babylm.glue import GLUE, run_glue
from hf_curriculum.tasks.babylm.image_tasks import run_vqa, run_winoground
from hf_curriculum.tasks.babylm.miniature import make_miniature_benchmarks
from hf_curriculum.tasks.babylm.run import GlueSettings, Run, TaskResult
from hf_curriculum.tasks.babylm.scorer import TextImageScorer
from hf_curriculum.tasks.babylm.text_tasks import EWOK, SUPPLEMENT, run_blimp, run_ewok, run_supplement

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SuiteResult:
    """What a suite found.

    Args:
        tasks: by benchmark.
        not_run: benchmark → why it was left out.
        about: the model, the data and the settings.
        table: Markdown.
    """

    tasks: dict[str, TaskResult]
    not_run: dict[str, str]
    about: dict[str, Any]
    table: str

    @property
    def averages(self) -> dict[str, dict[str, float]]:
        """Benchmark → measure → unweighted mean over its subtasks."""
        return {name: result.averages for name, result in self.tasks.items()}

    @property
    def macro_averages(self) -> dict[str, float]:
        """Text and vision → the mean of their benchmarks' averages, see `macro_averages`."""
        return macro_averages(self.tasks)

    def card_results(self) -> list[dict[str, Any]]:
        """The averages for a model's card, `trainer.push_to_hub(results=...)`.

        A benchmark that was run as it stands in a data set of the Hub (`sources=`), all of it, names that data set,
        and is then shown on the benchmark's page too: BLiMP by paradigm, EWoK as a whole. The challenge's filtered
        files, images alone from the Hub, a `limit` and a choice of subtasks name none.

        Example:
            >>> trainer.push_to_hub(results=evaluate_suite(model, tokenizer, ...).card_results())  # doctest: +SKIP
        """
        rows: list[dict[str, Any]] = []
        for name, result in self.tasks.items():
            source = self._benchmark_of(name)
            where = {"source": source or "files of the BabyLM challenge"}
            for measure in BENCHMARKS[name].main:
                row = {
                    "metric": f"{BENCHMARKS[name].title}, {measure}",
                    "value": result.averages.get(measure),
                    **where,
                }
                if source and name == "ewok":
                    row |= {"dataset": source, "task": "default", "notes": f"mean over {len(EWOK)} domains"}
                rows.append(row)
            if source and name == "blimp":
                rows += [
                    {"metric": f"BLiMP, {one}", "value": values["accuracy"], **where, "dataset": source, "task": one}
                    for one, values in result.subtasks.items()
                ]
        return [row for row in rows if row["value"] is not None]

    def _benchmark_of(self, name: str) -> str | None:
        """The data set of the Hub whose items a benchmark scored, all of them."""
        source = self.about["sources"].get(name)
        whole = self.about["limit"] is None and len(self.tasks[name].subtasks) == BENCHMARKS[name].size
        return source if whole and name in ("blimp", "ewok") and source and not Path(source).exists() else None


@validate_arguments
def evaluate_suite(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    image_processor: Any | None = None,
    suite: str = "babylm",
    *,
    data_dir: str | PathLike[str],
    output_dir: str | PathLike[str] | None = None,
    tasks: Sequence[str] | None = None,
    sources: Mapping[str, str] | None = None,
    batch_size: int = 64,
    glue: GlueSettings | None = None,
    limit: int | None = None,
    image_tokens: str | None = None,
    prefix_token: str | None = None,
    progress: bool = True,
) -> SuiteResult:
    """Evaluates a model on a suite of benchmarks, and writes tables and the challenge's predictions.

    Scores are kept below `output_dir/scores` as they are made. A killed run continues from there, and a second run of
    the same model on the same data takes seconds. Scores of another model are computed anew.

    Args:
        model: GIT, Flamingo, or a model of `transformers`, on the device it is to run on.
        tokenizer: the model's.
        image_processor: the model's; None for text alone.
        suite: a key of `SUITES`.
        data_dir: folder with the official files, the challenge's `evaluation_data`.
        output_dir: for `results.json`, `results.md`, `predictions.json.gz` and `scores/`; None writes nothing.
        tasks: keys of `BENCHMARKS`, or `"<benchmark>/<subtask>"`. By default all that the model can read and the
            folder has; `not_run` lists the others.
        sources: benchmark → a data set of the Hub, for its items (`blimp`, `ewok`) or images (`winoground`, `vqa`).
            Only sets named here are downloaded.
        batch_size: most texts that run through the model at once.
        glue: how (Super)GLUE is fine-tuned.
        limit: use at most this number of items of each subtask; for a trial, and noted in the results.
        image_tokens: of `TextImageScorer`.
        prefix_token: of `TextImageScorer`.
        progress: shows bars.

    Raises:
        ValueError: an unknown suite, task or source; images without an image processor; `output_dir` holds the
            results of another model; of a benchmark.
        FileNotFoundError: a requested task has no data, or there is no data at all.

    Example:
        >>> result = evaluate_suite(model, tokenizer, processor, data_dir="evaluation_data")  # doctest: +SKIP
        >>> print(result.table)                                                               # doctest: +SKIP
    """
    if suite not in SUITES:
        raise ValueError(f"suite={suite!r} is not known. There is {', '.join(SUITES)}; single tasks go into `tasks`.")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves nothing to score. Pass 1 or more, or None for all items.")
    folder, sources = Path(data_dir), dict(sources or {})
    _validate_sources(sources)
    chosen = _asked(tasks) if tasks is not None else dict.fromkeys(SUITES[suite])
    not_run = {} if tasks is not None else _left_out(list(chosen), folder, sources, model, image_processor)
    _validate_images(chosen, image_processor, not_run)
    scorer = TextImageScorer(
        model, tokenizer, image_processor, batch_size=batch_size, image_tokens=image_tokens, prefix_token=prefix_token
    )
    run = Run(
        scorer=scorer,
        data_dir=folder,
        scores_dir=None if output_dir is None else Path(output_dir) / "scores",
        sources=sources,
        limit=limit,
        progress=progress,
        glue=glue or GlueSettings(),
    )
    results: dict[str, TaskResult] = {}
    found = _so_far(run, suite, results, not_run)
    if output_dir is not None:
        _validate_same_model(Path(output_dir), found.about)
    for name, subtasks in chosen.items():
        if name in not_run:
            continue
        results[name] = BENCHMARKS[name].run(replace(run, subtasks=subtasks))
        logger.info("%s: %s", name, results[name].averages)
        found = _so_far(run, suite, results, not_run)
        if output_dir is not None:  # after each benchmark: the next may take hours, or fail
            write_results(Path(output_dir), results, not_run, found.about, found.table)
    return found


def _validate_same_model(folder: Path, about: Mapping[str, Any]) -> None:
    """Results of another model stay; those of a model of the same name that was trained again are replaced."""
    file = folder / RESULTS_FILE
    if not file.is_file():
        return
    try:
        before = read_sealed(file, "", ["about"])["about"]
    except DamagedFileError:
        logger.warning("%s is damaged: it is made again.", file)
        return
    if all(before[name] != about[name] for name in ("model", "fingerprint")):
        raise ValueError(
            f"{file} holds the results and scores of {before['model']!r}; those of "
            f"{about['model']!r} would take their place. Name another folder (--output), or delete this one."
        )


def _so_far(run: Run, suite: str, results: Mapping[str, TaskResult], not_run: Mapping[str, str]) -> SuiteResult:
    notes = _notes(run)
    about = _about(run, suite) | {"notes": notes}
    return SuiteResult(dict(results), dict(not_run), about, markdown(results, not_run, notes))


def _asked(tasks: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
    """Benchmark → the subtasks asked for, None for all."""
    asked: dict[str, tuple[str, ...] | None] = {}
    for task in tasks:
        name, _, subtask = task.partition("/")
        if name not in BENCHMARKS:
            raise ValueError(
                f"{task!r} in `tasks` is not known. There are {', '.join(BENCHMARKS)}, and their subtasks as "
                "'blimp/passive_1'."
            )
        if not subtask:
            asked[name] = None
        elif asked.get(name, ()) is not None:
            asked[name] = (*(asked.get(name) or ()), subtask)
    if not asked:
        raise ValueError("`tasks` is empty, so nothing would be evaluated. Name some, or pass None for all.")
    return asked


def _validate_sources(sources: Mapping[str, str]) -> None:
    unread = [name for name in sources if name not in SOURCED]
    if unread:
        raise ValueError(
            f"{unread} in `sources` would not be read. Items of blimp and ewok, and images of winoground and vqa, "
            f"can come from a data set ({', '.join(SOURCED)}); for the others put their files into the data folder."
        )


def _left_out(
    names: Sequence[str], folder: Path, sources: Mapping[str, str], model: Any, image_processor: Any | None
) -> dict[str, str]:
    """Benchmark → why it cannot be run."""
    reasons, sees_always = {}, reads(model, "region_features")
    for name in names:
        if BENCHMARKS[name].images and image_processor is None:
            reasons[name] = "it has images, and no image processor was given"
        elif sees_always and not BENCHMARKS[name].images:
            reasons[name] = "it has no images, and the model reads no text without one"
        elif not (folder / BENCHMARKS[name].folder).is_dir() and not (name in sources and not BENCHMARKS[name].images):
            reasons[name] = f"{folder / BENCHMARKS[name].folder} does not exist"
    if len(reasons) == len(names):
        raise FileNotFoundError(
            f"None of {', '.join(names)} can be run: {reasons}. Put the challenge's `evaluation_data` there, or make "
            "small benchmarks with `make_miniature_benchmarks`."
        )
    for name, reason in reasons.items():
        logger.warning("`%s` is not run: %s.", name, reason)
    return reasons


def _validate_images(names: Mapping[str, Any], image_processor: Any | None, not_run: Mapping[str, str]) -> None:
    seeing = [name for name in names if BENCHMARKS[name].images and name not in not_run]
    if seeing and image_processor is None:
        raise ValueError(
            f"{seeing} were asked for, which have images, but there is no image processor. Pass the model's as "
            "`image_processor=`; without sight these scores mean nothing."
        )


def _about(run: Run, suite: str) -> dict[str, Any]:
    return {
        "suite": suite,
        "model": run.scorer.model.config.to_dict().get("_name_or_path") or type(run.scorer.model).__name__,
        "architecture": type(run.scorer.model).__name__,
        "fingerprint": run.scorer.fingerprint(),
        "data_dir": str(run.data_dir),
        "sources": dict(run.sources),
        "prefix_token": run.scorer.tokenizer.convert_ids_to_tokens(run.scorer.encoder.prefix),
        "image_tokens": run.scorer.image_text,
        "limit": run.limit,
        "glue": asdict(run.glue),
    }


def _notes(run: Run) -> list[str]:
    notes = []
    if run.limit is not None:
        notes.append(f"Only the first {run.limit:,} items of each subtask were scored: a try, not a result.")
    if (run.data_dir / "MINIATURE.txt").is_file():
        notes.append("Miniature benchmarks made from drawn scenes: not comparable with the official ones.")
    if run.scorer.encoder.num_truncated:
        notes.append(
            f"{run.scorer.encoder.num_truncated:,} contexts were longer than the model reads and were truncated."
        )
    return notes


RESULTS_FILE = "results.json"
PREDICTIONS_FILE = "predictions.json.gz"
_BY_AGE = "human_similarity_"


def macro_averages(results: Mapping[str, TaskResult]) -> dict[str, float]:
    """The mean of the benchmarks' averages, for text and for vision, where all of a kind were run."""
    averages = {}
    for kind, names in (("text", TEXT), ("vision", VISION)):
        if set(names) <= set(results):
            values = [results[name].averages.get(BENCHMARKS[name].main[0], math.nan) for name in names]
            averages[kind] = math.fsum(values) / len(values)
    return averages


def markdown(results: Mapping[str, TaskResult], not_run: Mapping[str, str] = {}, notes: Sequence[str] = ()) -> str:
    """A summary, a table per benchmark with several subtasks, and all notes; shares in percent."""
    rows: list[tuple[str, ...]] = []
    for name, result in results.items():
        about = BENCHMARKS[name]
        chance = "" if about.chance is None else f"{100 * about.chance:.1f}"
        counts = [count for subtask, count in result.counts.items() if subtask not in about.extra]
        size = f"{len(counts)} of {about.size}", f"{sum(counts):,}"
        rows += [(about.title, one, percentage(result.averages.get(one)), chance, *size) for one in about.main]
    rows += [
        (f"mean of {kind} benchmarks", "", percentage(value), "", "", "")
        for kind, value in macro_averages(results).items()
    ]
    parts = [table(("benchmark", "measure", "score", "chance", "subtasks", "items"), rows, for_terminals=True)]
    parts += [f"\n{note}\n" for note in notes]
    parts += [_details(name, result) for name, result in results.items()]
    parts += [f"\n{BENCHMARKS[name].title}: not run ({reason})\n" for name, reason in not_run.items()]
    return "".join(parts)


def percentage(value: float | None) -> str:
    """A share in percent with two decimals, as the paper prints it; a dash for none."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def write_results(
    folder: Path, results: Mapping[str, TaskResult], not_run: Mapping[str, str], about: Mapping[str, Any], text: str
) -> None:
    """`results.json`, `results.md` and the challenge's `predictions.json.gz`."""
    facts = {
        "about": dict(about),
        "macro_averages": macro_averages(results),
        "tasks": {name: result.to_dict() for name, result in results.items()},
        "not_run": dict(not_run),
    }
    contents = {PREDICTIONS_FILE: predictions(results), "results.md": text}
    write_together(folder, contents, RESULTS_FILE, without_nan(facts))


def predictions(results: Mapping[str, TaskResult]) -> bytes:
    """The challenge's submission: `{task: {subtask: {"predictions": ...}}}`, gzipped JSON."""
    content = {name: result.predictions for name, result in results.items()}
    return gzip.compress(json.dumps(content).encode(), mtime=0)  # equal predictions make equal files


def _details(name: str, result: TaskResult) -> str:
    """A table of one benchmark's subtasks, and its notes."""
    found = dict.fromkeys(measure for values in result.subtasks.values() for measure in values)
    measures = [measure for measure in found if not measure.startswith(_BY_AGE)]
    rows, notes = [], []
    for subtask, values in result.subtasks.items():
        shown = (percentage(values.get(measure)) for measure in measures)
        mark = " (not in the mean)" if subtask in BENCHMARKS[name].extra else ""
        rows.append((subtask + mark, *shown, f"{result.counts[subtask]:,}"))
        ages = {key.removeprefix(_BY_AGE): value for key, value in values.items() if key.startswith(_BY_AGE)}
        if ages:
            listed = ", ".join(f"{age}: {percentage(value)}" for age, value in ages.items())
            notes.append(f"{subtask}, human similarity by age: {listed}")
    if len(result.subtasks) > 1:
        rows.append(("mean", *(percentage(result.averages.get(measure)) for measure in measures), ""))
    shown = table(("subtask", *measures, "items"), rows, for_terminals=True)
    return f"\n### {BENCHMARKS[name].title}\n\n{shown}" + "".join(f"\n{one}\n" for one in (*notes, *result.notes))


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of a suite.

    Args:
        title: as people write it.
        folder: below the data folder, where its official files are.
        run: from a `Run` to a `TaskResult`.
        main: the measures a summary shows.
        size: how many subtasks the whole has.
        chance: what guessing reaches, or None where no single number says it.
        images: whether it has images.
        extra: subtasks beyond the challenge's, which no average counts.
    """

    title: str
    folder: str
    run: Callable[[Run], TaskResult]
    main: tuple[str, ...]
    size: int
    chance: float | None
    images: bool = False
    extra: tuple[str, ...] = ()


_ACCURACY = ("accuracy",)
BENCHMARKS: dict[str, Benchmark] = {
    "blimp": Benchmark("BLiMP filtered", "blimp_filtered", run_blimp, _ACCURACY, 67, 1 / 2),
    "blimp_supplement": Benchmark(
        "BLiMP supplement", "supplement_filtered", run_supplement, _ACCURACY, len(SUPPLEMENT), 1 / 2
    ),
    "ewok": Benchmark("EWoK", "ewok_filtered", run_ewok, _ACCURACY, len(EWOK), 1 / 2),
    "glue": Benchmark("(Super)GLUE", "glue_filtered", run_glue, ("score",), len(GLUE), None),
    "winoground": Benchmark("Winoground", "winoground_filtered", run_winoground, _ACCURACY, 1, 1 / 2, images=True),
    "vqa": Benchmark("VQAv2", "vqa_filtered", run_vqa, _ACCURACY, 1, 1 / 8, images=True),
    "devbench": Benchmark(
        "DevBench",
        "devbench",
        run_devbench,
        ("accuracy", "human_similarity"),
        len(DEVBENCH),
        None,
        images=True,
        extra=(LOOKING,),
    ),
}
"""Every benchmark by the name it has in the challenge's file of predictions."""
SUITES: dict[str, tuple[str, ...]] = {"babylm": tuple(BENCHMARKS)}
"""Suites by name: the benchmarks of each, in the order they run."""
SOURCED = ("blimp", "ewok", "winoground", "vqa")
"""Benchmarks whose items or images may come from a data set named in `sources`."""
TEXT = ("blimp", "blimp_supplement", "ewok", "glue")
VISION = ("winoground", "vqa", "devbench")


@validate_arguments
def evaluate_pretrained(
    name: str,
    suite: str = "babylm",
    *,
    output_dir: str | PathLike[str],
    data_dir: str | PathLike[str] | None = None,
    revision: str | None = None,
    device: str | None = None,
    **options: Any,
) -> SuiteResult:
    """Runs `evaluate_suite` on a model from a folder or a repository of the Hub.

    Args:
        name: the folder or repository; tokenizer and image processor are taken from it too.
        suite: of `evaluate_suite`.
        output_dir: of `evaluate_suite`.
        data_dir: of `evaluate_suite`. Without one, miniature benchmarks are made below `output_dir`, as the results
            note.
        revision: of a repository.
        device: such as `"cuda"`; by default a GPU if there is one.
        options: more arguments of `evaluate_suite`, such as `tasks`, `batch_size` or `glue`.

    Raises:
        FileNotFoundError, ValueError: of `load_for_evaluation` and `evaluate_suite`.

    Example:
        >>> evaluate_pretrained("my-model", output_dir="results").averages["blimp"]  # doctest: +SKIP
        {'accuracy': 0.8125}
    """
    import torch

    model, tokenizer, image_processor = load_for_evaluation(name, revision)
    if data_dir is None:
        data_dir = Path(output_dir) / "miniature"
        if not (data_dir / "MINIATURE.txt").is_file():
            make_miniature_benchmarks(data_dir)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return evaluate_suite(
        model, tokenizer, image_processor, suite, data_dir=data_dir, output_dir=output_dir, **options
    )


def load_for_evaluation(name: str, revision: str | None = None) -> tuple[Any, Any, Any | None]:
    """Model, tokenizer and, for models with images, image processor.

    Args:
        name: a folder, or a repository of the Hub.
        revision: of a repository.

    Raises:
        FileNotFoundError: there is no such model, or it has no tokenizer or image processor.
        ValueError: weights are missing; a captioner on stored regions, whose detector is not saved with it.

    Example:
        >>> model, tokenizer, image_processor = load_for_evaluation("my-model")  # doctest: +SKIP
    """
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = _load(AutoConfig, name, revision)
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = load_model(AutoModelForImageTextToText if sees else AutoModelForCausalLM, name, revision)
    tokenizer = _load(AutoTokenizer, name, revision)
    if not sees:
        return model, tokenizer, None
    if reads(model, "region_features") and config.vision_config is None:
        found = CaptionProcessor.from_pretrained(name, revision=revision).image_processor
        if getattr(found, "detector", found) is None:
            raise ValueError(
                f"{name} was trained on stored regions, and the detector that made them is not saved with it: it sees "
                f"nothing of a benchmark's images. Evaluate its captions (`hf-curriculum evaluate {name} --suite "
                "captions --features STORE`), or texts on images of a store (`TextImageScorer(..., regions=store)`)."
            )
        return model, tokenizer, found
    return model, tokenizer, _load(AutoImageProcessor, name, revision, backend="pil")


def _load(auto_class: Any, name: str, revision: str | None, **options: Any) -> Any:
    """A part of the model, or what is missing."""
    try:
        return auto_class.from_pretrained(name, revision=revision or "main", **options)
    except (OSError, ValueError) as error:  # ValueError: a folder that exists, without what is looked for
        reason, folder = " ".join(str(error).split())[:300], Path(name)
        if not folder.is_dir():
            found = f"no such folder here, and the Hub's {name!r} could not be loaded ({reason})"
        elif not (folder / "config.json").is_file():
            found = "the folder holds no config.json"
        else:
            found = f"{auto_class.__name__} found nothing in it ({reason})"
        raise FileNotFoundError(
            f"There is no model {name} to evaluate: {found}. Name a folder with a model and its tokenizer, such as "
            "RUN/model of `hf-curriculum train`, or a repository of the Hub; on a machine without network one that is "
            f"in its cache (`hf download NAME`)."
        ) from error
