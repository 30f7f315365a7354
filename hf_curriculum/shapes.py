"""Arguments of public functions: each is what its annotation says, or one sentence says what is needed instead."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from hf_curriculum.config import kind_of
from hf_curriculum.names import SCORERS

Function = TypeVar("Function", bound=Callable[..., Any])

_A = re.compile(r"\ban? (list|[\w ]{1,99}?)(?=,| of | or |$)")
_SHORT = 30
_NUMBERS = {int: (Integral, "a whole number"), float: (Real, "a number"), bool: ((Integral, np.bool_), "a bool")}
_TABLES = {
    "datasets.Dataset": 'a column of it, `data["caption"]`',
    "datasets.DatasetDict": 'one of them, `data["{split}"]`',
    "datasets.IterableDatasetDict": 'one split, loaded without `streaming=True`, `data["{split}"]`',
    "datasets.IterableDataset": "the data loaded without `streaming=True`",
    "pandas.DataFrame": "`Dataset.from_pandas(data)`; with PIL images `Dataset.from_dict(data.to_dict('list'))`",
    "polars.DataFrame": "`Dataset.from_polars(data)`",
    "polars.LazyFrame": "`Dataset.from_polars(data.collect())`",
    "pyarrow.Table": "`Dataset(data)`",
    "pyarrow.RecordBatch": "`Dataset(pyarrow.table(data))`",
    "torch.DataLoader": "the Dataset that it loads",
    "torch.IterableDataset": "`Dataset.from_list(list(data))`",
    "torch.Dataset": "`Dataset.from_list([data[row] for row in range(len(data))])`",
}
"""Library and class of tables → what to give in their place; no library is imported for it."""


def validate_arguments(function: Function) -> Function:
    """A public function, or a class, that compares its arguments with their annotations before it does anything.

    An annotation is the only place where a function says what it takes. Names that are not known when the function is
    called stand for anything.
    """
    if isinstance(function, type):
        function.__init__ = validate_arguments(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python's own words for a missing or misspelt argument
            return function(*args, **kwargs)
        hints = _hints(function)
        for name, value in bound.items():
            if name in hints and not _fits(value, hints[name]):
                raise TypeError(_refusal(function, name, bound, hints))
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def validate_fields(config: Any) -> None:
    """Checks that the fields of a dataclass that are annotated as numbers, texts or tuples of them hold such.

    Of fields that other libraries declare only numbers are checked: they take more than some annotations say.
    """
    # not `field.type`, which `HfArgumentParser` changes
    annotations = {
        name: (_evaluate(hint, sys.modules[base.__module__].__dict__), base.__module__.partition(".")[0])
        for base in reversed(type(config).__mro__)
        for name, hint in inspect.get_annotations(base).items()
    }
    for item in fields(config):
        (hint, package), value = annotations.get(item.name, (Any, "")), getattr(config, item.name)
        if package != __name__.partition(".")[0] and not {*_alternatives(hint)} <= {int, float, NoneType}:
            continue
        if _is_plain(hint) and not _fits(value, hint) and value is not item.default:
            number = _number_of(value)
            raise TypeError(
                f"{type(config).__name__}({item.name}={value!r}) is not possible; {item.name} is {_needed(hint)}"
                + (f", and this is a text: write {number!r}" if number is not None and _fits(number, hint) else "")
            )


def _number_of(value: Any) -> int | float | None:
    """The number that a text writes, as YAML's 1e-3 and everything of a CSV file."""
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None


def validate_data(owner: str, name: str, value: Any) -> None:
    """Checks that an argument that any map-style data set may be is no other shape of data."""
    first = value[0] if isinstance(value, (list, tuple)) and len(value) else None
    other = isinstance(value, (str, os.PathLike, Mapping, type, Real, np.ndarray)) or isinstance(first, str)
    if other or _table_of(value) not in _MAP_STYLE or _table_of(first) is not None:
        from datasets import Dataset

        advice = _advice(value, Dataset, name)
        raise TypeError(f"`{owner}` was given {_described(value)} as `{name}`, and a Dataset is needed{advice}.")


_MAP_STYLE = (None, "datasets.Dataset", "torch.Dataset", "torch.IterableDataset", "datasets.IterableDataset")


class _Scope(dict[str, Any]):
    """The names of an annotation: those of its module, or of the libraries that modules import for type checkers."""

    def __missing__(self, name: str) -> Any:
        import builtins

        import datasets

        known = {"Path": Path, "Sequence": Sequence, "Iterable": Iterable, "Mapping": Mapping, "Callable": Callable}
        if "Dataset" in name:
            known[name] = getattr(datasets, name, Any)
        return known.get(name, getattr(builtins, name, Any))


def _evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The type that an annotation names; `Any` where a name in it is for type checkers alone."""
    try:
        return eval(annotation, {}, _Scope(names)) if isinstance(annotation, str) else annotation
    except (TypeError, AttributeError):  # a part or a parameter of a name that is not known
        return Any


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Parameter → its type; a default is allowed whatever its type."""
    hints = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        hint = _evaluate(hint, function.__globals__)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = tuple[hint, ...]  # type: ignore[valid-type]
        if parameter.kind is not parameter.VAR_KEYWORD:
            hints[parameter.name] = hint
    return hints


def _alternatives(hint: Any) -> list[Any]:
    """The members of a union, of the bound of a type variable too."""
    if isinstance(hint, TypeVar):
        return _alternatives(hint.__bound__ or Any)
    if get_origin(hint) in (Union, UnionType):
        return [each for member in get_args(hint) for each in _alternatives(member)]
    return [hint]


def _fits(value: Any, hint: Any) -> bool:
    return any(_fits_one(value, each) for each in _alternatives(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin][0]) and (origin is bool or not isinstance(value, bool))
    if origin in (str, Path, os.PathLike):
        return isinstance(value, (str, os.PathLike))
    if origin is Literal:
        return any(isinstance(value, type(choice)) for choice in inner)  # which one, the function says best
    if origin in (None, NoneType):
        return value is None
    if origin is Callable:
        return callable(value)
    if origin in (Any, object) or not isinstance(origin, type):
        return True
    if origin in (dict, Mapping):
        exact = type(value) is dict and len(inner) == 2
        return (isinstance(value, Mapping) or _is_store(type(value))) and (
            not exact or all(_fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items())
        )
    if _is_series(origin):
        sized = origin not in (Iterable, np.ndarray) or not inner
        each = Union[tuple(part for part in inner if part is not ...) or (Any,)]  # noqa: UP007
        listed = value if isinstance(value, (list, tuple)) else value[:1].tolist() if _is_vector(value) else ()
        parts = {} if each is Any else {type(part): part for part in listed}
        if origin is np.ndarray:
            return _holds_values(value, sized) and not any(map(_is_no_number, listed[:1]))
        return _holds_values(value, sized) and all(_fits(part, each) for part in parts.values())  # one of each type
    return isinstance(value, origin)


def _is_store(cls: type) -> bool:
    """Whether a class finds values by name and cannot list the names, as a folder of features does."""
    return all(hasattr(cls, part) for part in ("__getitem__", "__contains__")) and not hasattr(cls, "__iter__")


def _is_series(origin: Any) -> bool:
    return origin in (list, tuple, set, Sequence, Iterable, Collection, np.ndarray)


def _holds_values(value: Any, sized: bool) -> bool:
    """Whether something is a list, an array or another row of values, no text, mapping or table."""
    no_list = isinstance(value, (str, bytes, Mapping, os.PathLike, type)) or _table_of(value) is not None
    wanted = hasattr(value, "__iter__") and (hasattr(value, "__len__") or not sized)
    return wanted and not no_list and getattr(value, "ndim", 1) > 0


def _is_no_number(value: Any) -> bool:
    return isinstance(value, (str, bytes, Mapping)) or _table_of(value) is not None


def _is_vector(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _is_plain(hint: Any) -> bool:
    """Whether a type is made of numbers, texts and lists of them alone."""
    plain = (int, float, bool, str, tuple, NoneType)
    return all((get_origin(each) or each) in plain for each in _alternatives(hint))


def _table_of(value: Any) -> str | None:
    """The name in `_TABLES` of what a value is."""
    names = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(value).__mro__)
    return next((name for name in names if name in _TABLES), None)


def _refusal(function: Any, name: str, bound: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """The sentence for an argument of the wrong shape, and the order of two that were exchanged."""
    first = next(iter(bound.values()))
    owner = first if isinstance(first, type) else type(first)
    who = {"__init__": owner.__name__, "__call__": owner.__name__}.get(function.__name__, function.__name__)
    if "." in function.__qualname__ and who == function.__name__:
        who = f"{owner.__name__}.{who}"
    value, hint = bound[name], hints[name]
    found, needed = _described(value, hint), f"{_needed(hint)} is needed{_advice(value, hint, name)}."
    text = f"`{who}` was given {found} as `{name}`, and {needed}"
    others = {other: given for other, given in bound.items() if Any not in (hint, hints.get(other, Any))}
    if any(_fits(given, hint) and _fits(value, hints[other]) for other, given in others.items()):
        parameters = [part for part in hints if part not in ("self", "cls")]
        text += f" The order of the arguments is `{who.rpartition('.')[2]}({', '.join(parameters[:3])})`."
    return text


def _described(value: Any, hint: Any = Any) -> str:
    """What a value is, with its content where that is short; of a list the first part that is wrong."""
    if value is None or isinstance(value, (bool, Real)):
        return repr(value)
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, np.ndarray):
        return f"an array of the shape {value.shape} and the type {value.dtype}"
    if isinstance(value, (list, tuple, dict)) and len(value) and (inner := _inner(value, hint)):
        parts = list(value.values() if isinstance(value, dict) else value)
        odd = next((part for part in parts if not any(_fits(part, each) for each in inner)), parts[0])
        return f"{kind_of(value)} that holds {_described(odd)}"
    if isinstance(value, Mapping):
        splits = any(_table_of(part) is not None for part in (value, *value.values()))
        return f"{kind_of(value)} of the {'splits' if splits else 'keys'} {list(map(str, value))[:5]}"
    return kind_of(value)


def _inner(value: Any, hint: Any) -> list[Any]:
    """What an annotation says of the parts of a list, or of the values of a mapping; anything of a list otherwise."""
    hints = [(get_origin(each), get_args(each)) for each in _alternatives(hint)]
    if isinstance(value, dict):
        return [inner[1] for origin, inner in hints if origin in (dict, Mapping)]
    return [part for origin, inner in hints if _is_series(origin) for part in inner if part is not ...] or [Any]


def _needed(hint: Any) -> str:
    """The types of an annotation in words."""
    names = []
    for each in _alternatives(hint):
        origin, inner = get_origin(each) or each, get_args(each)
        if origin in _NUMBERS:
            name = _NUMBERS[origin][1]
        elif origin is Literal:
            name = " or ".join(map(repr, inner))
        elif _is_series(origin) and inner:
            each = _needed(Union[tuple(part for part in inner if part is not ...)])  # noqa: UP007
            name = "a list" if inner[0] is Any else f"a list of {_A.sub(_plural, each)}"
        elif _is_series(origin):
            name = "an array" if origin is np.ndarray else "a list"
        elif origin in (dict, Mapping) and inner and inner[1] is not Any:
            name = f"a mapping of {_A.sub(_plural, _needed(inner[0]))} to {_A.sub(_plural, _needed(inner[1]))}"
        else:
            words = {
                str: "a text",
                Path: "a path",
                Mapping: "a mapping",
                dict: "a mapping",
                Callable: "a function",
                NoneType: "None",
            }
            title = getattr(origin, "__name__", str(origin))
            name = words.get(origin, f"{'an' if title[0] in 'AEIOU' else 'a'} {title}")
        names.append(name)
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _plural(found: re.Match[str]) -> str:
    return f"{found[1]}s"


def _list_instead(value: Any, hint: Any, name: str) -> str:
    """The list to give in place of a value; nothing where that is not clear."""
    table, of_texts, of_numbers = _table_of(value), _fits(["text"], hint), _fits([0.5], hint)
    texts = isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(part, str) for part in value)
    if isinstance(value, Mapping) and _fits(list(value.values()), hint):
        return "`list(data.values())`"
    if table is not None and _fits("path", hint):
        return "the path that it was read from"
    if table is not None and _fits([value], hint) and not of_texts:
        return "`[data]`"
    if table is not None:
        rows = f'data["{next(iter(value), "train")}"]' if isinstance(value, Mapping) else "data"
        column = "score" if of_numbers and not of_texts else "caption"
        return f'a column, as in `list({rows}["{column}"])`'
    if texts and of_numbers and all(_number_of(part) is not None for part in value):
        return f"`[float(text) for text in {name}]`"
    if texts and _fits([[part] for part in value], hint) and not of_numbers:
        return f"`[[text] for text in {name}]`"
    if value is None or isinstance(value, os.PathLike) or _holds_values(value, sized=False):
        return ""
    whole = isinstance(value, (str, Real)) and len(repr(value)) <= _SHORT
    return f"`[{repr(value) if whole else name}]`" if _fits([value], hint) else ""


def _advice(value: Any, hint: Any, name: str) -> str:
    """`: give …`, what to give in place of a value; nothing where that is clear."""
    from datasets import Dataset, DatasetDict

    remedy, table = "", _table_of(value)
    first = value[0] if isinstance(value, (list, tuple)) and len(value) else None
    lists = any(_is_series(get_origin(each) or each) for each in _alternatives(hint))
    if isinstance(value, type):
        remedy = f"one that is made of it, `{value.__name__}(...)`"
    elif isinstance(value, str) and value in SCORERS:
        remedy = f"the scorer, `{SCORERS[value].__name__}(...)`"
    elif Dataset not in _alternatives(hint):
        remedy = _list_instead(value, hint, name) if lists else ""
    elif table is not None:
        split = next(iter(value), "train") if isinstance(value, Mapping) else "train"
        remedy = _TABLES[table].format(split=split)
    elif isinstance(value, Mapping) and any(_table_of(part) is not None for part in value.values()):
        remedy = (
            "`datasets.DatasetDict(data)`"
            if DatasetDict in _alternatives(hint)
            else f'one of them, `data["{next(iter(value))}"]`'
        )
    elif isinstance(value, Mapping):
        columns = value and all(isinstance(part, (list, tuple, np.ndarray)) for part in value.values())
        remedy = "`Dataset.from_dict(data)`" if columns else "a list of rows, `Dataset.from_list([data])`"
    elif isinstance(value, (str, os.PathLike)):
        remedy = "the data that `load_captioned`, `load_conversations` or `load_scored` reads from it"
    elif isinstance(first, Mapping):
        remedy = "`Dataset.from_list(data)`"
    elif _table_of(first) is not None:
        remedy = "`datasets.concatenate_datasets(data)`"
    elif not lists and (value is None or _holds_values(value, sized=False)):
        remedy = '`Dataset.from_dict({"caption": [...]})`, for example'
    return f": give {remedy}" if remedy else ""
