"""Text, numbers and images as HTML that stays inside its place, whatever they hold."""

from __future__ import annotations

import base64
import math
import re
from io import BytesIO
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from hf_curriculum.data.images import to_rgb

# Characters that no HTML document may hold, halves of surrogate pairs, which UTF-8 cannot, and marks that turn the
# direction of what follows; text in a right-to-left script needs none, as each element finds its own direction.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CODE = re.compile(r"`([^`\n]+)`")
_STRONG = re.compile(r"\*\*(?=\S)((?:(?!\*\*).)+)(?<=\S)\*\*", re.DOTALL)
_FENCE = re.compile(r"^```[^\n]*\n(.*?)(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_NUMERIC = re.compile(r"[+\-−±]?\s?[\d.,]+\s?(%|[a-zA-Z/]{1,8})?")


def allowed(text: object) -> str:
    """Text without the characters that no HTML document may hold; markup stays markup."""
    return text if isinstance(text, Markup) else _FORBIDDEN.sub("\ufffd", str(text))


def _truncated(text: object, limit: int) -> str:
    """Jinja's filter `truncated`: the first `limit` characters, then an ellipsis."""
    plain = str(text)
    return plain if len(plain) <= limit else plain[:limit] + "…"


TEMPLATES = Environment(
    loader=PackageLoader("hf_curriculum.reporting"),
    autoescape=True,
    finalize=allowed,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The templates of pages. Everything put into one is escaped."""
TEMPLATES.filters["truncated"] = _truncated


def file_stem(name: str, number: int) -> str:
    """A file's name without its ending: `name` where it can be one, else its letters and digits after its number."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return f"{number}_{re.sub('[^A-Za-z0-9]+', '_', name)[:60].strip('_')}"


def prose(text: str) -> Markup:
    """Paragraphs (separated by an empty line), `- ` lists, fenced blocks, `code` and **bold**; all else is text."""
    parts = _FENCE.split(allowed(text))  # text, content of a block, text, ...
    return Markup("\n").join(
        preformatted(part)
        if index % 2
        else Markup("\n").join(_block(block) for block in re.split(r"\n\s*\n", part) if block.strip())
        for index, part in enumerate(parts)
        if part.strip()
    )


def preformatted(text: str) -> Markup:
    """Text in a fixed-width font, lines as they are."""
    return Markup('<pre tabindex="0" dir="auto">{}</pre>').format(allowed(text).strip("\n"))


def _block(block: str) -> Markup:
    """A list or a paragraph."""
    lines = [line.strip() for line in block.strip().splitlines()]
    if all(line.startswith(("- ", "* ")) for line in lines):
        items = [Markup('<li dir="auto">{}</li>').format(_inline(line[2:])) for line in lines]
        return Markup("<ul>{}</ul>").format(Markup("").join(items))
    return Markup('<p dir="auto">{}</p>').format(_inline(" ".join(lines)))


def _inline(text: str) -> Markup:
    """`code` and **bold**; no markup inside code."""
    pieces = _CODE.split(text)  # text, code, text, ...
    return Markup("").join(
        Markup("<code>{}</code>").format(piece)
        if index % 2
        else Markup(_STRONG.sub(r"<strong>\1</strong>", str(escape(piece))))
        for index, piece in enumerate(pieces)
    )


def cell(value: Any) -> str:
    """A value as text for people: thousands separators, four digits, a dash for what is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_number(value):
        return number(value, digits=4)
    return str(value)


def is_number(value: Any) -> bool:
    """Whether a value is a number (numpy's included), which `bool` is not."""
    return isinstance(value, (int, float)) or (
        hasattr(value, "dtype") and value.dtype.kind in "iuf" and value.ndim == 0
    )


def reads_as_number(value: Any) -> bool:
    """Whether a table cell belongs under the digits of its column: a number, one as text (`"0.5 %"`), or missing."""
    if value is None or isinstance(value, bool):
        return value is None
    return is_number(value) or bool(_NUMERIC.fullmatch(str(value).strip())) or str(value) in ("", "–")


class InlineImage(NamedTuple):
    """An image as a page holds it: an address that needs no request, its size, and the screens that it is for."""

    uri: str
    width: int
    height: int
    media: str = ""


def inline_png(png: bytes, media: str = "") -> InlineImage:
    """A PNG as it is."""
    with Image.open(BytesIO(png)) as image:
        return InlineImage(_data_uri(png, "image/png"), *image.size, media)


def inline_jpeg(image: Any, longest: int) -> InlineImage:
    """An image as a JPEG, shrunk to `longest` pixels, never enlarged."""
    small = shrunk(image, longest)
    return InlineImage(_data_uri(to_jpeg(small), "image/jpeg"), *small.size)


def shrunk(image: Any, longest: int) -> Image.Image:
    """A copy of an image, RGB, its longer side at most so many pixels."""
    small = to_rgb(image).copy()
    small.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return small


def to_jpeg(image: Image.Image) -> bytes:
    """An image as JPEG, small enough for thumbnails."""
    out = BytesIO()
    image.save(out, format="JPEG", quality=82, optimize=True)
    return out.getvalue()


def _data_uri(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def number(value: float, digits: int = 3) -> str:
    """A number with thousands separators and, below 1,000, `digits` significant ones; powers of ten far from 1."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def percent(share: float) -> str:
    """A share as whole per cent, one decimal below 10."""
    hundredths = 100 * share
    return f"{hundredths:.1f} %" if 0 < hundredths < 9.95 else f"{hundredths:.0f} %"
