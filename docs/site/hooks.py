"""What mkdocs adds to the pages of docs/: the API reference, pages that lie elsewhere in the repository, and links.

Every file that a page links to is on the site: Markdown as a page, code and settings as a page with the code, others
as they are. A public name in a page's text links to its entry in the reference, whose entries link back.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
names = import_module("hf_curriculum.names")

ALSO = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "model_cards/README.md",
    "recipes/benchmarks/results/README.md",
)
SHOWN_AS_CODE = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "sh", ".toml": "toml", ".cff": "yaml"}
OUTPUTS: dict[str, list[str]] = {}
"""Page of a notebook → what its cells show, as HTML."""
LINK = re.compile(r"(!?\[[^]]*\]\()(?!https?://|mailto:|#|/)([^)#\s]+)([^)]*\))")
FENCES = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
GROUPS = {
    "curricula": ("Curricula", "curricula", "planning.batches", "planning.curriculum", "planning.stage"),
    "scorers": ("Scorers", "scorers"),
    "scoring": ("Scores on data", "scoring", "scored_data", "provenance"),
    "data": ("Data", "data", "scenes"),
    "plans": ("Plans", "planning"),
    "training": ("Training", "training"),
    "streaming": ("Streaming", "streaming"),
    "models": ("Models", "models"),
    "evaluation": ("Evaluation, studies and the Hub", "evaluation", "studies", "hub"),
    "captioning": ("Captioning", "tasks.captioning"),
    "alignment": ("Alignment", "tasks.alignment"),
    "detection": ("Detection", "tasks.detection"),
    "long_tail": ("Long tail", "tasks.long_tail"),
    "babylm": ("BabyLM benchmarks", "tasks.babylm"),
}
"""Page of the reference → its title, and the modules whose names it has; the first page that fits has a name."""


@cache
def public_names() -> dict[str, tuple[str, str]]:
    """Every public name → (the path that users import it from, the module where it is written)."""
    found = {}
    tables = (names.SCORERS, names.CURRICULA, names.BATCHES, names.MODELS)
    for place in (place for table in tables for place in table._own.values() if isinstance(place, str)):
        module, _, name = place.partition(":")
        found[name] = (f"hf_curriculum.{module}.{name}", f"hf_curriculum.{module}")
    tasks = [page for page, (_, first, *_) in GROUPS.items() if first.startswith("tasks.")]
    for package in ("hf_curriculum", *(f"hf_curriculum.tasks.{task}" for task in tasks)):
        modules = names.PUBLIC if package == "hf_curriculum" else import_module(package).NAMES
        found |= {name: (f"{package}.{name}", home) for name, home in names.homes(package, modules).items()}
    return found


@cache
def reference_pages() -> dict[str, str]:
    """Every public name → its page in the reference, in the order of `GROUPS`."""
    found = {}
    for name, (path, home) in public_names().items():
        places = (path.removeprefix("hf_curriculum."), home.removeprefix("hf_curriculum."))
        group = next(
            page
            for page, (_, *modules) in GROUPS.items()
            if any(f"{place}.".startswith(f"{module}.") for place in places for module in modules)
        )
        found[name] = f"reference/{group}.md"
    return found


def summary(name: str) -> str:
    """The first line of a name's docstring, or of the string below a constant."""
    module = ROOT.joinpath(*public_names()[name][1].split(".")).with_suffix(".py")
    body = ast.parse(module.read_text(encoding="utf-8")).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if getattr(node, "name", None) == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(following, ast.Expr) and any(getattr(target, "id", None) == name for target in targets):
            return following.value.value.partition("\n")[0]
    raise ValueError(f"{name} is not defined in {module}")


def to_source(path: str) -> str:
    """Where the site has a file of the repository, as a path below docs/."""
    if path in ("README.md", "docs"):
        return "README.md"
    path = path.removeprefix("docs/").replace(".ipynb", ".md")
    return f"{path}.md" if Path(path).suffix in SHOWN_AS_CODE else path


def from_notebook(path: str) -> str:
    """A notebook as Markdown, with an empty place for what each cell shows."""
    parts, shown = [], OUTPUTS.setdefault(to_source(path), [])
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            about = source.strip("# ").partition("\n")[0]
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(f'<div class="output" id="output-{len(shown)}"></div>')
            shown.append(output_html(output, about))
    name = path.rpartition("/")[2]
    parts.insert(1, f'<a href="../{name}" download>Download {name}</a>')
    return "\n\n".join(parts)


def output_html(output: dict[str, Any], about: str) -> str:
    """What a cell shows: a table or figure of its own, or text."""
    data = output.get("data", {})
    if "text/html" in data:
        return "".join(data["text/html"])
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f'<img alt="Figure: {escape(about)}" src="data:{kind};base64,{"".join(data[kind]).strip()}">'
    return f"<pre>{escape(''.join(output.get('text') or data['text/plain']))}</pre>"


def linked(path: str, text: str) -> set[str]:
    """The files of the repository that a page links to; as paths from its root."""
    found = {normpath(join(dirname(path), target)) for _, target, _ in LINK.findall(FENCES.sub("", text))}
    return {one for one in found if ROOT.joinpath(one).is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference, and every file outside docs/ that a page links to."""
    pages = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    left, seen = [*ALSO, *(link for path, text in pages.items() for link in linked(path, text))], set(pages)
    while left:
        path = left.pop()
        if path in seen or path.startswith("docs/") or path == "README.md" or not ROOT.joinpath(path).is_file():
            continue
        seen.add(path)
        file = ROOT / path
        if file.suffix == ".md":
            text = pages[path] = file.read_text(encoding="utf-8")
            left += linked(path, text)
            files.append(File.generated(config, to_source(path), content=text))
        elif file.suffix in SHOWN_AS_CODE:
            code = f"```{SHOWN_AS_CODE[file.suffix]}\n{file.read_text(encoding='utf-8').rstrip()}\n```"
            text = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n{code}\n"
            files.append(File.generated(config, to_source(path), content=text))
        else:
            files.append(File.generated(config, path, abs_src_path=str(file)))
    for notebook in sorted(ROOT.glob("docs/notebooks/*.ipynb")):
        path = notebook.relative_to(ROOT).as_posix()
        text = pages[to_source(path).join(("docs/", ""))] = from_notebook(path)
        files.append(File.generated(config, to_source(path), content=text))
    for path, text in reference(pages).items():
        files.append(File.generated(config, path, content=text))
    return files


def entry(name: str) -> str:
    """What mkdocstrings is asked to show: of components their arguments, of what users call also its methods."""
    bases = ("Scorer", "Curriculum", "Stage")
    component = reference_pages()[name] in ("reference/curricula.md", "reference/scorers.md") and name not in bases
    return f"\n::: {public_names()[name][0]}\n" + ("    options: {members: [fit, fit_counts]}\n" if component else "")


def reference(pages: dict[str, str]) -> dict[str, str]:
    """The pages of the reference, with links to the guides that speak most of a name."""
    titles = {path: re.search(r"^# (.+)$", text, re.MULTILINE)[1] for path, text in pages.items() if "docs/" in path}
    spoken = {path: Counter(re.findall(r"\b[A-Za-z_]\w+\b", pages[path])) for path in titles}
    texts = {f"reference/{page}.md": f"# {title}\n" for page, (title, *_) in GROUPS.items()}
    overview = ["# API reference", "", "Every public name, by what it is for.", ""]
    for page, text in texts.items():
        own = [name for name, place in reference_pages().items() if place == page]
        overview += [f"## {text[2:].strip()}", "", "| name | what it is |", "|---|---|"]
        for name in sorted(own, key=str.lower):
            path = public_names()[name][0]
            guides = [guide for guide, counts in spoken.items() if counts[name]]
            guides = sorted(guides, key=lambda guide: (-spoken[guide][name], guide))[:4]
            links = ", ".join(f"[{titles[guide]}]({relpath(to_source(guide), 'reference')})" for guide in guides)
            texts[page] += entry(name) + (f"\n**Read more:** {links}\n" if links else "")
            line = summary(name).replace("|", "\\|")
            overview.append(f"| [`{name}`]({page.removeprefix('reference/')}#{path}) | {line} |")
        overview.append("")
    return {"reference/README.md": "\n".join(overview), **texts}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to where the site has a file; what only tests read is left out."""
    source = page.file.src_uri
    path = f"docs/{source}" if ROOT.joinpath("docs", source).is_file() else source

    def moved(found: re.Match[str]) -> str:
        begin, target, end = found.groups()
        at = normpath(join(dirname(path), target))
        if at.startswith("reference/") or not ROOT.joinpath(at).exists():
            return found[0]
        return f"{begin}{relpath(to_source(at), dirname(source) or '.')}{end}"

    markdown = re.sub(r"<!-- .*?-->\n?", "", markdown, flags=re.DOTALL)
    markdown = re.sub(r"^```python slow$", "```python", markdown, flags=re.MULTILINE)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A public name in the text links to its entry."""

    def linked_name(found: re.Match[str]) -> str:
        if found[1] is None or found[2] not in reference_pages():
            return found[0]
        at = files.get_file_from_path(reference_pages()[found[2]]).url_relative_to(page.file)
        return f'<a class="api" href="{at}#{public_names()[found[2]][0]}">{found[1]}</a>'

    # links, code blocks and headings stay as they are
    kept = r"<a\b.*?</a>|<pre\b.*?</pre>|<h[1-6]\b.*?</h[1-6]>"
    html = re.sub(rf"{kept}|(<code>(\w+)(?:\([^<]*)?</code>)", linked_name, html, flags=re.DOTALL)
    for number, output in enumerate(OUTPUTS.get(page.file.src_uri, ())):
        place = f'<div class="output" id="output-{number}">'
        html = html.replace(place, place + output)
    return html
