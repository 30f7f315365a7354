"""The number of object categories that captions mention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.data.text import open_text
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scenes.vocabulary import NOUNS, plural
from hf_curriculum.scorers.base import CaptionScorer, corpus_batches
from hf_curriculum.scorers.text.taggers import needing_nltk
from hf_curriculum.words import compose

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


class ObjectMentions(CaptionScorer):
    """The number of object categories that a caption, or all captions of an image, mention verbatim.

    Captions are lower-cased and tokenized as by NLTK. A category is mentioned where one of its words or
    phrases is among them, in exactly that form: "dogs" does not mention "dog". Words within a longer name count as
    well: "hot dog", taken as a phrase, mentions "dog" too.

    Args:
        categories: "coco" (ExactMatch: the 80 names, 15 of two words replaced by one, like "racket" for "tennis
            racket"); "coco_verbatim" (the 80 names unchanged, 15 of them phrases). "voc" (the 20 of PASCAL VOC, with
            "airplane" for "aeroplane" and the like); "scenes" (the embedded data's objects, in singular and plural).
            Or a list of names, or a mapping of names to the words and phrases that mention them.
        count: "types" counts a category once, "tokens" every mention.
        per: "caption", or "image" for all its captions together, with the same number in each row. "image" needs
            `image_id`, and `fit` on the data, because a batch may hold only some of the captions.
        column: where the captions or conversations are.
        name: the column to write.
        easy: captions with many mentions are easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Attributes:
        image_mentions_: `image_id` → number of mentions, with `per="image"`.

    Shapes:
        float32 (rows,), in categories or mentions. NaN for a caption that is missing, empty or blank; with
        `per="image"` for an image with only such captions, or that `fit` has not seen.

    Raises:
        ValueError: unknown `categories`, `count`, `per`, `easy`, `part` or `turns`; no categories, or one without a
            word.
        TypeError: a cell that is neither a text nor a conversation, or categories that are no strings.
        ImportError: NLTK is not installed.

    Source: Nebbia & Kovashka 2024 (WSOD), §3; ExactMatch of Ye et al. 2019 (Cap2Det), whose labels come from all
    captions of an image together.

    Example:
        >>> captions = {"caption": ["a dog on a table, and a dog", "dogs with a tennis racket", None]}
        >>> ObjectMentions()(captions)
        {'object_mentions': array([ 2.,  1., nan], dtype=float32)}
        >>> ObjectMentions().mentioned("a dog on a table, and a dog")
        ['dog', 'dining table', 'dog']
    """

    packages: tuple[str, ...] = ("nltk",)
    easy = "high"

    def __init__(
        self,
        categories: str | Sequence[str] | Mapping[str, Sequence[str]] = "coco",
        *,
        count: Literal["types", "tokens"] = "types",
        per: Literal["caption", "image"] = "caption",
        column: str = CAPTION,
        name: str = "object_mentions",
        easy: Literal["low", "high"] = "high",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        validate_choice("count", count, ("types", "tokens"))
        validate_choice("per", per, ("caption", "image"))
        super().__init__(column, name, easy, part=part, turns=turns)
        if isinstance(categories, str):
            validate_choice("categories", categories, tuple(CATEGORIES))
        else:
            categories = _forms(categories)
        self.categories = categories
        self.count = count
        self.per = per
        if per == "image":
            self.columns = (IMAGE_ID, column)
        self.fitted_attributes: tuple[str, ...] = () if per == "caption" else ("image_mentions_",)
        self._prepare()

    def _prepare(self) -> None:
        """Tables of the categories' words, and NLTK's tokenizer; neither is pickled."""
        forms = CATEGORIES[self.categories] if isinstance(self.categories, str) else self.categories
        self._nltk = NltkWords()
        self._words: dict[str, list[str]] = defaultdict(list)  # word → categories
        self._phrases: dict[str, list[tuple[list[str], str]]] = defaultdict(list)  # first word → (phrase, category)
        for category, texts in forms.items():
            for text in texts:
                tokens = self._nltk.tokens(compose(text.lower()))
                if not tokens or not all(token in compose(text.lower()) for token in tokens):
                    raise ValueError(
                        f"The category {category!r} has {text!r}, which NLTK tokenizes as {tokens}: no words to look "
                        "for. Give words without quotation marks."
                    )
                if len(tokens) == 1:
                    self._words[tokens[0]].append(category)
                else:
                    self._phrases[tokens[0]].append((tokens, category))
        self._first = frozenset({*self._words, *self._phrases})

    def mentioned(self, caption: str, longest: bool = False) -> list[str]:
        """The categories that a caption mentions, one entry per mention, in order.

        Args:
            caption: the text.
            longest: words of a phrase that mentions a category mention no other: "hot dogs" are no dogs.
        """
        if "_first" not in self.__dict__:
            self._prepare()
        text = compose(caption.lower())
        tokens = plain_tokens(text)
        if tokens is None:
            # a token is a substring of the text: NLTK, which is slower, is needed only if one may be found
            if not any(word in text for word in self._first):
                return []
            tokens = self._nltk.all_tokens(text)
        if self._first.isdisjoint(tokens):
            return []
        found, end = [], 0
        for at, token in enumerate(tokens):
            if token not in self._first or at < end:
                continue
            here = [(1, category) for category in self._words.get(token, ())]
            for phrase, category in self._phrases.get(token, ()):
                if tokens[at : at + len(phrase)] == phrase:
                    here.append((len(phrase), category))
            if longest and here:
                most = max(length for length, _ in here)
                here, end = [one for one in here if one[0] == most], at + most
            found += [category for _, category in here]
        return found

    def fit(self, dataset: Dataset | IterableDataset) -> ObjectMentions:
        """Counts the mentions of each image's captions together, with `per="image"`; otherwise does nothing.

        Args:
            dataset: the data set to be scored, with `image_id`.

        Raises:
            TypeError: not a data set, or a cell that is neither a text nor a conversation.
            ValueError: a column or an `image_id` is missing.
        """
        if self.per == "caption":
            return self
        from datasets import Dataset

        from hf_curriculum.data.identity import validate_image_ids

        if isinstance(dataset, Dataset):
            validate_image_ids(dataset)
        mentions: dict[str, Any] = {}
        for batch in corpus_batches(dataset, self.columns, "ObjectMentions"):
            captions, mask = self.read_texts(batch[self.column], self.column)
            images = [image for image, readable in zip(batch[IMAGE_ID], mask.tolist(), strict=True) if readable]
            if None in images:
                raise ValueError(f"`{IMAGE_ID}` is missing in a row with a caption. Fill or filter such rows first.")
            for image, caption in zip(images, captions, strict=True):
                found = self.mentioned(caption)
                if self.count == "types":
                    mentions.setdefault(image, set()).update(found)
                else:
                    mentions[image] = mentions.get(image, 0) + len(found)
        counts = {image: found if self.count == "tokens" else len(found) for image, found in mentions.items()}
        # sorted: the cache key does not depend on the rows' order
        self.image_mentions_: dict[str, int] = dict(sorted(counts.items()))
        return self

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        if self.per == "image":
            return np.array([self.image_mentions_.get(image, np.nan) for image in batch[IMAGE_ID]], np.float32)
        return super().score(batch, rank)

    def score_captions(self, captions: list[str], rank: int | None) -> list[int]:
        found = map(self.mentioned, captions)
        return list(map(len, found if self.count == "tokens" else map(set, found)))


def _forms(categories: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Own categories as name → texts; a name alone mentions itself."""
    if not isinstance(categories, Mapping):
        categories = {name: (name,) for name in categories}
    if not categories:
        raise ValueError("`categories` is empty, so nothing could be mentioned. Name some, or leave it out.")
    for name, texts in categories.items():
        if isinstance(texts, str) or not all(isinstance(text, str) for text in (name, *texts)):
            raise TypeError(f"The category {name!r} has {texts!r}. Give a list of strings that mention it.")
    return {name: list(texts) for name, texts in categories.items()}


def category_forms(
    categories: str | Sequence[str] | Mapping[str, Sequence[str]] = "coco",
    *,
    plurals: bool = False,
    synonyms: str | Path | Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[str]]:
    """Category → the words and phrases that mention it, as `ObjectMentions` takes them."""
    if isinstance(categories, str):
        validate_choice("categories", categories, tuple(CATEGORIES))
        forms = {name: list(texts) for name, texts in CATEGORIES[categories].items()}
    else:
        given = [name.casefold() for name in categories if isinstance(name, str)]
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise ValueError(f"Two categories are called {twice[0]!r}. Name each once.")
        forms = _forms(categories)
    more = read_synonyms(synonyms) if isinstance(synonyms, (str, Path)) else _forms(synonyms) if synonyms else {}
    unknown = [name for name in more if name not in forms]
    if unknown:
        raise ValueError(
            f"There are synonyms of {unknown[:5]}, which are none of the {len(forms)} categories "
            f"({', '.join(list(forms)[:3])}, …). Correct the names, or add them to the categories."
        )
    for name, texts in forms.items():
        texts += more.get(name, ())
        if plurals:
            whole = (name,) if isinstance(categories, str) else ()
            texts[:] = [form for text in (*texts, *whole) for form in (text, plural_of(text))]
        texts[:] = dict.fromkeys(texts)
    return forms


def read_synonyms(path: str | Path) -> dict[str, list[str]]:
    """Words for categories from a file with lines `name<TAB>word,word`, as Cap2Det's synonym files have them."""
    found: dict[str, list[str]] = {}
    with open_text(Path(path)) as file:
        lines = list(file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, *cells = (cell.strip() for cell in line.split("\t"))
        words = [word.strip().lower() for word in ",".join(cells).split(",") if word.strip()]
        if len(cells) != 1 or not name or not words or name in found:
            why = "names a category again" if name in found else f"has {len(cells)} tabs"
            raise ValueError(
                f"Line {number} of {path} {why}: {line[:80]!r}. Each line is a category, a tab, and its words with "
                "commas between them; two lines that were merged are two categories. Correct it."
            )
        found[name] = words
    return found


_PLURALS = "child/children foot/feet goose/geese louse/lice man/men mouse/mice ox/oxen person/people tooth/teeth"
_IRREGULAR_PLURALS = dict(pair.split("/") for pair in f"{_PLURALS} woman/women".split())
_SAME = ("aircraft", "deer", "fish", "moose", "offspring", "salmon", "scissors", "series", "sheep", "shrimp", "skis")
_IRREGULAR_PLURALS |= dict(zip(_SAME, _SAME, strict=True))
_VES = ("calf", "elf", "half", "hoof", "knife", "leaf", "life", "loaf", "scarf", "self", "sheaf", "shelf", "thief")
_IRREGULAR_PLURALS |= {word: word.removesuffix("e")[:-1] + "ves" for word in (*_VES, "wife", "wolf")}
_OES = ("echo", "hero", "mango", "potato", "tomato", "torpedo", "volcano")
_IRREGULAR_PLURALS |= {word: word + "es" for word in _OES}
_MAN = ("caiman", "cayman", "german", "human", "ottoman", "roman", "shaman", "talisman")
"""Words on -man that are no men."""


def plural_of(noun: str) -> str:
    """The plural of an English noun by spelling rules; of a phrase that of its last word."""
    before, _, word = noun.rpartition(" ")
    if word in _IRREGULAR_PLURALS:
        word = _IRREGULAR_PLURALS[word]
    elif word.endswith("man") and word not in _MAN:
        word = word[:-3] + "men"
    elif word.endswith("y") and word[-2:-1] not in "aeiou":
        word = word[:-1] + "ies"
    else:
        word += "es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s"
    return f"{before} {word}".strip()


# words of letters that NLTK splits in two: "can not", "gon na"
_SPLIT = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")


class NltkWords:
    """Splits lower-case text as `nltk.word_tokenize` does, without the abbreviations that it downloads.

    It finds sentences first, then tokenizes each. Without abbreviations, the dot of one before more text ("mr. smith")
    is a token of its own; any other token is the same. Most captions need neither step: with letters, digits,
    hyphens, commas and a last dot only, white space and punctuation decide.
    """

    def __init__(self) -> None:
        with needing_nltk("NLTK's tokens"):
            from nltk.tokenize import NLTKWordTokenizer
            from nltk.tokenize.punkt import PunktSentenceTokenizer
        self._sentences: Any = PunktSentenceTokenizer()
        self._words: Any = NLTKWordTokenizer()

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text in lower case."""
        plain = plain_tokens(text)
        return self.all_tokens(text) if plain is None else plain

    def all_tokens(self, text: str) -> list[str]:
        """The same by NLTK itself, for any text."""
        return [word for sentence in self._sentences.tokenize(text) for word in self._words.tokenize(sentence)]


def plain_tokens(text: str) -> list[str] | None:
    """NLTK's tokens of a plain text in lower case; None for one that only NLTK itself splits."""
    body = text.rstrip(" ")
    ends = body.endswith(".")
    if ends:
        body = body[:-1]
    letters = body.replace(" ", "")
    if not letters.isalnum():
        letters = body.replace(", ", "").replace(" ", "").replace("-", "")
        if not letters.isalnum() or "--" in body:
            return None
        body = body.replace(", ", " , ")
    if not letters.isascii() or any(word in letters for word in _SPLIT):
        return None
    tokens = body.split()
    if ends:
        tokens.append(".")
    return tokens


_COCO = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv,
laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase,
scissors, teddy bear, hair drier, toothbrush
"""
COCO_NAMES = tuple(name.strip() for name in _COCO.split(","))
"""The 80 object categories of COCO, in the order of their ids."""
EXACT_MATCH = {
    "traffic light": "stoplight",
    "fire hydrant": "hydrant",
    "stop sign": "sign",
    "parking meter": "meter",
    "sports ball": "ball",
    "baseball bat": "bat",
    "baseball glove": "glove",
    "tennis racket": "racket",
    "wine glass": "wineglass",
    "hot dog": "hotdog",
    "potted plant": "plant",
    "dining table": "table",
    "cell phone": "cellphone",
    "teddy bear": "teddy",
    "hair drier": "hairdryer",
}
"""The single words for COCO's names of two words in ExactMatch (Ye et al. 2019, Cap2Det, released code)."""
_VOC = """
aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, motorbike, person,
pottedplant, sheep, sofa, train, tvmonitor
"""
VOC_NAMES = tuple(name.strip() for name in _VOC.split(","))
"""The 20 object categories of PASCAL VOC, in the order of their ids."""
_VOC_WORDS = {
    "aeroplane": ("aeroplane", "airplane"),
    "diningtable": ("table",),
    "motorbike": ("motorbike", "motorcycle"),
    "pottedplant": ("plant",),
    "sofa": ("sofa", "couch"),
    "tvmonitor": ("tv", "television", "monitor"),
}  # ours: names that captions write otherwise
CATEGORIES: dict[str, dict[str, tuple[str, ...]]] = {
    "coco": {name: (EXACT_MATCH.get(name, name),) for name in COCO_NAMES},
    "coco_verbatim": {name: (name,) for name in COCO_NAMES},
    "voc": {name: _VOC_WORDS.get(name, (name,)) for name in VOC_NAMES},
    "scenes": {noun: tuple(dict.fromkeys((noun, plural(noun)))) for noun in NOUNS},
}
"""Lists of categories by name, see `ObjectMentions`: category → the words and phrases that mention it."""
