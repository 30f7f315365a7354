"""What every scorer of `SCORERS` must do. A new one joins by an entry in `CASES`; without it the first test fails."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chat_models as CHAT
import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset, concatenate_datasets
from datasets.fingerprint import Hasher
from PIL import Image, ImageDraw

from hf_curriculum import Scorer, add_scores, read_provenance
from hf_curriculum.names import SCORERS
from hf_curriculum.provenance import ScoreProvenance, score_values

NAN = np.nan
CAPTIONS = ["a dog and two cats in Paris", "", "a red ball", None, "Two dogs. A man's hat", "   ", "running"]


@dataclass(frozen=True)
class Case:
    """A scorer's example.

    Args:
        make: builds the scorer (fitted, if it needs that).
        rows: column → values; some rows cannot be scored.
        expected: written column → scores by hand, NaN where a row cannot be scored.
        rtol: relative tolerance, for scores that a model computes.
    """

    make: Callable[[], Scorer]
    rows: dict[str, list[Any]]
    expected: dict[str, list[float]]
    rtol: float = 0.0


def png(width, height, split=None):
    """A black image as stored by `datasets`, white from column `split` on."""
    image, file = Image.new("RGB", (width, height)), io.BytesIO()
    if split is not None:
        image.paste((255, 255, 255), (split, 0, width, height))
    image.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


CASES = {
    "caption_length": Case(
        SCORERS["caption_length"], {"caption": CAPTIONS}, {"caption_length": [7, NAN, 3, NAN, 5, NAN, 1]}
    ),
    "noun_count": Case(SCORERS["noun_count"], {"caption": CAPTIONS}, {"noun_count": [3, NAN, 1, NAN, 3, NAN, 0]}),
}

CASES |= {
    "box_count": Case(
        lambda: SCORERS["box_count"](unit="pixels"),
        {"objects": [[{"box": [0, 0, 50, 20]}, {"box": [10, 10, 20, 20]}], None, [], [{"box": [0, 0, 5, 5]}]]},
        {"box_count": [2, NAN, 0, 1], "box_area": [550, NAN, NAN, 25]},
    ),
    "region_count": Case(
        SCORERS["region_count"],
        {"image": [png(60, 40, split=30), None, png(40, 30), {"bytes": b"no picture", "path": None}, png(15, 30)]},
        {"region_count": [3, NAN, 1, NAN, 0], "region_area": [2 / 3, NAN, 1, NAN, NAN]},
        rtol=1e-6,
    ),
    "visual_entropy": Case(
        lambda: SCORERS["visual_entropy"](probabilities="class_scores"),
        {"class_scores": [[[0.5, 0.5], [1.0, 0.0]], None, [], [[0.25] * 4, [0.5, 0.5, 0, 0]]]},
        {"visual_entropy": [np.log(2), NAN, NAN, np.log(8)]},
        rtol=1e-6,
    ),
}


def disc(colour):
    """A disc on a pale background, as stored by `datasets`."""
    image, file = Image.new("RGB", (96, 96), (230, 238, 246)), io.BytesIO()
    ImageDraw.Draw(image).ellipse((28, 28, 68, 68), colour)
    image.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


RED, BLUE = disc((222, 62, 66)), disc((52, 120, 214))
CASES["clip_similarity"] = Case(  # by `CLIPModel.forward` on one pair at a time
    SCORERS["clip_similarity"],
    {
        "image": [RED, RED, BLUE, None, BLUE, BLUE],
        "caption": ["a red ball", "a blue ball on a pale background", "a blue ball", "a ball", " ", "a green tree"],
        "image_id": ["red", "red", "blue", "none", "blue", "blue"],
    },
    {"clip_similarity": [0.53862309, 0.03441409, 0.69939572, NAN, NAN, 0.06805118]},
    rtol=1e-4,
)


PAIRS = {
    "image": [TINY.png(40, 60), TINY.png(60, 40, 1), None, TINY.png(40, 60), TINY.png(64, 64, 2)],
    "caption": ["a dog runs in the park", "a red ball", "a cat", "two cats sleep on a mat", ""],
    "image_id": ["0", "1", "2", "0", "3"],
}


def of_pairs(score):
    """`score(image, caption)` of each of PAIRS, one by one, NaN where it cannot be scored."""
    pairs = zip(PAIRS["image"], PAIRS["caption"], strict=True)
    return [score(*pair) if None not in pair and pair[1] else NAN for pair in pairs]


LABELS = [0, 2, 1, 0, None]
CASES["class_probability"] = Case(
    lambda: SCORERS["class_probability"](TINY.classifier()),
    {"image": PAIRS["image"], "label": LABELS, "image_id": PAIRS["image_id"]},
    {
        "class_probability": [
            NAN if image is None or label is None else TINY.naive_class_probability(image, label)
            for image, label in zip(PAIRS["image"], LABELS, strict=True)
        ]
    },
    rtol=1e-4,
)


def naive_grounding(image, caption):
    """By the two other images of PAIRS, one pair at a time."""
    others = [PAIRS["image"][row] for row in (0, 1, 4)]
    tokens = len(TINY.tokenizer()(caption)["input_ids"]) - 1
    loss = {other["bytes"]: TINY.naive_model_loss("flamingo", other, caption) / tokens for other in others}
    own = loss.pop(image["bytes"])
    return sum(loss.values()) / len(loss) - own


MATCH = of_pairs(TINY.naive_vilt_logit)
CASES |= {
    "vilt_similarity": Case(
        lambda: SCORERS["vilt_similarity"](TINY.vilt()),
        PAIRS,
        {"vilt_similarity": MATCH, "vilt_probability": [1 / (1 + np.exp(-logit)) for logit in MATCH]},
        rtol=1e-4,
    ),
    "model_loss": Case(
        lambda: SCORERS["model_loss"](TINY.git()),
        PAIRS,
        {"model_loss": of_pairs(lambda *pair: TINY.naive_model_loss("git", *pair))},
        rtol=1e-4,
    ),
    "grounding": Case(
        lambda: SCORERS["grounding"](TINY.flamingo(), k=2).fit(Dataset.from_dict(PAIRS)),
        PAIRS,
        {"grounding": of_pairs(naive_grounding)},
        rtol=1e-3,  # a difference of losses
    ),
    "language_model_loss": Case(
        lambda: SCORERS["language_model_loss"](TINY.llama()),
        {"caption": [None, *PAIRS["caption"]]},
        {
            "language_model_loss": [
                TINY.naive_language_model_losses(TINY.llama(), caption).sum() if caption else NAN
                for caption in [None, *PAIRS["caption"]]
            ]
        },
        rtol=1e-4,
    ),
}

PARTS = {"visual_entropy": [10.0, 60.0, 35.0, NAN], "language_model_loss": [20.0, 40.0, 70.0, 30.0]}
CASES |= {
    "addup": Case(
        lambda: SCORERS["addup"]().fit(Dataset.from_dict(PARTS)), PARTS, {"addup": [0, 0.76, 0.7, NAN]}, rtol=1e-6
    ),
    "combined": Case(
        lambda: SCORERS["combined"]({"visual_entropy": 1, "language_model_loss": 2}, "rank").fit(
            Dataset.from_dict(PARTS)
        ),
        PARTS,
        {"combined": [1 / 6 + 2 / 8, 5 / 6 + 2 * 5 / 8, 3 / 6 + 2 * 7 / 8, NAN]},
        rtol=1e-6,
    ),
}

RARE = {"caption": ["a dog", "a cat", "a dog runs", None, " "]}  # with the 1 of all unseen words, 7 + 4 + 1 = 12
SPACE = {
    "image_id": ["a", "b", "c", "d"],
    "caption": ["red ball", "red car", "idea ball", "idea car"],
    "image_embedding": [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]],
}
CASES |= {
    "word_rarity": Case(
        lambda: SCORERS["word_rarity"]().fit(Dataset.from_dict(RARE)),
        {"caption": ["A dog", "cat zebra!", None, "...", ""]},
        {"word_rarity": [np.log(12 / 4 * 12 / 3) / 2, np.log(12 / 2 * 12) / 2, NAN, NAN, NAN]},
        rtol=1e-6,
    ),
    "object_mentions": Case(
        SCORERS["object_mentions"],
        {"caption": ["A dog's table, a dog.", "", "dogs", None, "a cat and a stoplight", "traffic light", "cat-bus"]},
        {"object_mentions": [2, NAN, 0, NAN, 2, 0, 0]},
    ),
    "concreteness": Case(
        lambda: SCORERS["concreteness"](k=2, min_count=1).fit(Dataset.from_dict(SPACE)),
        {"caption": ["red ball", "idea", "a red red car", "nothing", "", None]},
        {"concreteness": [1.5, 2, 5 / 3, NAN, NAN, NAN]},
        rtol=1e-6,
    ),
}

NORMS = {"image_embedding": [[3.0, 4.0], None, [0.0, -2.0], [0.0, 0.0], [np.nan, 1.0]]}
PAIRED = {
    "image_embedding": [[3.0, 4.0], [1.0, 0.0], [0.0, 1.0], None, [1.0, 0.0], [0.0, 0.0]],
    "text_embedding": [[4.0, 3.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0], None, [1.0, 0.0]],
}


def naive_neg_clip_loss():
    """Of the first three rows, one batch, by the released code's formula."""
    images, texts = (np.array(PAIRED[f"{side}_embedding"][:3]) for side in ("image", "text"))
    images, texts = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, texts))
    cosines = images @ texts.T
    of_texts, of_images = (0.5 * 0.1 * np.log(np.exp(cosines / 0.1).sum(axis)) for axis in (0, 1))
    return np.diag(cosines) - of_texts - of_images


CASES |= {
    "neg_clip_loss": Case(
        lambda: SCORERS["neg_clip_loss"](
            temperature=0.1, image_embedding="image_embedding", text_embedding="text_embedding"
        ).fit(Dataset.from_dict(PAIRED)),
        PAIRED,
        {"neg_clip_loss": [*naive_neg_clip_loss(), NAN, NAN, NAN]},
        rtol=1e-5,
    ),
    "norm_sim": Case(
        lambda: SCORERS["norm_sim"]([[1.0, 0.0], [3.0, 4.0]], 2, image_embedding="image_embedding"),
        NORMS,
        {"norm_sim": [1.36**0.5, NAN, 0.8, NAN, NAN]},
        rtol=1e-6,
    ),
}

AIMS = Dataset.from_dict({"image": [TINY.png(16, 16, 3)], "caption": ["a man rides a bike"], "image_id": ["aim"]})


def naive_influence(image, caption):
    """By autograd, the gradient of one pair and that of the one target."""
    return float(TINY.naive_gradient(image, caption) @ TINY.naive_gradient(AIMS[0]["image"], AIMS[0]["caption"]))


CASES["influence"] = Case(
    lambda: SCORERS["influence"]([TINY.git()], AIMS, learning_rates=[1.0]),
    PAIRS,
    {"influence": of_pairs(naive_influence)},
    rtol=1e-3,  # a difference of losses
)

SAID = ["A red ball.", "Two dogs run in the park.", None, " "]
TALKS = [
    [{"role": "user", "content": "What is it?"}, *([] if text is None else [{"role": "assistant", "content": text}])]
    for text in SAID
]


def naive_difficulty(text):
    """By one forward pass over the conversation, and one over the response."""
    talk = [{"role": "user", "content": [{"text": "What is it?"}]}, {"role": "assistant", "content": [{"text": text}]}]
    talk = [{**turn, "content": [{"type": "text", **part} for part in turn["content"]]} for turn in talk]
    given, alone = (losses("llama", talk, [], [1]) for losses in (CHAT.losses_by_hand, CHAT.losses_alone_by_hand))
    return np.mean(given) / np.mean(alone)


CASES |= {
    "instruction_following_difficulty": Case(
        lambda: SCORERS["instruction_following_difficulty"](CHAT.llama()),
        {"messages": TALKS},
        {"instruction_following_difficulty": [*map(naive_difficulty, SAID[:2]), NAN, NAN]},
        rtol=1e-5,
    ),
    "response_length": Case(SCORERS["response_length"], {"messages": TALKS}, {"response_length": [3, 6, NAN, NAN]}),
}

each = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def same(found, expected, case):
    np.testing.assert_allclose(found, np.float32(expected), rtol=case.rtol, atol=0, equal_nan=True)


def test_every_scorer_has_a_case_and_its_name():
    assert set(CASES) == set(SCORERS)
    for name, case in CASES.items():
        assert isinstance(case.make(), SCORERS[name])
        assert name in case.make().outputs
        # What is assumed of a column without provenance is what its scorer says of it.
        assert SCORERS[name].easy == case.make().easy
        assert any(np.isnan(case.expected[name]))  # a case shows what cannot be scored
        assert set(case.rows) >= set(case.make().columns)


@each
def test_scores_by_hand(case):
    scores = case.make()(case.rows)
    assert set(scores) == set(case.expected) == set(case.make().outputs)
    for name, expected in case.expected.items():
        assert scores[name].dtype == np.float32
        same(scores[name], expected, case)


@each
def test_one_row_at_a_time_gives_the_same(case):
    scorer = case.make()
    for row in range(len(next(iter(case.rows.values())))):
        alone = scorer({column: values[row : row + 1] for column, values in case.rows.items()})
        for name, expected in case.expected.items():
            same(alone[name], expected[row : row + 1], case)


@each
def test_the_order_of_rows_does_not_matter(case):
    scorer, size = case.make(), len(next(iter(case.rows.values())))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(size)
        scores = scorer({column: [values[row] for row in order] for column, values in case.rows.items()})
        for name, expected in case.expected.items():
            same(scores[name], np.array(expected)[order], case)


@each
def test_the_batch_is_left_alone(case):
    rows = {column: list(values) for column, values in case.rows.items()}
    case.make()(rows)
    assert rows == case.rows


@each
def test_the_cache_key_and_the_pickle_stay_the_same_after_use(case):
    scorer = case.make()
    key, content = Hasher.hash(scorer), pickle.dumps(scorer)
    scorer(case.rows)
    assert Hasher.hash(scorer) == key == Hasher.hash(case.make())
    assert len(pickle.dumps(scorer)) == len(content)
    again = pickle.loads(pickle.dumps(scorer))(case.rows)
    for name, expected in case.expected.items():
        same(again[name], expected, case)


@each
def test_configuration_changes_the_cache_key(case):
    scorer = case.make()
    scorer.easy = "high" if scorer.easy == "low" else "low"
    assert Hasher.hash(scorer) != Hasher.hash(case.make())


@each
def test_map_with_one_and_with_two_processes(case):
    data = Dataset.from_dict(case.rows)
    data = concatenate_datasets([data, data])
    for workers in (None, 2):
        scored = data.map(case.make(), batched=True, batch_size=3, with_rank=True, num_proc=workers)
        for name, expected in case.expected.items():
            same(score_values(scored, name), expected * 2, case)


@each
def test_a_stream(case):
    stream = Dataset.from_dict(case.rows).to_iterable_dataset().map(case.make(), batched=True, batch_size=2)
    rows = list(stream)
    for name, expected in case.expected.items():
        same([row[name] for row in rows], expected, case)


@each
def test_add_scores_records_where_they_came_from(case):
    scorer = case.make()
    scored = add_scores(Dataset.from_dict(case.rows).shuffle(seed=0), scorer)
    found = read_provenance(scored)
    assert set(found) == set(scorer.outputs)
    for name, made in found.items():
        assert ScoreProvenance.from_json(scored.features[name].id) == made == scorer.describe(name)
        assert made.easy == scorer.outputs[name] in ("low", "high")
        assert made.scorer == type(scorer).__name__
        assert "hf-curriculum" in made.versions


@each
def test_no_rows_and_nothing_but_unscorable_rows(case):
    scorer = case.make()
    assert all(array.shape == (0,) for array in scorer({column: [] for column in case.rows}).values())
    blank = np.flatnonzero(np.isnan(case.expected[scorer.name]))
    scores = scorer({column: [values[row] for row in blank] for column, values in case.rows.items()})
    assert np.isnan(scores[scorer.name]).all()


@each
def test_a_missing_column_is_named(case):
    scorer = case.make()
    with pytest.raises(ValueError, match=f"`{scorer.columns[0]}`.* not in the data"):
        scorer({"another": ["a"]})
    with pytest.raises(ValueError, match=f"`{scorer.columns[0]}`.* not in the data"):
        add_scores(Dataset.from_dict({"another": ["a"]}), scorer)
