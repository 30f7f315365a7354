"""Ten captions whose counts are done by hand, and a tagger that knows their nouns."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from hf_curriculum.scorers.text.taggers import tokenize_sentence
from hf_curriculum.tasks.alignment import Ontology

NOUNS = {"dog", "dogs", "puppy", "man", "frisbee", "ball", "grass", "kitten", "cat", "cats", "car"}
SENTENCES = [
    ("i1", "a dog runs on grass", ["dog", "grass"]),
    ("i1", "a puppy with a ball", ["dog", "grass"]),
    ("i2", "two dogs and a man", ["dog", "person", "dog"]),
    ("i3", "a man throws a frisbee", ["person", "frisbee"]),
    ("i4", "a man holding a frisbee", ["person", "frisbee"]),
    ("i5", "the man reads", ["person"]),
    ("i6", "a red ball", ["ball"]),
    ("i7", "a puppy", ["dog"]),
    ("i8", "dogs", []),
    ("i9", "it rains", ["person"]),
]


def tag(sentences):
    return [["NN" if word.lower() in NOUNS else "X" for word in tokenize_sentence(sentence)] for sentence in sentences]


def make_pairs(rows=SENTENCES, **columns):
    ids, captions, names = zip(*rows, strict=True)
    objects = [[{"name": name, "box": [0.0, 0.0, 1.0, 1.0]} for name in found] for found in names]
    return Dataset.from_dict({"image_id": ids, "caption": captions, "objects": objects, **columns})


def induce(rows=SENTENCES, *, objects="objects", min_pairs=1, min_instances=1, **options):
    pairs = make_pairs(rows) if isinstance(rows, list) else rows
    options = {"tagger": tag, **options}
    return Ontology.induce(pairs, objects, min_pairs=min_pairs, min_instances=min_instances, **options)


def many(number, seed=0):
    """Captions of up to three nouns, images of up to four objects, some of them related."""
    generator = np.random.Generator(np.random.Philox(seed))
    words, classes = ["dog", "cats", "car", "ball", "Man", "kitten"], ["dog", "cat", "car", "ball", "person", "tie"]
    rows = []
    for _ in range(number):
        image = int(generator.integers(number // 2))
        own = np.random.Generator(np.random.Philox([seed, image]))
        shown = [classes[at] for at in own.choice(6, own.integers(0, 5))]
        said = [words[at] for at in generator.choice(6, generator.integers(0, 4))]
        rows.append((f"i{image}", " and a ".join(said) or "it rains", shown))
    return rows
