"""Docstrings as mkdocstrings reads them: an `Example:` is code, other sections of our own are paragraphs."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SECTION = re.compile(r"^(Source|Shapes|Shapes and units|Columns|Changed defaults|Metrics|Forms):", re.MULTILINE)


def as_sections(text: str) -> str:
    """A docstring whose sections are those that the Google style knows, or paragraphs with a bold beginning."""
    lines, inside = [], False
    for line in text.splitlines():
        if found := _SECTION.match(line):
            lines.append(f"**{found[1]}.**{line[found.end() :]}")
            inside = True
        else:
            inside = inside and (line.startswith("    ") or not line)
            lines.append(line.removeprefix("    ") if inside else line)
    return re.sub(r"^Example:$", "Examples:", "\n".join(lines), flags=re.MULTILINE)


class OwnSections(Extension):
    """Rewrites the docstring of each object that is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_sections(obj.docstring.value)
