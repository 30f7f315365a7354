"""Reads what a person gives as a name, a mapping, JSON, YAML or a file; digests of contents in memory."""

from __future__ import annotations

import difflib
import gc
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np

_DEEPEST = 100
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+\Z")  # PyYAML takes 1e-5 for a word, as YAML 1.1 does


def read_config(value: str | Path | Mapping[str, Any], what: str, names: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a curriculum, a scorer, a preset or another mapping, however they were given."""
    names = sorted(names)
    if isinstance(value, type):
        raise TypeError(f"The {what} {value.__name__} is a class. Give one made of it: {value.__name__}(...).")
    parsed = value if isinstance(value, Mapping) else _read(value, what, names)
    _validate_depth(parsed, what)
    if isinstance(parsed, str) and names:
        parsed = {"type": parsed}
    if not isinstance(parsed, Mapping):
        kinds = f"a name of {names}, nor a mapping with a `type`" if names else "a mapping, nor a file that holds one"
        raise ValueError(f"The {what} {str(value)!r} is neither {kinds}.")
    if names and parsed.get("type") not in names:
        given = parsed.get("type")
        within = "" if given == value else f" in {value if isinstance(value, Mapping) else str(value)!r}"
        near = "".join(f" Did you mean {name!r}?" for name in difflib.get_close_matches(str(given).lower(), names, 1))
        raise ValueError(f"There is no {what} {given!r}{within}. The types are {names}.{near}")
    return dict(parsed)


def _read(value: str | Path, what: str, names: list[str]) -> Any:
    """What a name, a text or a file holds."""
    import yaml

    text, name = str(value), str(value).strip()
    if name in names:
        return name
    if isinstance(value, Path) or name.endswith((".yaml", ".yml", ".json")):
        if not Path(name).is_file():
            raise ValueError(f"The {what} file {name!r} does not exist.")
        try:
            text = Path(name).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"The {what} file {name!r} is not UTF-8 ({error}). Save it as UTF-8.") from error
    try:
        return parse_json(text)  # first: its tabs are no YAML
    except RepeatedKeyError as error:
        raise ValueError(f"The {what} {str(value)!r} is not clear: {error}. Remove one of them.") from error
    except ValueError:
        try:
            return read_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            known = f"a name of {names}, " if names else ""
            raise ValueError(f"The {what} {str(value)!r} is neither {known}a file, JSON nor YAML: {error}") from error


def _validate_depth(value: Any, what: str) -> None:
    """Checks that mappings and lists are not nested so deep that reading them would exhaust Python's stack."""
    level = [value]
    for _ in range(_DEEPEST):
        # each object once: a YAML alias names one any number of times
        level = list({id(part): part for whole in level for part in _parts(whole)}.values())
        if not level:
            return
    raise ValueError(f"The {what} is nested more than {_DEEPEST} levels deep, and no {what} is. Look at its brackets.")


def _parts(value: Any) -> Iterable[Any]:
    """What a mapping or a list holds."""
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()


class Configured:
    """A dataclass that is written as a mapping of its `type` and its fields, and read back."""

    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping, `{"type": "phases", ...}`; fields that hold their default are left out."""
        values: dict[str, Any] = {"type": self.type}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                value = value.to_dict() if isinstance(value, Configured) else value
                values[item.name] = list(value) if isinstance(value, tuple) else value
        return values

    def __str__(self) -> str:
        """As it would be written: the fields that hold their default are left out."""
        written = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                written.append(f"{item.name}={value if isinstance(value, Configured) else repr(value)}")
        return f"{type(self).__name__}({', '.join(written)})"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """What `to_dict` wrote."""
        known = [item.name for item in fields(cls)]
        given = {name: value for name, value in values.items() if name != "type"}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"{cls.type!r} has no field {', '.join(map(repr, unknown))}; its fields are {known}. A misspelt field "
                "would leave the default in its place."
            )
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(
                f"{dict(values)!r} cannot be made: {error}. A field is missing, or holds a value of another kind than "
                "its own, such as a number in quotes."
            ) from error


def kind_of(value: object) -> str:
    """The type of a value with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def at_least(owner: str, **limits: tuple[float, float]) -> None:
    """Checks that numbers are finite and not below their limits."""
    for name, (value, limit) in limits.items():
        if not limit <= value < math.inf:
            raise ValueError(f"{owner}({name}={value}) is not possible; {name} is at least {limit:g}.")


def read_yaml(text: str) -> Any:
    """What a YAML text holds, numbers with an exponent as YAML 1.2 and JSON have them."""
    import yaml

    depth = accumulate(1 if mark[0] in "[{" else -1 for mark in re.finditer(r"[][{}]", text))
    try:
        if max(depth, default=0) > _DEEPEST:  # PyYAML takes seconds to give up
            raise RecursionError
        return yaml.load(text, _loader())
    except RecursionError as error:
        raise yaml.YAMLError("its lists and mappings are nested too deep") from error


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
    """As PyYAML makes a mapping, but a key that stands twice is an error."""
    import yaml

    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise yaml.YAMLError(f"the key {twice!r} stands twice in the mapping of line {node.start_mark.line + 1}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


@cache
def _loader() -> type:
    import yaml

    loader = type("Loader", (yaml.SafeLoader,), {})  # the resolver is added to this class alone
    loader.construct_mapping = _construct_mapping
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    return loader


def digest(*content: str | bytes | memoryview | np.ndarray | Path, size: int = 8) -> str:
    """BLAKE2b of all contents, one after the other, in hexadecimal digits."""
    state = hashlib.blake2b(digest_size=size)
    for part in content:
        if isinstance(part, Path):
            with part.open("rb") as stream:
                while block := stream.read(1 << 20):
                    state.update(block)
        else:
            state.update(part.encode() if isinstance(part, str) else part)
    return state.hexdigest()


IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".heic", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pjpeg", ".png"),
    *(".ppm", ".tif", ".tiff", ".webp"),
)
"""The endings, in lower case, of files in a folder that are taken for images; a file that is named is always read."""


class RepeatedKeyError(json.JSONDecodeError):
    """An object of JSON has a key twice: other readers take the last value, without a word."""

    def __str__(self) -> str:
        return self.msg


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise RepeatedKeyError(f"The key {twice!r} stands twice in one object, {pairs[:3]!r:.120}", "", 0)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct)


def parse_json(text: str | bytes) -> Any:
    """What JSON holds; a `JSONDecodeError` also where it has a key twice, or is nested too deeply to be read."""
    collected = gc.isenabled()
    gc.disable()  # the pairs of each object would have it look through all of the program's objects again and again
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except RecursionError as error:
        raise json.JSONDecodeError("It is nested too deeply", str(text[:80]), 0) from error
    finally:
        if collected:
            gc.enable()


def without_nan(value: Any) -> Any:
    """The same mappings, lists and values with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_SECRETS = (
    *("token", "hf_token", "hub_token", "push_to_hub_token", "use_auth_token", "hugging_face_hub_token"),
    *("access_token", "auth_token", "session_token", "aws_session_token", "sas_token", "password", "passwd"),
    *("secret", "client_secret", "secret_key", "secret_access_key", "aws_secret_access_key"),
    *("api_key", "account_key", "access_key"),
)
_NAMES = "|".join(name.replace("_", "[_-]") for name in _SECRETS)
_VALUE = r"(?:'[^']+'|\"[^\"]+\"|[^\s`'\"&,;)}<>]+)"
_SECRET = re.compile(
    r"\b(?:hf|api_org)_(?:(?-i:(?=[a-z]*[A-Z0-9]))[A-Za-z0-9]{8,}|[A-Za-z0-9]{16,})"  # a token, no name of a folder
    r"|(?<=bearer )[^\s'\"]+"
    rf"|(?P<option>(?<![\w-])--(?:{_NAMES})[= ]){_VALUE}"
    rf"|(?P<item>(?<![\w-])(?:{_NAMES})(?:=|['\"]: ?))(?!True\b|False\b|None\b){_VALUE}"
    r"|(?P<user>https?://|://(?=[^\s/:@]*:))[^\s/]+@"
    r"|(?P<query>[?&](?P<name>[^\s=&?]+)=)[^\s&'\"<>]+",
    re.IGNORECASE,
)
_SIGNS = re.compile("sig|token|secret|credential|password|key|auth", re.IGNORECASE)
"""What is in the names of an address's parameters that open what it leads to, and not just name it."""


def redact(text: str, token: str | bool | None = None) -> str:
    """The text without tokens, passwords and signatures: this one, HF_TOKEN, and what looks or is called like one."""
    named = [os.environ.get(name, "") for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")]
    for secret in (token, *(value for value in named if len(value) > 5)):
        if isinstance(secret, str) and secret.strip():
            text = text.replace(secret, "<token>").replace(secret.strip(), "<token>")
    return _SECRET.sub(_hidden, text)


def brief(value: object, most: int = 80) -> str:
    """What a message shows of a value: without secrets and without what moves a terminal; a long one is cut."""
    text = redact(f"{value}"[:100_000])
    text = text if len(text) <= most else f"{text[:most]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@contextmanager
def redacted() -> Iterator[None]:
    """Errors without the secrets of the addresses that they name, those of other libraries too."""
    try:
        yield
    except Exception as error:
        if (clean := redact(f"{error}")) == f"{error}":
            raise
        kind = next((kind for kind in (FileNotFoundError, ValueError) if isinstance(error, kind)), OSError)
        raise kind(clean) from None  # what it came from says it in clear


def _hidden(match: re.Match[str]) -> str:
    """What is left of a secret: the name that it stood behind."""
    if match["query"] and not _SIGNS.search(match["name"]):
        return match[0]
    before = match["option"] or match["item"] or match["user"] or match["query"] or ""
    return f"{before}<token>{'@' * bool(match['user'])}"
