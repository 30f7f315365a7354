"""Captions per second of the scores of words, beside a plain loop over captions; a section of `scoring.py`.

Captions are COCO's 25,014 where HF_CURRICULUM_TEST_DATA has them, and the embedded scenes' elsewhere. Fitting is not
part of the time; a batch has 1,000 captions.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from datasets import Dataset

from hf_curriculum import CaptionLength, ObjectMentions, Scorer, WordRarity, make_scenes
from hf_curriculum.scorers.text.mentions import COCO_NAMES, EXACT_MATCH, NltkWords

BATCH = 1000


def captions_to_score(quick: bool) -> tuple[str, list[str]]:
    """Where the captions are from, and the captions."""
    file = Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "")) / "coco_captions_val2017" / "captions_val2017.json.gz"
    if quick or not file.is_file():
        scenes = make_scenes(500 if quick else 5000, image_size=32)["train"]
        return "scenes", scenes["caption"][:] * 5
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return "COCO", [row["caption"] for row in json.load(stream)["annotations"]]


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_batches(scorer: Scorer, captions: list[str]) -> list[float]:
    """The scores of all captions, as `map` asks for them."""
    starts = range(0, len(captions), BATCH)
    parts = [scorer({"caption": captions[start : start + BATCH]})[scorer.name] for start in starts]
    return [score for part in parts for score in part.tolist()]


def plain_rarity(scorer: WordRarity) -> Callable[[str], float]:
    """−log p of each word, worked out where it occurs."""
    counts = Counter(scorer.word_counts_)
    total = sum(counts.values()) + len(counts) + 1

    def rarity(caption: str) -> float:
        words = caption.lower().split()
        return sum(-math.log((counts[word] + 1) / total) for word in words) / len(words)

    return rarity


def plain_mentions() -> Callable[[str], float]:
    """ExactMatch on all of NLTK's tokens."""
    words = NltkWords()

    def mentions(caption: str) -> float:
        tokens = set(words.all_tokens(caption.lower()))
        return sum(EXACT_MATCH.get(name, name) in tokens for name in COCO_NAMES)

    return mentions


def measure(quick: bool = False) -> list[dict[str, object]]:
    """All rows of this section."""
    where, captions = captions_to_score(quick)
    rarity = WordRarity(words="whitespace").fit(Dataset.from_dict({"caption": captions}))
    sides: list[tuple[Scorer, Callable[[str], float], str]] = [
        (CaptionLength(), lambda caption: float(len(caption.split())), "≥ 100,000 captions/s"),
        (CaptionLength("regex"), lambda caption: float(len(caption.split())), "≥ 100,000 captions/s"),
        (rarity, plain_rarity(rarity), "≥ 100,000 captions/s"),
        (ObjectMentions(), plain_mentions(), "≥ 30,000 captions/s"),
    ]
    rows: list[dict[str, object]] = []
    for scorer, plain, asked in sides:
        ours, against = math.inf, math.inf
        for _ in range(2 if quick else 5):
            ours = min(ours, seconds(lambda scorer=scorer: in_batches(scorer, captions)))
            against = min(against, seconds(lambda plain=plain: [plain(caption) for caption in captions]))
        options = f'("{scorer.words}")' if hasattr(scorer, "words") else ""
        rows.append(
            {
                "what": f"{type(scorer).__name__}{options}, {len(captions):,} captions ({where})",
                "ours": f"{len(captions) / ours:,.0f} captions/s",
                "against": f"{len(captions) / against:,.0f} captions/s, a plain loop",
                "ratio": against / ours,
                "asked": asked,
            }
        )
    plain = [sides[-1][1](caption) for caption in captions]
    differ = sum(one != other for one, other in zip(in_batches(sides[-1][0], captions), plain, strict=True))
    words = NltkWords()
    tokens = sum(words.tokens(text) != words.all_tokens(text) for text in map(str.lower, captions))
    rows.append(
        {
            "what": f"ObjectMentions against all of NLTK's tokens, {len(captions):,} captions ({where})",
            "ours": f"{differ} scores, {tokens} lists of tokens differ",
            "against": "0",
            "ratio": 1 - differ / len(captions),
            "asked": "equal",
        }
    )
    return rows
