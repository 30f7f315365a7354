"""Captions of several systems on the same images: metrics, sets by difficulty, files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import without_nan
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.rows import read_rows
from hf_curriculum.evaluation.comparison import Comparison, ResultTable
from hf_curriculum.evaluation.generate import references
from hf_curriculum.files import resolved, validate_beside, write_atomically, write_together
from hf_curriculum.markdown import csv_cell, csv_text, plain, titled_tables
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.compare import TITLES, compare_captions
from hf_curriculum.tasks.captioning.metrics.cider import CiderD
from hf_curriculum.tasks.captioning.metrics.metrics import (
    METRICS,
    VALUES,
    CaptionEvaluator,
    CaptionScores,
    validate_one_per_image,
)
from hf_curriculum.tasks.captioning.metrics.tokens import tokenize_all

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity


def difficulty_sets(scores: Sequence[float] | np.ndarray, num_sets: int = 4) -> list[np.ndarray]:
    """Rows of equally large sets of images, the easiest set first: the highest scores.

    Args:
        scores: one per image, the better the higher, such as `per_image["bleu_4"]` of a model trained without a
            curriculum.
        num_sets: L; set k ends at ⌊n·k/L⌋ of the order. Equal scores keep the order of the images.

    Returns:
        int64 arrays of row numbers, the easiest first within each.

    Raises:
        ValueError: no scores in one dimension, one is not finite, or fewer images than sets.

    Source: Simi-CL, §4.3 and Table 2: 5,000 test images by the vanilla model's BLEU, 4 × 1,250.

    Example:
        >>> [rows.tolist() for rows in difficulty_sets([0.1, 0.9, 0.5, 0.5, 0.2], num_sets=2)]
        [[1, 2], [3, 4, 0]]
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"The scores have shape {values.shape}, {int((~np.isfinite(values)).sum())} of them NaN or infinite. "
            "Images are ranked by one finite number each. Pass one score per image."
        )
    if not 1 <= num_sets <= len(values):
        raise ValueError(
            f"{len(values)} images cannot be divided into {num_sets} sets: each needs one or more. Pass `num_sets` "
            f"from 1 to {len(values)}."
        )
    order = np.argsort(-values, kind="stable")
    ends = [len(order) * number // num_sets for number in range(num_sets + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


@validate_arguments
def metrics_by_set(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    sets: Sequence[np.ndarray],
    metrics: Sequence[str] | str = METRICS,
    *,
    document_frequencies: Literal["set", "all"] = "set",
    images: Sequence[Any] | None = None,
    **options: Any,
) -> dict[str, list[CaptionScores]]:
    """The metrics of several systems on each set of images.

    Args:
        systems: name → one caption per image.
        references: the captions of each image.
        sets: rows of each set, see `difficulty_sets`.
        metrics: as in `CaptionEvaluator`.
        document_frequencies: those of CIDEr-D, which the paper does not name: of the `"set"`, as the COCO evaluation
            of a file with these images counts them, or of `"all"` images, which compares sets on one scale.
        images: of CLIPScore.
        options: more of `CaptionEvaluator`.

    Returns:
        name → scores of each set, in their order.

    Raises:
        ValueError: an option is unknown, no system, not one caption per image, or an empty set.

    Source: Simi-CL, §4.3 and Table 2.

    Example:
        >>> references = [["a dog"], ["a cat"], ["two birds"], ["a bus"]]
        >>> vanilla = ["a dog", "a cat", "a bird", "a car"]
        >>> sets = difficulty_sets(CaptionEvaluator(references)(vanilla).per_image["rouge_l"], 2)
        >>> found = metrics_by_set({"vanilla": vanilla}, references, sets, ["rouge"])
        >>> [scores.corpus for scores in found["vanilla"]]
        [{'rouge_l': 1.0}, {'rouge_l': 0.25}]
    """
    if document_frequencies not in ("set", "all"):
        raise ValueError(
            f"`document_frequencies` is {document_frequencies!r}. CIDEr-D's words are weighed by the references of "
            "each 'set' or of 'all' images. Pass one of the two."
        )
    if not systems or any(not len(rows) for rows in sets):
        raise ValueError(
            f"There are {len(systems)} systems and sets of {[len(rows) for rows in sets]} images. Each set needs an "
            "image, and there must be a system to score. Pass both."
        )
    for captions in systems.values():
        validate_one_per_image(captions, references)
    evaluate = CaptionEvaluator(references, metrics, images=images, **options)
    whole = {name: evaluate(captions) for name, captions in systems.items()}
    found = {name: [scores.select(rows) for rows in sets] for name, scores in whole.items()}
    if document_frequencies == "all" or "cider" not in evaluate.metrics:
        return found
    tokens = {name: tokenize_all(captions) for name, captions in systems.items()}
    for number, rows in enumerate(sets):
        own = CiderD([evaluate.tokens[row] for row in rows])
        for name in systems:
            found[name][number].statistics["cider"] = own.scores([tokens[name][row] for row in rows])[:, None]
    return found


RESULTS_FILE = "results.json"
"""What an evaluation says in numbers; it names the other files by their digests."""
_REMEDY = "Evaluate the model again."
CAPTIONS_FILE = "captions.json"
"""Generated captions, in the format of the COCO evaluation's results."""
PER_IMAGE_FILE = "per_image.csv"
"""The value of every metric for every image."""
DOMAIN = "domain"
"""The column that says which domain an image is of, as NoCaps has it."""
_NO_CLIP = (
    "CLIPScore needs a CLIP, and none was named. Pass `clip=` (--clip), such as openai/clip-vit-base-patch32, which "
    "is then downloaded, or scenes_clip for the embedded scenes."
)


@dataclass(frozen=True, eq=False)
class CaptionEvaluation:
    """What `CaptionSuite` found about one captioner.

    Args:
        name: of the captioner.
        image_ids: of the evaluated images, in order; so are all lists and arrays below.
        references: the captions of each image.
        captions: system → its caption of each image; the evaluated one is the last.
        scores: system → its scores.
        sets: heading ("domain", "difficulty") → set's name → rows of its images, int64 (n,).
        by_set: heading → set's name → system → value's name → value of the set.
        comparison: differences with the systems it was compared with; None without any.
        notes: what a reader of the numbers must know.

    Example:
        >>> from datasets import Dataset
        >>> rows = {"image_id": ["1", "2"], "caption": ["a dog", "one cat"]}
        >>> found = CaptionSuite(Dataset.from_dict(rows), ["rouge"])(["a dog", "a cat"])
        >>> found.values, found.per_image["rouge_l"].tolist()
        ({'rouge_l': 0.75}, [1.0, 0.5])
    """

    name: str
    image_ids: list[str]
    references: list[list[str]]
    captions: dict[str, list[str]]
    scores: dict[str, CaptionScores]
    sets: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    by_set: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """Name of a value → value over all images, in its natural unit."""
        return self.scores[self.name].corpus

    @property
    def per_image(self) -> dict[str, np.ndarray]:
        """Name of a value → float64 (images,)."""
        return self.scores[self.name].per_image

    @property
    def unavailable(self) -> dict[str, str]:
        """Metric → why it could not be computed."""
        return self.scores[self.name].unavailable

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, without captions and values per image."""
        return {
            "name": self.name,
            "images": len(self.image_ids),
            "systems": {name: scores.corpus for name, scores in self.scores.items()},
            "unavailable": dict(self.unavailable),
            "sets": {
                heading: {name: {"images": len(rows), **self.by_set[heading][name]} for name, rows in sets.items()}
                for heading, sets in self.sets.items()
            },
            "comparison": None if self.comparison is None else self.comparison.to_dict()["differences"],
            "notes": [*self.notes],
        }

    @property
    def table(self) -> str:
        """For a terminal: every value of every system, what is missing and why, differences, and values by set."""
        return self._markdown(for_terminals=True)

    def _markdown(self, *, for_terminals: bool) -> str:
        return titled_tables(self.tables(), for_terminals=for_terminals)

    def tables(self) -> list[ResultTable]:
        """The tables of an evaluation: values times 100, the first table without a title."""
        names = [name for name in TITLES if name in self.values]
        missing = [name for metric in self.unavailable for name in VALUES[metric]]
        shown = [name for name in TITLES if name in names or name in missing]
        rows = [(TITLES[name], *(_hundredfold(s.corpus.get(name)) for s in self.scores.values())) for name in shown]
        notes = [f"Values times 100 on {len(self.image_ids):,} images."]
        notes += [f"{TITLES[VALUES[metric][0]]} is missing: {reason}" for metric, reason in self.unavailable.items()]
        found = [ResultTable("", ["metric", *self.scores], rows, [*notes, *self.notes])]
        if self.comparison is not None:
            found.append(self.comparison.table())
        for heading, sets in self.sets.items():
            rows = [
                (name, f"{len(own):,}", system, *(_hundredfold(values[value]) for value in names))
                for name, own in sets.items()
                for system, values in self.by_set[heading][name].items()
            ]
            columns = [heading, "images", "system", *(TITLES[name] for name in names)]
            note = "CIDEr-D weighs words by the references of the set, and is 0 for a set of one image."
            found.append(ResultTable(f"By {heading}", columns, rows, [note] if "cider" in names else []))
        return found

    def write(self, folder: str | PathLike[str], about: Mapping[str, Any] | None = None) -> None:
        """Writes `results.json`, `results.md`, `captions.json` (COCO's format of results) and `per_image.csv`.

        `results.json` holds the digests of the others, with which they are compared when they are read back.

        Args:
            folder: made if it is not there; files of the same names are replaced, all of them or none.
            about: what else `results.json` says: the model, the data, the settings.
        """
        contents = {
            CAPTIONS_FILE: _coco_results(self.image_ids, self.captions[self.name]),
            PER_IMAGE_FILE: self._per_image_csv(),
            "results.md": self._markdown(for_terminals=False),
        }
        write_together(folder, contents, RESULTS_FILE, without_nan({"about": dict(about or {}), **self.to_dict()}))

    def _per_image_csv(self) -> str:
        values = {name: numbers.tolist() for name, numbers in self.per_image.items()}
        domains = {}
        for name, rows in self.sets.get(DOMAIN, {}).items():
            domains |= dict.fromkeys(rows.tolist(), name)
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([IMAGE_ID, *([DOMAIN] if domains else []), *values])
        for row, image_id in enumerate(self.image_ids):
            own = ("" if math.isnan(numbers[row]) else numbers[row] for numbers in values.values())
            writer.writerow([csv_cell(image_id), *([csv_cell(domains[row])] if domains else []), *own])
        return stream.getvalue()


class CaptionSuite:
    """Evaluates captions on the images of a data set; all inputs are checked before captions are generated.

    Args:
        dataset: a row per caption or per image, with `image_id` and `caption`; with a column `domain` (NoCaps) the
            metrics are also given for each domain.
        metrics: names in `VALUES`, or `"all"`: every one that can be computed here, with reasons for the others.
        name: of the evaluated system.
        clip: a CLIP for CLIPScore, as `CLIPSimilarity` takes it; None leaves CLIPScore out.
        compare: name → captions of another system: its `captions.json`, the folder that holds one, or image id →
            caption.
        difficulty: scores that divide the images into sets: the `per_image.csv` of the vanilla model (its `bleu_4`),
            the folder that holds one, or image id → score, higher is better.
        num_sets: how many sets of difficulty.
        resamples: of the comparison's paired bootstrap.
        seed: of the resamples.
        limit: use at most this number of images, the first ones; for a trial, and noted in the results.

    Attributes:
        images: the first row of each image, in order; captions are generated for these.

    Raises:
        FileNotFoundError: a file of captions or of values is not there.
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        ValueError: a column is missing, an image has no references or two domains, or a metric is unknown. Or
            CLIPScore by name without `clip`, a file lacks images or cannot be read, `limit` is below 1, or `name` is
            also in `compare`.

    Source: Simi-CL, Tables 1 and 2 and appendix B; Agrawal et al. 2019 (NoCaps: scores by domain).

    Example:
        >>> from datasets import Dataset
        >>> rows = {"image_id": ["1", "1", "2"], "caption": ["a dog", "one dog", "one cat"]}
        >>> suite = CaptionSuite(Dataset.from_dict(rows), ["rouge"], compare={"other": {"1": "a", "2": "a"}})
        >>> found = suite(["a dog", "a cat"])
        >>> found.comparison.differences[0].difference > 0
        True
    """

    @validate_arguments
    def __init__(
        self,
        dataset: Dataset,
        metrics: Sequence[str] | str = "all",
        *,
        name: str = "model",
        clip: str | CLIPSimilarity | None = None,
        compare: Mapping[str, str | PathLike[str] | Mapping[Any, str]] | None = None,
        difficulty: str | PathLike[str] | Mapping[Any, float] | None = None,
        num_sets: int = 4,
        resamples: int = 1000,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"`limit` is {limit}, which leaves no image. Pass 1 or more, or None for all.")
        self.name: str = name
        if name in (compare or {}):
            raise ValueError(
                f"A system in `compare` is called {name!r}, as is the evaluated one, and one would hide the other. "
                "Give it another name (--compare NAME=PATH)."
            )
        named = [metrics] if isinstance(metrics, str) else list(metrics)
        if clip is None and "clip_score" in named:
            raise ValueError(_NO_CLIP)
        found = references(dataset)
        images = one_row_per_image(dataset)
        self.num_images: int = len(images)
        self.images: Dataset = images if limit is None else images.select(range(min(limit, len(images))))
        self.image_ids: list[str] = self.images.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID]
        self.references: list[list[str]] = [found[image_id] for image_id in self.image_ids]
        shown = None
        if clip is not None:
            reader = "CLIPScore compares captions with images."
            require_columns(images.column_names, [IMAGE], reader=reader, remedy="Load them, or leave `clip` out.")
            shown = self.images.with_format(None)[IMAGE]
        options = {} if clip is None else {"images": shown, "clip": clip}
        self.evaluate: CaptionEvaluator = CaptionEvaluator(self.references, metrics, **options)
        if clip is None and "clip_score" in self.evaluate.unavailable:
            self.evaluate.unavailable["clip_score"] = _NO_CLIP
        self.unused: list[str] = []
        self.others: dict[str, list[str]] = {
            name: self.captions_of(name, given) for name, given in (compare or {}).items()
        }
        self.sets: dict[str, dict[str, np.ndarray]] = self._domains(dataset) | self._difficulty(difficulty, num_sets)
        self.resampling: dict[str, int] = {"resamples": resamples, "seed": seed}

    @validate_arguments
    def __call__(self, captions: Sequence[str]) -> CaptionEvaluation:
        """Evaluates one caption per image, in the order of `images`.

        Raises:
            JavaError: METEOR or SPICE failed.
            ValueError: not one caption per image.
        """
        systems = {**self.others, self.name: list(captions)}
        found = {system: self.evaluate(written) for system, written in systems.items()}
        metrics, unavailable = self.evaluate.metrics, dict(self.evaluate.unavailable)
        # A metric that failed for one system on the way is missing for all.
        scores = {
            system: CaptionScores({one: own.statistics[one] for one in metrics}, unavailable, own.words)
            for system, own in found.items()
        }
        comparison = None
        if len(systems) > 1:
            options = {"images": self.evaluate.images, "clip": self.evaluate.clip, **self.resampling}
            comparison = compare_captions(scores, self.references, metrics, **options)
        by_set = {heading: self._by_set(systems, scores, sets) for heading, sets in self.sets.items()}
        return CaptionEvaluation(
            name=self.name,
            image_ids=self.image_ids,
            references=self.references,
            captions=systems,
            scores=scores,
            sets=self.sets,
            by_set=by_set,
            comparison=comparison,
            notes=tuple(self._notes(scores)),
        )

    def captions_of(self, name: str, given: str | PathLike[str] | Mapping[str, str]) -> list[str]:
        """A system's captions in the order of `images`, from its file, folder or mapping.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it cannot be read, or lacks an image.
        """
        found = given if isinstance(given, Mapping) else read_captions(given)
        return self._of_images(found, f"captions of {name!r}", given)

    def _by_set(
        self, systems: Mapping[str, list[str]], scores: Mapping[str, CaptionScores], sets: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Set → system → values; CIDEr-D's document frequencies are those of the set, as of a file of its images."""
        counted = [metric for metric in self.evaluate.metrics if metric in METRICS]
        own = metrics_by_set(systems, self.references, list(sets.values()), counted) if counted else {}
        return {
            name: {
                system: scores[system].select(rows).corpus | (own[system][number].corpus if counted else {})
                for system in systems
            }
            for number, (name, rows) in enumerate(sets.items())
        }

    def _difficulty(
        self, given: str | PathLike[str] | Mapping[str, float] | None, num_sets: int
    ) -> dict[str, dict[str, np.ndarray]]:
        if given is None:
            return {}
        found = given if isinstance(given, Mapping) else _read_values(given, "bleu_4")
        sets = difficulty_sets(self._of_images(found, "values of difficulty", given), num_sets)
        ends = {0: " (easiest)", num_sets - 1: " (hardest)"} if num_sets > 1 else {}
        return {"difficulty": {f"level {at + 1}{ends.get(at, '')}": rows for at, rows in enumerate(sets)}}

    def _domains(self, dataset: Dataset) -> dict[str, dict[str, np.ndarray]]:
        if DOMAIN not in dataset.column_names:
            return {}
        pairs = dataset.with_format(None).select_columns([IMAGE_ID, DOMAIN])[:]
        domains: dict[str, str] = {}
        for image_id, domain in zip(pairs[IMAGE_ID], pairs[DOMAIN], strict=True):
            if domain is None or domains.setdefault(image_id, str(domain)) != str(domain):
                found = "no domain" if domain is None else f"the domains {domains[image_id]!r} and {str(domain)!r}"
                raise ValueError(
                    f"The image {image_id!r} has {found}. Scores are given by `{DOMAIN}`, of which each image has "
                    "one. Correct it, or drop the column."
                )
        rows: dict[str, list[int]] = {}
        for row, image_id in enumerate(self.image_ids):
            rows.setdefault(domains[image_id], []).append(row)
        return {DOMAIN: {name: np.array(own) for name, own in rows.items()}}

    def _of_images(self, found: Mapping[Any, Any], what: str, given: Any) -> list[Any]:
        """The entry of every image, in order; ids are compared as texts, as files have them."""
        texts = {str(image_id): value for image_id, value in found.items()}
        if len(texts) < len(found):
            raise ValueError(f"The {what} have two entries for one image, as a text and as a number. Remove one.")
        missing = [image_id for image_id in self.image_ids if str(image_id) not in texts]
        if missing:
            where = f" ({given})" if not isinstance(given, Mapping) else ""
            raise ValueError(
                f"The {what}{where} lack {len(missing):,} of the {len(self.image_ids):,} images, the first "
                f"{missing[0]!r}. Systems are compared on the same images. Make them for this data and split."
            )
        if (more := len(texts) - self.num_images) > 0:
            self.unused.append(f"The {what} are of {more:,} images more, which the data lacks: they are left out.")
        return [texts[str(image_id)] for image_id in self.image_ids]

    def _notes(self, scores: Mapping[str, CaptionScores]) -> list[str]:
        notes = [*self.unused]
        if len(self.image_ids) < self.num_images:
            notes.append(f"Only the first {len(self.image_ids):,} of {self.num_images:,} images: a try, not a result.")
        for system, own in scores.items():
            empty = int((own.words == 0).sum())
            if empty:
                notes.append(f"{empty:,} captions of {plain(system, 80)} have no word and score 0. {_EMPTY}")
        return notes


_EMPTY = "Beams prefer to end where a model is unsure: `--beams 1`, or more training, gives words."


@validate_arguments
def write_captions(path: str | PathLike[str], image_ids: Sequence[str], captions: Sequence[str]) -> None:
    """Writes captions in the format of the COCO evaluation's results: `[{"image_id": 9, "caption": "a dog"}, …]`.

    Args:
        path: the file, made with its folder.
        image_ids: those that are whole numbers are written as numbers, as COCO's server wants them.
        captions: one per image.

    Source: cocodataset.org, "Results format".
    """
    write_atomically(resolved(path), _coco_results(image_ids, captions))


def _coco_results(image_ids: Sequence[str], captions: Sequence[str]) -> str:
    """What a file of captions holds."""
    entries = [
        {"image_id": int(image_id) if _is_number(image_id) else image_id, "caption": caption}
        for image_id, caption in zip(image_ids, captions, strict=True)
    ]
    return json.dumps(entries, ensure_ascii=False)


def read_captions(path: str | PathLike[str]) -> dict[str, str]:
    """Image id → caption, from a file in the format of the COCO evaluation's results.

    Args:
        path: the file, or a folder with `captions.json`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no such file, an image has two captions, or a `results.json` beside it was written with other
            captions.

    Example:
        >>> read_captions("evaluation/captions.json")  # doctest: +SKIP
        {'391895': 'a man riding a motorcycle on a dirt road'}
    """
    file = _file_in(path, CAPTIONS_FILE)
    found: dict[str, str] = {}
    for entry in read_rows(file, kind=".json"):
        image_id, caption = entry.get(IMAGE_ID), entry.get("caption")
        if isinstance(image_id, bool) or not isinstance(image_id, (str, int)):
            raise ValueError(
                f"{file} cannot be read as captions: {entry!r:.120} has no `{IMAGE_ID}` that is a text or a whole "
                'number. A file of results is a JSON list of {"image_id": 9, "caption": "a dog"}, as '
                "`hf-curriculum evaluate --suite captions` writes it."
            )
        image_id = str(image_id)
        if image_id in found or not isinstance(caption, str):
            wrong = "two captions" if image_id in found else f"the caption {caption!r}"
            raise ValueError(f"{file} has {wrong} for the image {image_id!r}; one text is needed. Correct the file.")
        found[image_id] = caption
    return found


def _read_values(path: str | PathLike[str], name: str) -> dict[str, float]:
    """Image id → one value of a `per_image.csv`."""
    file = _file_in(path, PER_IMAGE_FILE)
    rows, found = read_rows(file, kind=".csv"), {}
    if missing := {IMAGE_ID, name} - set(rows.header):
        raise ValueError(
            f"{file} has no column {sorted(missing)}; it has {rows.header}. Images are divided by the vanilla model's "
            f"`{name}`: take the {PER_IMAGE_FILE} of `evaluate --suite captions` with BLEU."
        )
    for row, number in zip(rows, rows.lines, strict=True):
        if (image_id := csv_text(row[IMAGE_ID])) in found:
            raise ValueError(f"{file} has the image {image_id!r} twice, line {number} again. Make the file again.")
        try:
            found[image_id] = float(row[name])
        except ValueError as error:
            raise ValueError(
                f"{file}, line {number}: `{name}` is no number ({error}). Make the file again."
            ) from error
    return found


def _file_in(path: str | PathLike[str], name: str) -> Path:
    """A file, or the one of this name in a folder."""
    file = Path(path) / name if Path(path).is_dir() else Path(path)
    if file != Path(path):
        validate_inside([str(file)], [path], path)
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no file {file}. `hf-curriculum evaluate --suite captions --output FOLDER` writes {name} into "
            "FOLDER: name either."
        )
    validate_beside(file, RESULTS_FILE, _REMEDY)
    return file


def _is_number(image_id: str) -> bool:
    return image_id.isascii() and image_id.isdecimal() and str(int(image_id)) == image_id


def _hundredfold(value: float | None) -> str | None:
    return None if value is None or math.isnan(value) else f"{100 * value:.1f}"
