"""The contract of every difficulty score: a `datasets.map` transform that writes float32 columns."""

from __future__ import annotations

import ast
import inspect
import logging
import marshal
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from datasets.fingerprint import Hasher

from hf_curriculum.columns import CAPTION, IMAGE, require_columns
from hf_curriculum.config import digest, kind_of
from hf_curriculum.data.conversations import ConversationError, Part, Turns, is_conversation, read_messages, text_of
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.parts import launched_here
from hf_curriculum.provenance import ScoreProvenance, installed_versions, validate_choice
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform
from hf_curriculum.words import warn_about_words

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, IterableDataset

logger: logging.Logger = logging.getLogger(__name__)


def _with_helpers(module: ModuleType) -> dict[str, str | bytes]:
    """The source of a module and, by their names, of those that it imports from its own folder, and that these do."""
    source, file = inspect.getsource(module), Path(inspect.getfile(module))
    is_package = file.name == "__init__.py"
    root = file.parents[module.__name__.count(".") + is_package]
    found: dict[str, str | bytes] = {module.__name__: source}
    if {"site-packages", "dist-packages"} & set(file.parts):  # what is installed there has a version
        return found
    left: list[tuple[str, str | bytes, bool]] = [(module.__name__, source, is_package)]
    while left:
        for name in _imported(*left.pop()):
            place = root.joinpath(*name.split("."))
            helper = next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)
            if helper is not None and name not in found and helper.is_relative_to(file.parent):
                found[name] = helper.read_bytes()
                left.append((name, found[name], helper.name == "__init__.py"))
    return found


def _imported(name: str, source: str | bytes, is_package: bool) -> set[str]:
    """The names that a module may import, those of packages above them and of attributes among them."""
    names: set[str] = set()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            above = parts[: len(parts) + is_package - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names.update([base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)])
    return {".".join(parts[:end]) for parts in (each.split(".") for each in names) for end in range(1, len(parts) + 1)}


def _source_of(*things: Any) -> str | None:
    """A digest of the modules that define classes, functions or objects, with their helpers: text, else bytecode."""
    texts: dict[str, str | bytes] = {}
    for thing in (getattr(each, "_orig_mod", each) for each in things):  # of a compiled model the model
        owner = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        top = owner.__module__.partition(".")[0]
        if top in (__name__.partition(".")[0], "__main__", "builtins") or top in sys.stdlib_module_names:
            continue
        try:
            texts |= _with_helpers(sys.modules[owner.__module__])
        except (OSError, TypeError, KeyError):
            members = [owner] if isinstance(owner, FunctionType) else vars(owner).values()
            code = [marshal.dumps(each.__code__) for each in members if isinstance(each, FunctionType)]
            texts[f"{owner.__module__}.{owner.__qualname__}"] = b"".join(code)
    return digest(*(part for item in sorted(texts.items()) for part in item), size=16) if texts else None


def _validate_score(cls: type) -> None:
    """Raises a `TypeError` for a `score` that cannot be called with a batch and the worker's rank."""
    score = vars(cls).get("score")
    if isinstance(score, FunctionType):
        try:
            inspect.signature(score).bind(None, {}, None)
        except TypeError as error:
            found = f"{cls.__name__}.score{inspect.signature(score)}"
            raise TypeError(f"{found} does not take a batch and the worker's number ({error}).") from error


def _as_float32(values: Any) -> np.ndarray:
    """What `score` returned as float32, tensors of any type, device and history too."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, (list, tuple)):
        values = [value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value for value in values]
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().float().cpu().numpy()
    kind = np.asarray(values).dtype
    if kind.kind not in "biufO":
        raise TypeError(f"values of the type {kind}")
    return np.asarray(values, dtype=np.float32)


class Component:
    """Base of scorers, taggers and detectors: a configuration, and the model that it loads.

    Every attribute whose name does not begin with an underscore is pickled, and decides the key that `datasets` caches
    by. So does the source of your own classes and functions: see `source_digest`. What `load` returns is kept in an
    attribute that is not pickled: the key is the same before and after use, and no weights are sent to workers.
    """

    packages: tuple[str, ...] = ()
    model: str | None = None
    revision: str | None = None
    backend: str | None = None
    _class_source: str | None = None  # of the class, as it was when the class was made

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._class_source = _source_of(*cls.__mro__)

    def source_digest(self) -> str | None:
        """A digest of the source of your own classes and functions that score; None for the library's, which has a
        version."""
        parts = [value for value in vars(self).values() if callable(value) and not isinstance(value, Component)]
        found = [self._class_source, _source_of(*parts)]
        found += [value.source_digest() for value in vars(self).values() if isinstance(value, Component)]
        return digest(*(each for each in found if each), size=16) if any(found) else None

    def load(self, device: torch.device) -> Any:
        """Builds the model on `device`. Called once per process and device, at the first use of `loaded`."""
        raise NotImplementedError(f"{type(self).__name__} has no model to load: it does not define `load`.")

    def device(self, rank: int | None = None) -> torch.device:
        """The device of this worker: of P processes on a machine, the p-th has the GPUs p, p + P, p + 2P, ..."""
        import torch

        if torch.cuda.is_available():
            place, processes = launched_here()
            return torch.device("cuda", (place + (rank or 0) * processes) % torch.cuda.device_count())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

    def loaded(self, rank: int | None = None) -> Any:
        """What `load` returned for this worker's device, kept for the next batch but never pickled."""
        device = self.device(rank)
        kept = self.__dict__.setdefault("_loaded", {})
        if device not in kept:
            kept[device] = self.load(device)
        return kept[device]

    def arguments(self) -> Any:
        """The configuration as JSON, for the provenance of scores."""
        return {"type": type(self).__name__, **self.__getstate__()}

    def __getstate__(self) -> dict[str, Any]:
        # sorted: the order of use does not change the cache key
        return {name: value for name, value in sorted(vars(self).items()) if not name.startswith("_")}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # `datasets` hashes the pickle: with the source in it, an edited class has another cache key
        build, arguments, state, *rest = super().__reduce_ex__(protocol)
        source = self.source_digest()
        return build, arguments, state if source is None else {**state, "_pickled_source": source}, *rest

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.__getstate__().items())
        return f"{type(self).__name__}({options})"


class Scorer(Component):
    """The base class of scores: `dataset.map(scorer, batched=True)` adds a number for every example as a column.

    A subclass sets the class attributes below (or instance attributes of the same names in `__init__`) and writes
    `score`. Its constructor stores every parameter under the parameter's own name, where `arguments` finds it.

    Attributes without a leading underscore (configuration and fitted attributes) are pickled. With the source of your
    module they make the cache key of `datasets`. `load` builds a model and `loaded` keeps it; it is never pickled.

    Attributes:
        columns: the columns that are read.
        name: the column that is written.
        easy: which end of the score is easy, "low" or "high".
        group_by: the column that `add_scores` sorts rows by, passed to `score` if the data has it: with `IMAGE_ID` an
            image can be encoded once for all its captions.
        decode_false: image or audio columns that `add_scores` passes as with `decode=False` (`{"bytes", "path"}`), for
            a scorer that decodes them itself, for example to give NaN for a corrupt image. A plain `map` decodes them.
        numpy_columns: columns of vectors, whose rows `add_scores` passes as arrays, not as lists of numbers.
        fitted_attributes: the attributes that `fit` sets, ending in `_`; empty for a scorer that needs no corpus.
        part, turns: the role whose messages of a conversation `read_texts` reads, and which turns: see
            `CaptionScorer`.
        packages: distributions whose versions affect the result.
        model, revision, backend: the model and the image preprocessing, for the provenance.

    Example:
        >>> class Commas(Scorer):
        ...     columns, name, easy = ("caption",), "commas", "low"
        ...     def score(self, batch, rank):
        ...         return np.array([text.count(",") for text in batch["caption"]])
        >>> Commas()({"caption": ["red, green, blue", "red"]})
        {'commas': array([2., 0.], dtype=float32)}
    """

    columns: tuple[str, ...] = ()
    name: str = ""
    easy: Literal["low", "high"] = "low"
    group_by: str | None = None
    decode_false: tuple[str, ...] = ()
    numpy_columns: tuple[str, ...] = ()
    fitted_attributes: tuple[str, ...] = ()
    part: Part = "assistant"
    turns: Turns = "all"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _validate_score(cls)
        for name in ("__init__", "fit", "fit_counts"):
            if name in vars(cls) and cls.__module__.startswith("hf_curriculum."):
                setattr(cls, name, validate_arguments(vars(cls)[name]))

    @property
    def outputs(self) -> dict[str, str]:
        """Written column → its easy end. A scorer of several columns overrides this; its `score` returns a mapping."""
        return {self.name: self.easy}

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray | Mapping[str, np.ndarray]:
        """Scores a batch.

        Args:
            batch: `columns` (and `group_by`, if the data has it), one list entry per row.
            rank: the worker process, None or 0 without any; see `device`.

        Shapes:
            returns (rows,) of numbers, NaN where a row cannot be scored; or one such array per name of `outputs`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `score`.")

    @validate_arguments
    def fit(self, dataset: Dataset) -> Scorer:
        """Sets the fitted attributes from a corpus, and returns the scorer; there are none in a score of one row."""
        return self

    def __call__(self, batch: Mapping[str, Any], rank: int | None = None) -> dict[str, np.ndarray]:
        """Scores a batch of `datasets.map(..., batched=True)`.

        Args:
            batch: column → one entry per row; columns that the scorer does not read are left alone.
            rank: the worker's number, given by `map(..., with_rank=True)`.

        Shapes:
            returns float32 (rows,) per written column.

        Raises:
            TypeError: the batch is a single row, or no mapping of columns; `columns` is one string.
            ValueError: a column is missing, or `score` returned something else than one number per row.
            RuntimeError: the scorer needs `fit` first.
        """
        columns, rows = self._read(batch)
        self.validate_fitted()
        scores = self.score(columns, rank)
        if not isinstance(scores, Mapping):
            scores = {self.name: scores}
        return self._checked(scores, rows)

    def _set_columns(
        self, columns: tuple[str, ...], name: str, easy: Literal["low", "high"], decode_false: tuple[str, ...] = ()
    ) -> None:
        """The columns that are read and the one that is written, as a constructor was given them."""
        validate_choice("easy", easy, ("low", "high"))
        self.columns, self.name, self.easy, self.decode_false = columns, name, easy, decode_false

    def _set_part(self, part: Part, turns: Turns) -> None:
        """What is read of a conversation, as a constructor was given it."""
        validate_choice("part", part, get_args(Part))
        validate_choice("turns", turns, get_args(Turns))
        self.part, self.turns = part, turns

    def read_texts(self, cells: Sequence[object], column: str) -> tuple[list[str], np.ndarray]:
        """The texts of a batch that are not missing or blank, and a bool mask (rows,) of their rows.

        Of a conversation they are the messages of `part` in `turns`. Unreadable ones are counted in a warning.

        Raises:
            TypeError: a cell is neither a text nor a conversation.
        """
        failed: list[str] = []
        texts = [
            cell
            if cell is None or isinstance(cell, str) or not is_conversation(cell)
            else self._said(row, cell, failed)
            for row, cell in enumerate(cells)
        ]
        if failed:
            message = "`%s`: %d of %d conversations cannot be read (NaN). The first, %s."
            logger.warning(message, self.name, len(failed), len(texts), failed[0])
        return readable_captions(texts, column)

    def look_at_words(self, texts: Sequence[str]) -> None:
        """Warns once of texts in which a count of words finds others than they have."""
        if not hasattr(self, "_words_checked"):
            self._words_checked = True
            warn_about_words(texts, type(self).__name__)

    def _said(self, row: int, cell: object, failed: list[str]) -> str | None:
        try:
            return text_of(read_messages(cell), self.part, self.turns)
        except ConversationError as error:
            failed.append(f"in row {row} of the batch: {error}")
            return None

    def validate_columns(self) -> None:
        """Raises a `TypeError` for one string in place of columns or attributes, and where there is no `name`."""
        if not all(isinstance(name, str) and name for name in self.outputs):
            raise TypeError(
                f'{type(self).__name__} has no `name`, the column that it writes. Give it one: name = "my_score".'
            )
        for name in ("columns", "decode_false", "fitted_attributes"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{type(self).__name__}.{name} is a string, not a tuple of columns.")

    @property
    def needs_fit(self) -> bool:
        """Whether the score depends on a corpus, and `fit` has not been called."""
        return not all(hasattr(self, attribute) for attribute in self.fitted_attributes)

    def validate_fitted(self) -> None:
        """Raises a `RuntimeError` if the scorer needs `fit` first."""
        if self.needs_fit:
            missing = [attribute for attribute in self.fitted_attributes if not hasattr(self, attribute)]
            raise RuntimeError(
                f"{type(self).__name__} was used before `fit`: it has no {', '.join(missing)}. Call "
                "`scorer.fit(dataset)` on the training data first."
            )

    def _read(self, batch: Mapping[str, Any]) -> tuple[dict[str, list[Any]], int]:
        who = type(self).__name__
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"{who} was given {kind_of(batch)}. It takes a mapping of columns: use "
                "`dataset.with_format(None)` before `map`, or `add_scores`."
            )
        self.validate_columns()
        require_columns(
            batch.keys(),
            self.columns,
            reader=f"{who} reads {', '.join(f'`{column}`' for column in self.columns)}.",
            remedy="Rename the columns (`dataset.rename_column`), or tell the scorer their names.",
        )
        wanted = list(self.columns)
        if self.group_by is not None and self.group_by not in wanted and self.group_by in batch:
            wanted.append(self.group_by)
        columns = {}
        for column in wanted:
            values = batch[column]
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sized):
                raise TypeError(
                    f"{who} was given a single row: `{column}` is a {type(values).__name__}, not a list. Scorers work "
                    "on batches. Use `dataset.map(scorer, batched=True)`, or `add_scores(dataset, scorer)`."
                )
            columns[column] = list(values)
        return columns, len(next(iter(columns.values()), []))

    def _checked(self, scores: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
        who = type(self).__name__
        try:
            arrays = {column: _as_float32(values) for column, values in scores.items()}
        except (ValueError, TypeError) as error:  # NumPy's words for texts, and for lists of unequal lengths
            raise TypeError(
                f"`{who}.score` returned something else than numbers ({error}). Return one number per row, NaN where "
                "a row cannot be scored."
            ) from error
        shapes = {column: array.shape for column, array in arrays.items()}
        if shapes != dict.fromkeys(self.outputs, (rows,)):
            wanted = f"one number per row for each of {list(self.outputs)}"
            raise ValueError(f"{who} returned {shapes} for {rows} rows, not {wanted}.")
        for column, kept in arrays.items():
            self._warn_if_merged(scores[column], kept)
        return arrays

    def _warn_if_merged(self, given: Any, kept: np.ndarray) -> None:
        """Warns once of integers (rows,) that are other numbers as float32."""
        if not (np.abs(kept) > 1 << 24).any() or vars(self).get("_warned_of_integers"):
            return
        exact = np.array([np.nan if value is None else float(value) for value in given])
        self._warned_of_integers = bool(((exact != kept) & (exact == np.floor(exact))).any())
        if self._warned_of_integers:
            logger.warning(
                "%s returned integers above 16,777,216, which as float32, as scores are kept, become equal to their "
                "neighbours. Return smaller numbers, such as differences from the smallest.",
                type(self).__name__,
            )

    def arguments(self) -> dict[str, Any]:
        """The constructor's parameters, without the column's name and easy end, for the provenance.

        For a fitted scorer also `fitted`, a digest of the fitted attributes. Override it for parameters that are not
        JSON.

        Raises:
            TypeError: the constructor does not keep a parameter under its own name.
        """
        names = [name for name in inspect.signature(type(self)).parameters if name not in ("name", "easy")]
        if CAPTION in self.columns:  # a caption has no turns: said is only what was asked for
            names = [
                name for name in names if name not in ("part", "turns") or getattr(self, name) != getattr(Scorer, name)
            ]
        lost = [name for name in names if not hasattr(self, name)]
        if lost:
            raise TypeError(f"{type(self).__name__} does not keep its parameter `{lost[0]}` under that name.")
        arguments = {name: getattr(self, name) for name in names}
        for name, value in arguments.items():
            if isinstance(value, (Component, RegionSource)):
                arguments[name] = value.arguments()
        if self.fitted_attributes and not self.needs_fit:
            arguments["fitted"] = Hasher.hash([getattr(self, name) for name in self.fitted_attributes])
        return arguments

    def describe(self, column: str | None = None) -> ScoreProvenance:
        """The provenance of a column that this scorer writes, of `name` by default."""
        column = self.name if column is None else column
        cls = type(self)
        ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        return ScoreProvenance(
            column=column,
            scorer=cls.__qualname__ if ours else f"{cls.__module__}.{cls.__qualname__}",
            arguments=self.arguments(),
            model=self.model,
            revision=self.revision,
            versions=installed_versions(("hf-curriculum", *self.packages)),
            backend=self.backend,
            easy=self.outputs[column],
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def readable_captions(captions: Sequence[object], column: str) -> tuple[list[str], np.ndarray]:
    """The captions of a batch that are not None, empty or blank, and a bool mask (rows,) of their rows."""
    for row, caption in enumerate(captions):
        if caption is not None and not isinstance(caption, str):
            raise TypeError(
                f"`{column}` in row {row} of the batch is a {type(caption).__name__}: {str(caption)[:60]!r}. A text "
                "is needed, or a conversation: a list of messages with `role` and `content`. `load_conversations` "
                "reads other forms of conversations, and `load_captioned` makes one row of each caption of a list."
            )
    mask = np.fromiter((bool(caption and not caption.isspace()) for caption in captions), bool, len(captions))
    return [caption for caption, kept in zip(captions, mask.tolist(), strict=True) if kept], mask


def scatter(values: Sequence[float], mask: np.ndarray) -> np.ndarray:
    """Scores of the rows in a mask → float32 (rows,), NaN where the mask is False."""
    scores = np.full(len(mask), np.nan, np.float32)
    scores[mask] = values
    return scores


class CaptionScorer(Scorer):
    """A score of texts alone, captions or what is said in conversations; a subclass defines `score_captions`.

    Args:
        column: where the texts are: strings, or conversations.
        name: the column to write.
        easy: which end of the score is easy.
        part: whose messages of a conversation are read, "assistant", "user" or "system", or "all" of them.
        turns: all of these messages, one per line, or the "first" or the "last" of them.

    Shapes:
        float32 (rows,); NaN where the text is missing, empty or blank, and for a conversation without such a message
        or one that cannot be read, which is counted in a warning.

    Raises:
        ValueError: unknown `easy`, `part` or `turns`.
        TypeError: a cell is neither a text nor a conversation.

    Example:
        >>> class Questions(CaptionScorer):
        ...     def __init__(self):
        ...         super().__init__("messages", "questions", "low", part="user")
        ...     def score_captions(self, captions, rank):
        ...         return [text.count("?") for text in captions]
        >>> Questions()({"messages": [[{"role": "user", "content": "What? Where?"}]]})
        {'questions': array([2.], dtype=float32)}
    """

    def __init__(
        self, column: str, name: str, easy: Literal["low", "high"], *, part: Part = "assistant", turns: Turns = "all"
    ) -> None:
        self.column = column
        self._set_columns((column,), name, easy)
        self._set_part(part, turns)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        captions, mask = self.read_texts(batch[self.column], self.column)
        return scatter(self.score_captions(captions, rank) if captions else [], mask)

    def score_captions(self, captions: list[str], rank: int | None) -> Sequence[float]:
        """The scores of captions that are not blank; `rank` is the worker process."""
        raise NotImplementedError(f"{type(self).__name__} does not define `score_captions`.")


Aggregate = Literal["mean", "max", "min"]
"""How the scores of a row's images become the row's."""


class ImageScorer(Scorer):
    """A score of images. Where rows have lists of images, `score` gets a row per image, and a row has their aggregate.

    The images are the first of `columns`, and in `decode_false`. The other columns are repeated, and the images of one
    row count as different ones, whatever its `image_id`. A row is NaN if it has no image, or one that has no score.

    Example:
        >>> class Width(ImageScorer):
        ...     columns, name, decode_false = ("images",), "width", ("images",)
        ...     def score(self, batch, rank):
        ...         return [image.width for image in batch["images"]]
        >>> from PIL import Image
        >>> Width()({"images": [[Image.new("RGB", (2, 2)), Image.new("RGB", (4, 4))], []]})
        {'width': array([ 3., nan], dtype=float32)}
    """

    aggregate: Aggregate = "mean"

    def _set_aggregate(self, aggregate: Aggregate) -> None:
        """How the scores of a row's images become the row's, as a constructor was given it; after the columns."""
        validate_choice("aggregate", aggregate, get_args(Aggregate))
        if aggregate != "mean" and not self._reads_images:
            raise ValueError(
                f"`aggregate={aggregate!r}` is of a row's images, and this {type(self).__name__} reads "
                f"{' and '.join(self.columns)}, no images. Leave it out."
            )
        self.aggregate = aggregate

    @property
    def _reads_images(self) -> bool:
        return self.columns[0] in self.decode_false

    def __call__(self, batch: Mapping[str, Any], rank: int | None = None) -> dict[str, np.ndarray]:
        cells = batch.get(self.columns[0], ()) if isinstance(batch, Mapping) and self._reads_images else ()
        if not any(map(_is_list, cells)):
            return super().__call__(batch, rank)
        columns, rows = self._read(batch)
        images = [list(cell) if _is_list(cell) else [cell] for cell in columns[self.columns[0]]]
        of_row = np.repeat(np.arange(rows), [len(each) for each in images])  # (images,)
        if self.group_by in columns:
            columns[self.group_by] = [
                None if _is_list(cell) else group
                for cell, group in zip(columns[self.columns[0]], columns[self.group_by], strict=True)
            ]
        columns = {name: [values[row] for row in of_row] for name, values in columns.items()}
        columns[self.columns[0]] = [image for each in images for image in each]
        found = super().__call__(columns, rank)
        return {name: _aggregated(scores, of_row, rows, self.aggregate) for name, scores in found.items()}

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if self.aggregate == "mean" and (IMAGE in self.columns or not self._reads_images):  # one image, or none
            arguments.pop("aggregate", None)
        return arguments


def _is_list(cell: Any) -> bool:
    return isinstance(cell, (list, tuple)) or (isinstance(cell, np.ndarray) and cell.dtype == object)


def _aggregated(scores: np.ndarray, of_row: np.ndarray, rows: int, aggregate: Aggregate) -> np.ndarray:
    """Scores of images (images,), and the row of each → float32 (rows,), NaN without an image, or with a NaN."""
    counts = np.bincount(of_row, minlength=rows)
    reduce, start = (np.minimum, np.inf) if aggregate == "min" else (np.maximum, -np.inf)
    found = np.full(rows, start)
    with np.errstate(invalid="ignore"):  # NaN stays NaN, and 0 / 0 is one
        if aggregate == "mean":
            found = np.bincount(of_row, scores, rows) / counts
        else:
            reduce.at(found, of_row, scores)
    return np.where(counts == 0, np.nan, found).astype(np.float32)


def corpus_batches(
    dataset: Dataset | IterableDataset, columns: Sequence[str], who: str
) -> Iterator[dict[str, list[Any]]]:
    """Batches of some columns of a data set, for `who.fit`; other columns are not decoded."""

    if dataset.column_names is not None:
        require_columns(
            dataset.column_names,
            columns,
            reader=f"`{who}.fit` learns from it.",
            remedy="Rename the column (`dataset.rename_column`), or tell the scorer its name.",
        )
    warn_of_transform([dataset])
    yield from dataset.with_format(None).select_columns(list(columns)).iter(batch_size=1000)
