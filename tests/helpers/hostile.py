"""Text that tries to get out of the place it is put in, and a reader of HTML that would notice."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = {
    "script": "<script>alert('x')</script><img src=https://evil.example/a.png onerror=alert(1)>",
    "end of style": "</style></title></main><iframe src=//evil.example></iframe>",
    "attribute": "\" onload=\"alert(1)' x='",
    "rules": "---\nname: [1, 2]\n---",
    "template": "{{ config }} {% raw %}{% endraw %} $title ${style} $$",
    "code": "``` `x` ~~~\n```python\nimport os",
    "table": "| a | b |\n|---|---|\t\r\nc, \"d\"; 'e'",
    "link": "![x](https://evil.example/a.png) [y](javascript:alert(1)) <https://evil.example> www.evil.example",
    "comment": "<!-- hf_curriculum: end --> ]]> -->",
    "yaml": ": {a: b}, &anchor *alias !!python/object:os.system #",
    "emoji": "👩‍👩‍👧‍👦 with a 🐶",
    "right to left": "كلب يلعب بالكرة",
    "override": "\u202eevil\u2066 \u2029\u0085next",
    "control": "a\x00b\x1b[31mc\x07\x9b\ud800\ufffe",
    "long": "W" * 10_240,
    "maths": "$\\frac{1}{$ ^_ \\\\",
    "formula": "=cmd|'/c calc'!A1",
    "space": " \n\t ",
}
NEVER = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x00\x07\x1b\x9b\x85\ud800\ufffe"
"""Characters that no file we write may hold."""
VOID = {"meta", "link", "img", "source", "br"}
LOADS = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href", "formaction", "ping", "cite"}
"""Attributes with an address."""


class Page(HTMLParser):
    """The elements of a page; fails on a tag that is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text, self.styles = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.styles if self.open and self.open[-1] == "style" else self.text).append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data[:80]}")

    def values(self, tag, name):
        """Values of an attribute of a kind of element."""
        return [value for found, attribute, value in self.attributes if (found, attribute) == (tag, name)]

    def leaves(self):
        """Addresses outside of the page that opening or reading it would ask for, or that a click would."""
        found = [
            value
            for _, name, value in self.attributes
            if name in LOADS and not (value or "").startswith(("data:image/", "#", "data:,"))
        ]
        return found + [value for _, name, value in self.attributes if name == "style" and "url" in (value or "")]
