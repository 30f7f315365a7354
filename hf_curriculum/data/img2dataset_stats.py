"""How many pictures of a URL list `img2dataset` got, and why not the others."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)

STATS = "_stats.json"
"""Ends the name of the record that `img2dataset` writes when a shard is finished."""


@dataclass(frozen=True)
class Downloads:
    """What became of the addresses of a URL list.

    Args:
        asked: addresses.
        found: those with a picture.
        reasons: why there is none -> how many, most frequent first.

    Example:
        >>> print(Downloads(4, 3, {"HTTP Error 404: Not Found": 1}).describe())
        3 of 4 pictures are there (75.0 %); 1 is missing: 1 × HTTP Error 404: Not Found
    """

    asked: int
    found: int
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Addresses without a picture."""
        return self.asked - self.found

    def describe(self, most: int = 5) -> str:
        """One line: what is there, and the most frequent reasons for what is not."""
        share = f" ({self.found / self.asked:.1%})".replace("%", " %") if self.asked else ""
        text = f"{self.found:,} of {self.asked:,} pictures are there{share}"
        if not self.missing:
            return text
        named = list(self.reasons.items())
        listed = [f"{count:,} × {reason}" for reason, count in named[:most]]
        rest = sum(count for _, count in named[most:])
        listed += [f"{rest:,} × other reasons"] if rest else []
        return f"{text}; {self.missing:,} {'is' if self.missing == 1 else 'are'} missing: {', '.join(listed)}"


def finished_shards(folder: Path) -> list[str]:
    """The names of the shards that `img2dataset` finished, in order: "00000", "00001"."""
    return sorted(file.name.removesuffix(STATS) for file in folder.glob(f"*{STATS}"))


def read_downloads(folder: str | Path) -> Downloads:
    """The counts of all finished shards of an output folder of `img2dataset`.

    Args:
        folder: with a `*_stats.json` per shard.

    Raises:
        FileNotFoundError: there is none.
        ValueError: one cannot be read.

    Example:
        >>> print(read_downloads("cc3m").describe())  # doctest: +SKIP
    """
    folder = Path(folder)
    shards = finished_shards(folder)
    if not shards:
        raise FileNotFoundError(
            f"{folder} holds no *{STATS}: no shard of a download by img2dataset is finished there. Let it end, or "
            "name its output folder."
        )
    asked = found = 0
    reasons: Counter[str] = Counter()
    for shard in shards:
        file = folder / f"{shard}{STATS}"
        try:
            stats = json.loads(file.read_text(encoding="utf-8"))
            asked, found = asked + stats["count"], found + stats["successes"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no record of img2dataset ({error!r}): it has `count`, `successes` and `status_dict`. "
                "Delete the shard's files and download it again."
            ) from error
        reasons.update(_reasons(stats))
    return Downloads(asked, found, dict(reasons.most_common()))


def _reasons(stats: dict) -> Counter[str]:
    """Why pictures of a shard failed; where messages were not kept, the stage they failed at."""
    failed = stats["count"] - stats["successes"]
    told = Counter({reason: count for reason, count in stats.get("status_dict", {}).items() if reason != "success"})
    if sum(told.values()) < failed and not told:
        told.update({name: stats[name] for name in ("failed_to_download", "failed_to_resize") if stats.get(name)})
    if sum(told.values()) < failed:
        told["no reason recorded"] += failed - sum(told.values())
    return told
