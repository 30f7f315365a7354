"""The card of a scored data set: what was scored and how, in figures, tables and three lines of code."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.markdown import (
    TAGS,
    filled,
    front_matter,
    merged_tags,
    one_line,
    plain,
    renewed,
    split_front_matter,
    table,
)
from hf_curriculum.names import CARD_SECTIONS
from hf_curriculum.provenance import read_provenance, score_values
from hf_curriculum.reporting.figures.canvas import to_png
from hf_curriculum.reporting.figures.distribution import score_distribution
from hf_curriculum.reporting.html import shrunk, to_jpeg
from hf_curriculum.reporting.inspection import images_of, of_different_images, rank_for_show, scored_captions
from hf_curriculum.scored_data import provenance_markdown
from hf_curriculum.streaming.index import BucketIndex
from hf_curriculum.streaming.save import configurations

_BUCKET = re.compile(r"bucket_\d+")
_THUMBNAIL = 160
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


@dataclass(frozen=True)
class DataCard:
    """The card of a scored data set: figures and examples of one of its splits, in which the buckets were made.

    `num_examples` of the easiest and of the hardest examples are shown, with `thumbnails` their images too;
    `description` is the author's Markdown, above everything else.
    """

    repo_id: str
    splits: Mapping[str, Dataset]
    split: str
    index: BucketIndex | None = None
    num_examples: int = 5
    thumbnails: bool = False
    license: str | None = None
    description: str = ""
    language: str | None = None
    _images: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def dataset(self) -> Dataset:
        """The split that figures and examples are taken from."""
        return self.splits[self.split]

    def render(self, previous: str | None = None) -> str:
        """The text of `README.md`; what people wrote into the `previous` card stays."""
        old, body = split_front_matter(previous or "")
        if not body.strip():
            described = f"\n{self.description.strip()}\n" if self.description.strip() else ""
            body = f"\n# {plain(self.repo_id.rpartition('/')[2])}\n{described}"
        return self.front(old) + renewed(body, self._render_section())

    def files(self) -> dict[str, bytes]:
        """The images of the card, by path; complete once it is rendered."""
        return dict(self._images)

    def front(self, old: Mapping[str, Any] | None = None) -> str:
        """The YAML header, with the fields of `old` that are not ours."""
        # `dataset_info` describes the data that was there before
        old = {name: value for name, value in (old or {}).items() if name not in ("dataset_info", "size_categories")}
        ours = self.configurations()
        taken = {config["config_name"] for config in ours}
        others = [
            config
            for config in old.pop("configs", None) or []
            if isinstance(config, dict)
            and config.get("config_name") not in taken
            and not _BUCKET.fullmatch(str(config.get("config_name")))
        ]
        tags = merged_tags(old.pop("tags", None), *TAGS)
        rows = sum(map(len, self.splits.values()))
        size = next((name for limit, name in _SIZES if rows < limit), "n>10M")
        said = {"license": self.license, "language": self.language}
        said = {name: value for name, value in said.items() if value is not None}
        if {IMAGE, CAPTION}.issubset(self.dataset.column_names):
            said["task_categories"] = ["image-to-text", "image-text-to-text"]  # a captioner's card has the second
        elif MESSAGES in self.dataset.column_names:
            shows = IMAGES in self.dataset.column_names
            said["task_categories"] = ["image-text-to-text" if shows else "text-generation"]
        kept = {name: value for name, value in old.items() if name not in said}
        return front_matter({**kept, **said, "tags": tags, "size_categories": [size], "configs": [*ours, *others]})

    def configurations(self) -> list[dict[str, Any]]:
        """The `configs:` of the header: everything, and one for each bucket."""
        whole = [{"split": name, "path": f"data/{name}-*"} for name in self.splits]
        if self.index is None:
            return [{"config_name": "default", "default": True, "data_files": whole}]
        every, *single = configurations(self.index, self.split)
        rest = [part for part in whole if part["split"] != self.split]
        return [{**every, "data_files": [*every["data_files"], *rest]}, *single]

    def _render_section(self) -> str:
        provenance = read_provenance(self.dataset)
        return filled(
            "data_card.md",
            summary=self._summary(),
            use=self._code(),
            note=self._note(),
            figures="\n".join(self._figure(number, name) for number, name in enumerate(provenance)),
            buckets=self._bucket_table(),
            examples="\n".join(map(self._examples, provenance)),
            scores=provenance_markdown(DatasetDict(self.splits)).rstrip("\n"),
        )

    def _summary(self) -> str:
        counts = ", ".join(f"{len(part):,} in `{name}`" for name, part in self.splits.items())
        names = ", ".join(plain(name, 80) for name in read_provenance(self.dataset))
        columns = [name for name in CARD_SECTIONS if name in self.dataset.column_names]
        sections = [CARD_SECTIONS[name](self) for name in columns]
        summary = f"Examples with a score of their difficulty: {counts}. Scores: {names}."
        return "\n\n".join(filter(None, [summary, *sections]))

    def _code(self) -> str:
        lines = ["from datasets import load_dataset", ""]
        if self.index is not None:
            lines += [f'easiest = load_dataset("{self.repo_id}", "bucket_0", split="{self.split}", streaming=True)']
        name = "data" if self.index is None else "everything"
        return "\n".join([*lines, f'{name} = load_dataset("{self.repo_id}", split="{self.split}")'])

    def _note(self) -> str:
        column = self.index.score_column if self.index else next(iter(read_provenance(self.dataset)))
        # As JSON in ASCII it is also a Python string on one line; nothing in it looks like HTML or ends the block.
        name = re.sub("[<>&`]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(column))
        code = f"CurriculumTrainingArguments(curriculum=Phases(4), score_column={name}, …)"
        return (
            "This needs nothing but `datasets`. With `hf_curriculum` the loaded data goes into a `CurriculumTrainer` "
            "as it is; where each score came from and which end of it is easy are in its features:\n\n"
            f"```python\n{code}\n```"
        )

    def _figure(self, number: int, column: str) -> str:
        scores = score_values(self.dataset, column)
        if not np.isfinite(scores).any():
            return f"{plain(column, 80)}: no example of `{self.split}` could be scored.\n"
        easy, cuts = self._easy(column), {}
        if self.index is not None and column == self.index.score_column:
            known = [mark for mark in self.index.thresholds if mark is not None]
            if len(known) == len(self.index.thresholds):
                cuts = {"cuts": known, "shares": [size / self.index.num_rows for size in self.index.sizes]}
        png = to_png(score_distribution(scores, name=one_line(column, 80), easy=easy, **cuts))
        readable = re.sub(r"[^A-Za-z0-9]+", "_", column)[:60].strip("_")
        path = self.add_image(f"scores_{number}{'_' * bool(readable)}{readable}.png", png)
        return f"![{plain(column, 80)}]({path})\n"

    def _easy(self, column: str) -> str:
        if self.index is not None and column == self.index.score_column:
            return self.index.easy
        return read_provenance(self.dataset)[column].easy

    def _bucket_table(self) -> str:
        index = self.index
        if index is None:
            return ""
        rows = [
            (f"bucket_{number}", f"{bucket.rows:,}", *(_mark(end) for end in (bucket.lowest, bucket.highest)))
            for number, bucket in enumerate(index.buckets)
        ]
        counts = table(("configuration", "examples", "lowest score", "highest score"), rows)
        return (
            f"## Buckets\n\nThe examples of `{self.split}`, cut by {index.cut} of {plain(index.score_column, 80)} "
            f"({index.easy} = easy), easiest first; within a bucket the order is random. Each is a configuration.\n\n"
            f"{counts}\n"
        )

    def _examples(self, column: str) -> str:
        scores = score_values(self.dataset, column)
        ranked = rank_for_show(scores, self._easy(column))
        parts = []
        for end, order in (("easiest", ranked), ("hardest", ranked[::-1])):
            rows = of_different_images(self.dataset, order, self.num_examples).tolist()
            if rows:
                found = scored_captions(self.dataset, column, rows)
                parts.append(f"{plain(column, 80)}, {end}:\n\n{self._example_table(found, scores)}")
        return "\n".join(parts)

    def _example_table(self, found: Sequence[tuple[int, str | None]], scores: np.ndarray) -> str:
        rows, captions = [row for row, _ in found], [caption for _, caption in found]
        shown = CAPTION if CAPTION in self.dataset.column_names else MESSAGES
        named = [name for name in (shown, IMAGE_ID) if name in self.dataset.column_names]
        examples = self.dataset.select_columns(named).select(rows) if named else [{}] * len(rows)
        pairs = zip(rows, ({**one, shown: said} for one, said in zip(examples, captions, strict=True)), strict=True)
        cells = [[_mark(scores[row]), *(one[name] for name in named), row] for row, one in pairs]
        text = table(["score", *named, "row"], cells)
        if not self.thumbnails or not {IMAGE, IMAGES} & set(self.dataset.column_names):
            return text
        images = []
        for row, image in zip(rows, images_of(self.dataset, rows), strict=True):
            if image is not None:
                small = to_jpeg(shrunk(image, _THUMBNAIL))
                # Named by its content: an image that is shown twice is stored once.
                path = self.add_image(f"example_{hashlib.sha256(small).hexdigest()[:16]}.jpg", small)
                images.append(f"![row {row}]({path})")
        return f"{text}\n{' '.join(images)}\n" if images else text

    def add_image(self, name: str, content: bytes) -> str:
        """Adds an image to the card; the path that the text names it by."""
        path = f"figures/{name}"
        self._images[path] = content
        return path


def _mark(score: float | None) -> str | None:
    return None if score is None else f"{score:.4g}"
