"""Tokenizers trained on the training text alone, the same for the same text: WordPiece's, and one of whole words."""

from __future__ import annotations

import logging
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import regex
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_curriculum.columns import CAPTION, TOKENS, require_columns
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset

logger: logging.Logger = logging.getLogger(__name__)

_BATCH = 1000
_FEW_MARKS, _FEW_MERGED = 0.01, 0.001
_BERT_LAYOUT_FROM = 10_000
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT = ("[PAD]", *(f"[unused{number}]" for number in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@validate_arguments
def train_wordpiece(
    texts: Iterable[str] | Dataset | IterableDataset,
    vocab_size: int = 30_522,
    *,
    lowercase: bool = True,
    min_frequency: int = 2,
    layout: Literal["bert", "compact"] | None = None,
    max_length: int = 1024,
    column: str = CAPTION,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Trains a BERT-style WordPiece tokenizer, which writes `[CLS] text [SEP]`.

    The text is read once, in batches, and never held in memory, but its distinct words are, with their counts. The
    characters get their ids before any piece is fitted, so the vocabulary is the same in every run. With the trainer's
    own ids, ties between pieces would change from run to run. No token is a beginning or an end of text: generation
    starts from `cls_token` and stops at `sep_token`.

    Args:
        texts: the training text: strings, or a data set with a text column.
        vocab_size: most entries, special ones included; text with fewer frequent pieces gives fewer.
        lowercase: lower case, and accents removed, as in uncased BERT. Different words of Vietnamese or Russian become
            one, and vowels of Hindi, Arabic, Hebrew or Thai are lost, which is warned of: False keeps them.
        min_frequency: how often two neighbours must occur to become one piece.
        layout: `"bert"` puts the special tokens where bert-base-uncased has them, [PAD] 0, [UNK] 100, [CLS] 101, [SEP]
            102, [MASK] 103, with [unused] entries between; `"compact"` puts them at 0 to 4. By default BERT's from
            10,000 entries on, where a hundred of them do not matter.
        max_length: `model_max_length`, at most the positions of the model.
        column: the text column of a data set.
        show_progress: show progress bars.

    Returns:
        A fast tokenizer without token type ids; `save_pretrained` and `AutoTokenizer.from_pretrained` round trip.

    Raises:
        ValueError: no words in the text, a vocabulary smaller than special tokens and characters, an unknown layout, a
            missing column.
        TypeError: something in `texts` is not a string, or `texts` is itself one.

    Source: Saha et al. 2024 (BabyLM), section 4.1: WordPiece of 30,522 entries, trained on the training text.

    Example:
        >>> tokenizer = train_wordpiece(["a red ball", "a red cube"], vocab_size=40)
        >>> tokenizer.decode(tokenizer("A red ball").input_ids)
        '[CLS] a red ball [SEP]'
    """
    if layout is None:
        layout = "bert" if vocab_size >= _BERT_LAYOUT_FROM else "compact"
    if layout not in ("bert", "compact"):
        raise ValueError(
            f"layout={layout!r} is not known. Special tokens are laid out as in 'bert' or 'compact': pass one."
        )
    special = list(_BERT if layout == "bert" else _SPECIAL)
    words = DistinctWords(_read(texts, column), lowercase)
    characters = words.characters()
    if not characters:
        raise ValueError(
            "The training text holds no words, so there is nothing to learn a vocabulary from. Check that `texts` "
            "is not empty and that no earlier reader has used it up."
        )
    _warn_of_lost_accents(words)
    if len(special) + len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {len(special)} special tokens ({layout} layout) and "
            f"{len(characters)} characters of the text, word-initial and word-internal ones counted separately, need "
            f"{len(special) + len(characters)} entries before any piece. Raise `vocab_size`, use "
            "`layout='compact'`, or clean the text of rare characters."
        )
    vocabulary = _learn(words, special + characters, vocab_size, min_frequency, show_progress)
    return _wrap(vocabulary, lowercase, max_length)


def _warn_of_lost_accents(words: DistinctWords) -> None:
    """Warns of letters that are lost with the accents, and of different words that become one."""
    total, why = words.counts.total(), "lowercase=True removes accents as uncased BERT does"
    if (lost := words.without_marks.total()) > _FEW_MARKS * total:
        logger.warning(
            "%s words, such as %r, lose marks: %s, and with them vowels or consonants of this language. Different "
            "words become one, and captions are written without. Pass `train_wordpiece(..., lowercase=False)`.",
            f"{lost:,}",
            words.without_marks.most_common(1)[0][0],
            why,
        )
        return
    merged = words.merged()
    if sum(words.unaccented[word].total() for word in merged) > _FEW_MERGED * total:
        most = max(merged, key=lambda word: words.unaccented[word].total())
        logger.warning(
            "%s different words of the text become %s, such as %s, which all become %r: %s. A model cannot tell them "
            "apart, and captions are written without accents. Pass `train_wordpiece(..., lowercase=False)`.",
            f"{sum(map(len, merged.values())):,}",
            f"{len(merged):,}",
            ", ".join(map(repr, merged[most][:_MAX_LISTED])),
            most,
            why,
        )


def _read(texts: Iterable[str] | Dataset | IterableDataset, column: str) -> Iterator[list[str]]:
    """The text in batches."""
    from datasets import Dataset, IterableDataset

    if isinstance(texts, (Dataset, IterableDataset)):
        if texts.column_names is not None:
            require_columns(texts.column_names, [column], reader="The tokenizer reads it.", remedy="Pass `column=`.")
        return (_checked(batch[column]) for batch in texts.select_columns([column]).iter(batch_size=_BATCH))
    return _batches(texts)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _BATCH:
            yield _checked(batch)
            batch = []
    if batch:
        yield _checked(batch)


def _checked(batch: list[str]) -> list[str]:
    for text in batch:
        if not isinstance(text, str):
            raise TypeError(
                f"The training text holds {text!r}, a {type(text).__name__}. A tokenizer learns from strings: filter "
                "out the rows without text, or convert them."
            )
    return batch


def _learn(
    words: DistinctWords, fixed: list[str], vocab_size: int, min_frequency: int, show_progress: bool
) -> dict[str, int]:
    """The vocabulary: `fixed` entries at ids 0, 1, 2, ..., then pieces in the order they were fitted."""
    tokenizer = Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")  # words are as they are to be
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=fixed, show_progress=show_progress
    )
    tokenizer.train_from_iterator(words.repeated(), trainer)
    return tokenizer.get_vocab()


def _wrap(vocabulary: dict[str, int], lowercase: bool, max_length: int) -> PreTrainedTokenizerFast:
    """A `transformers` tokenizer in which the five special tokens alone are special."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = _bert_normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )


def _bert_normalizer(lowercase: bool, strip_accents: bool | None = None) -> normalizers.Normalizer:
    """BERT's, then composed: removing accents takes the syllables of Korean apart, and text may come decomposed."""
    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    return normalizers.Sequence([bert, normalizers.NFC()])


_REMOVED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""White space for `str.split` that BERT's normaliser removes."""
_MARK = regex.compile(r"[\p{Mn}--[\u0300-\u036f\ufe00-\ufe0f]]", regex.V1)
"""Marks other than the accents of Latin, Greek and Cyrillic: vowels of Hindi, Arabic or Thai, sounds of Japanese."""
_MOST_STRETCHES = 1 << 20
_PER_LINE = 4096


class DistinctWords:
    """The normalised words of a text with their counts, equal to those of normalising the whole text.

    Memory grows with the number of distinct words, not with the text's length.
    """

    def __init__(self, batches: Iterable[list[str]], lowercase: bool) -> None:
        self.lowercase = lowercase
        self.counts: Counter[str] = Counter()
        self.without_marks: Counter[str] = Counter()
        self.unaccented: dict[str, Counter[str]] = {}
        """Word without accents → the words with accents that become it."""
        self._normalizer = _bert_normalizer(lowercase)
        self._accented = _bert_normalizer(lowercase, strip_accents=False)
        self._splitter = pre_tokenizers.BertPreTokenizer()
        stretches: Counter[str] = Counter()
        for batch in batches:
            stretches.update(_REMOVED.sub("", "\n".join(batch)).split())
            if len(stretches) > _MOST_STRETCHES:
                self._count(stretches)
                stretches.clear()
        self._count(stretches)

    def _count(self, stretches: Counter[str]) -> None:
        counts, lowercase = self.counts, self.lowercase
        for stretch, count in stretches.items():
            if stretch.isascii() and stretch.isalnum():  # most text: one word, and nothing to normalise but its case
                counts[stretch.lower() if lowercase else stretch] += count
                continue
            if lowercase and _MARK.search(unicodedata.normalize("NFD", stretch)):
                self.without_marks[stretch] += count
            words = self._split(self._normalizer, stretch)
            for word in words:
                counts[word] += count
            if lowercase and not stretch.isascii():
                for word, before in zip(words, self._split(self._accented, stretch), strict=False):
                    if word != before:
                        self.unaccented.setdefault(word, Counter())[before] += count

    def _split(self, normalizer: normalizers.Normalizer, stretch: str) -> list[str]:
        return [word for word, _ in self._splitter.pre_tokenize_str(normalizer.normalize_str(stretch))]

    def merged(self) -> dict[str, list[str]]:
        """Word without accents → the different words of the text that become it, where there are several."""
        merged = {}
        for word, accented in self.unaccented.items():
            plain = [word] if self.counts[word] > accented.total() else []
            if len(accented) + len(plain) > 1:
                merged[word] = plain + [each for each, _ in accented.most_common()]
        return merged

    def characters(self) -> list[str]:
        """Sorted entries of one character: `a`, and `##a` where it continues a word."""
        inside = set().union(*(word[1:] for word in self.counts))
        return [*sorted(inside.union(*(word[0] for word in self.counts))), *sorted(f"##{letter}" for letter in inside)]

    def repeated(self) -> Iterator[list[str]]:
        """Every word as often as it occurs, separated by spaces: for trainers that count for themselves."""
        for word, count in self.counts.items():
            full, rest = divmod(count, _PER_LINE)
            lines = [" ".join([word] * _PER_LINE)] * full
            yield [*lines, " ".join([word] * rest)] if rest else lines


_END, _UNKNOWN = "[END]", "[UNK]"
_MAX_LISTED = 5
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@validate_arguments
def train_word_tokenizer(
    texts: Iterable[str] | Dataset | DatasetDict,
    min_count: int = 5,
    *,
    splits: Sequence[str] = ("train",),
    column: str | None = None,
    max_words: int = 16,
) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, as captioners on regions have it: those that occur often enough, else `[UNK]`.

    Words are in lower case and without ASCII punctuation ("A dog's T-shirt." is `a dogs tshirt`), as Karpathy's tokens
    are. A caption is written `[END] words [END]`: one token, id 0, is beginning, end and padding, and padding is told
    by the attention mask. `[UNK]` has the last id, so that `len(tokenizer)` is the number of a captioner's outputs.

    Args:
        texts: captions; or a data set, whose words are counted in `tokens` where it has that column.
        min_count: a word that occurs less often is unknown. Luo's captioners keep words that occur *more* than 5
            times: that is 6.
        splits: of a `DatasetDict`, those that are counted. The vocabulary of 9,487 words that papers report for COCO
            was counted in all three, the test captions' words included.
        column: the data set's column of text; by default `tokens`, or else `caption`.
        max_words: `model_max_length` leaves room for so many words, which truncation keeps.

    Returns:
        A fast tokenizer without token type ids; `save_pretrained` and `AutoTokenizer.from_pretrained` round trip. More
        frequent words have lower ids, equally frequent ones in the order of the alphabet.

    Raises:
        ValueError: there are no words, or none occurs often enough; a split or the column is missing; `min_count` or
            `max_words` is less than 1.
        TypeError: something in `texts` is not a string, or `texts` is itself one.

    Source: Karpathy and Fei-Fei 2015, whose splits and tokens these are; Luo et al. 2018 (ImageCaptioning.pytorch) for
        one id that begins, ends and pads, the unknown word at the end, and 16 words.

    Example:
        >>> tokenizer = train_word_tokenizer(["A dog runs.", "A red dog!"], min_count=2)
        >>> tokenizer("A dog sleeps").input_ids, len(tokenizer)
        ([0, 1, 2, 3, 0], 4)
        >>> tokenizer.decode([0, 1, 2, 0], skip_special_tokens=True)
        'a dog'
    """
    for name, number in {"min_count": min_count, "max_words": max_words}.items():
        if number < 1:
            raise ValueError(f"{name}={number} was given; a word occurs once at least, so pass 1 or more.")
    captions = _captions(texts, splits, column)
    counts: Counter[str] = Counter()
    for batch in captions:
        counts.update(word for text in batch for word in _words(text))
    known = sorted(
        (word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word)
    )
    if not known:
        most = ", ".join(f"{word!r} {count} times" for word, count in counts.most_common(_MAX_LISTED))
        found = f"the most frequent words are {most}" if counts else "there are no words in them"
        raise ValueError(
            f"No word of the {sum(map(len, captions)):,} captions occurs min_count={min_count} times, so every "
            f"caption would be unknown words alone; {found}. Pass a smaller `min_count`, or more captions."
        )
    _log_coverage(captions, counts, set(known))
    return word_tokenizer(known, max_words)


def _captions(
    texts: Iterable[str] | Dataset | DatasetDict, splits: Sequence[str], column: str | None
) -> list[list[str]]:
    """The captions in batches."""
    from datasets import Dataset, IterableDataset

    if not isinstance(texts, Mapping):
        named = getattr(texts, "column_names", None) or ()
        is_table = isinstance(texts, (Dataset, IterableDataset))
        column = column or (TOKENS if is_table and TOKENS in named else CAPTION)
        return list(_read(texts, column))
    if not splits or (missing := [name for name in splits if name not in texts]):
        wrong = f"names {missing}" if splits else "is empty"
        raise ValueError(
            f"splits={splits!r} {wrong}; the data has the splits {list(texts)}. The vocabulary is counted in the "
            "named ones: pass some of these names in a list."
        )
    return [batch for name in splits for batch in _captions(texts[name], (), column)]


def _words(text: str) -> list[str]:
    """The words of a caption, as `word_tokenizer` splits it."""
    if text.isascii() and text.isprintable():
        return text.lower().translate(_PUNCTUATION).split()
    splits = pre_tokenizers.WhitespaceSplit().pre_tokenize_str(_word_normalizer().normalize_str(text))
    return [word for word, _ in splits]


def _word_normalizer() -> normalizers.Normalizer:
    punctuation = Regex("[!-/:-@\\[-`{-~]")
    return normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace(punctuation, "")])


def _log_coverage(captions: list[list[str]], counts: Counter[str], known: set[str]) -> None:
    """Says which share of the words is known, and how many captions have no known word."""
    total, number = sum(counts.values()), sum(map(len, captions))
    unknown = total - sum(counts[word] for word in known)
    logger.info(
        f"{len(known):,} of {len(counts):,} words are known, of {number:,} captions; {100 * unknown / total:.2f} % of "
        "what they say is unknown"
    )
    lost = sum(known.isdisjoint(_words(text)) for batch in captions for text in batch)
    if lost:
        logger.warning(
            f"{lost:,} of {number:,} captions have no known word: a captioner learns to say nothing, or [UNK] alone, "
            "of their images. Pass a smaller `min_count`, or leave these captions out."
        )


def word_tokenizer(known: Sequence[str], max_words: int = 16) -> PreTrainedTokenizerFast:
    """A tokenizer of these words, in the order of their ids from 1 on; see `train_word_tokenizer`."""
    vocabulary = {word: number for number, word in enumerate((_END, *known, _UNKNOWN))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.normalizer = _word_normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_END} $A {_END}", pair=f"{_END} $A {_END} $B {_END}", special_tokens=[(_END, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_END,
        eos_token=_END,
        pad_token=_END,
        unk_token=_UNKNOWN,
        model_max_length=max_words + 2,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
