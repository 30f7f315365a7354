"""A part-of-speech tagger of one's own: a BERT token classifier, trained from scratch."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.captions import readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained
from hf_curriculum.scorers.taggers import Tagger, resolve_tagger, tokenize

if TYPE_CHECKING:
    import torch
    from transformers import BertConfig, PreTrainedTokenizerBase

Tagged = tuple[list[list[str]], list[list[str]]]
"""Sentences of words, and the tags of these words."""


class PosTagger(Tagger):
    """A trained part-of-speech tagger, for `NounCount(PosTagger(folder))`.

    Words are cut as the tags that it learnt from were. A word's first piece carries its tag, in training and in
    prediction. Sentences longer than the model's positions are tagged in several windows, so that no word is lost.

    Args:
        model: a folder or a repository of the Hub with a BERT-style token classifier whose labels are tags, from
            `train` or made elsewhere.
        revision: of a repository; of a folder, a digest of its files.
        batch_pieces: most word pieces, padding included, that run through the model at once.

    Attributes:
        accuracy_: share of held-out words with the right tag, measured by `train`; None for a model made elsewhere.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the model is no trained token classifier, its tokenizer is not BERT's, or `batch_pieces` below 1.

    Source: Saha et al. 2024 (BabyLM), §3.3: a BERT-base token classifier trained from scratch on NLTK's tags, Adam
    with 1e-5 falling in a straight line, 5 epochs, batches of 512, 97.42 % of tokens of the 10 % held out.

    Example:
        >>> tagger = PosTagger.train(captions, annotator="pattern")            # doctest: +SKIP
        >>> tagger.accuracy_, tagger.save_pretrained("tagger")                 # doctest: +SKIP
        >>> add_scores(data, NounCount(PosTagger("tagger")))                   # doctest: +SKIP
    """

    packages = ("torch", "transformers", "tokenizers")

    def __init__(self, model: str | Path, revision: str | None = None, *, batch_pieces: int = 8192) -> None:
        if batch_pieces < 1:
            raise ValueError(f"`batch_pieces` is {batch_pieces}. A batch has at least 1 word piece.")
        self.model, self.batch_pieces = str(model), batch_pieces
        self.revision = folder_digest(self.model) if revision is None else revision

    @classmethod
    def from_pretrained(cls, model: str | Path, revision: str | None = None) -> PosTagger:
        """The tagger of a folder or of a repository of the Hub, loaded at once so that a mistake shows here."""
        tagger = cls(model, revision)
        tagger._loaded(None)
        return tagger

    @classmethod
    def train(
        cls,
        sentences: Iterable[str] | Iterable[Sequence[str]],
        tags: Iterable[Sequence[str]] | None = None,
        *,
        annotator: str | Tagger | Callable[[list[str]], list[list[str]]] = "pattern",
        config: BertConfig | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        output_dir: str | Path | None = None,
        held_out: float = 0.1,
        max_length: int = 128,
        **training: Any,
    ) -> PosTagger:
        """Trains a tagger: once without the held-out sentences, to measure it, and then anew on all.

        Args:
            sentences: texts, which the annotator tags; or with `tags`, words.
            tags: gold tags, one per word.
            annotator: any tagger, as in `NounCount`.
            config: sizes of the model, BERT-base by default; vocabulary, padding and labels are filled in.
            tokenizer: BERT-style; by default one of up to 30,522 pieces is trained on the sentences, in lower case.
            output_dir: where to save the tagger; by default a temporary folder that lasts as long as the tagger.
            held_out: share of the distinct sentences to measure on; 0 measures nothing. A sentence that occurs
                several times is on one side only.
            max_length: most pieces of a window of words.
            training: `epochs`, `learning_rate`, `batch_size`, `fp16`, `seed`; see `TagTraining`.

        Raises:
            ValueError: no sentences, tags that do not fit the words, a share outside 0 ≤ `held_out` < 1, or one that
                leaves nothing on a side.
            TypeError: a sentence that is not a string.
        """
        from hf_curriculum.data.tokenizer import train_wordpiece
        from hf_curriculum.scorers.pos_training import TagTraining, train_classifier
        from hf_curriculum.scorers.word_pieces import WordPieces

        how = TagTraining(**training)
        tagger = None if tags is not None else resolve_tagger(annotator)
        words, found = _annotated(sentences, tagger) if tags is None else _gold(sentences, tags)
        learn, measure = _split(words, held_out, how.seed)
        if tokenizer is None:
            tokenizer = train_wordpiece((" ".join(line) for line in words), layout="compact")
        config = _filled(config, tokenizer, found, max_length)
        config.contractions = "cut" if tagger is None else tagger.contractions
        labels = [[config.label2id[tag] for tag in line] for line in found]
        pieces, device = WordPieces(tokenizer, config.max_length_of_window), Scorer().device()

        def fit(rows: list[int]) -> Any:
            chosen = [words[row] for row in rows], [labels[row] for row in rows]
            return train_classifier(config, pieces, *chosen, how, device)

        if measure:
            config.held_out_accuracy = _accuracy(fit(learn), pieces, words, labels, measure)
        return cls._saved(fit(sorted([*learn, *measure])), tokenizer, output_dir)

    @classmethod
    def _saved(cls, model: Any, tokenizer: PreTrainedTokenizerBase, output_dir: str | Path | None) -> PosTagger:
        folder = tempfile.TemporaryDirectory(prefix="pos-tagger-") if output_dir is None else None
        path = Path(output_dir if folder is None else folder.name)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        trained = cls(path)
        trained._folder = folder  # removed with the tagger
        return trained

    @property
    def accuracy_(self) -> float | None:
        return self._loaded(None)[0].config.held_out_accuracy

    def save_pretrained(self, folder: str | Path) -> PosTagger:
        """Saves the tagger, and returns the one in that folder, whose scores name it in their provenance."""
        model, pieces = self._loaded(None)
        model.save_pretrained(folder)
        pieces.tokenizer.save_pretrained(folder)
        return type(self)(folder, batch_pieces=self.batch_pieces)

    def push_to_hub(self, repo_id: str, **options: Any) -> PosTagger:
        """Uploads model and tokenizer, and returns the tagger of that repository.

        Args:
            repo_id: "owner/name".
            options: of `PreTrainedModel.push_to_hub`, such as `private` and `token`.
        """
        model, pieces = self._loaded(None)
        model.push_to_hub(repo_id, **options)
        pieces.tokenizer.push_to_hub(repo_id, **options)
        return type(self)(repo_id, batch_pieces=self.batch_pieces)

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        config = self._loaded(rank)[0].config
        return self.tag_words([tokenize(sentence, config.contractions) for sentence in sentences], rank)

    def tag_words(self, sentences: Sequence[Sequence[str]], rank: int | None = None) -> list[list[str]]:
        """Tags of sentences that are cut into words already.

        Args:
            sentences: words; a sentence without any has no tags.
            rank: the worker process.
        """
        from hf_curriculum.scorers.pos_training import predict_labels

        model, pieces = self._loaded(rank)
        names = model.config.id2label
        found = predict_labels(model, pieces, sentences, self.batch_pieces)
        return [[names[label] for label in labels] for labels in found]

    def _loaded(self, rank: int | None) -> tuple[Any, Any]:
        """Model and word pieces of a worker's device, never pickled."""
        device = Scorer().device(rank)
        kept = self.__dict__.setdefault("_models", {})
        if device not in kept:
            kept[device] = self._load(device)
        return kept[device]

    def _load(self, device: torch.device) -> tuple[Any, Any]:
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        from hf_curriculum.scorers.word_pieces import WordPieces

        tokenizer = load_pretrained(AutoTokenizer, self.model, self.revision)
        model = load_model(AutoModelForTokenClassification, self.model, self.revision).to(device)
        config = model.config
        # a tagger made elsewhere does not say how it wants words cut
        config.contractions = getattr(config, "contractions", "cut")
        config.held_out_accuracy = getattr(config, "held_out_accuracy", None)
        longest = getattr(config, "max_length_of_window", config.max_position_embeddings)
        return model, WordPieces(tokenizer, longest)


def _filled(
    config: BertConfig | None, tokenizer: PreTrainedTokenizerBase, tags: list[list[str]], max_length: int
) -> BertConfig:
    """A copy of the configuration, with what follows from tokenizer and tags, and how the tagger is used later."""
    from transformers import BertConfig

    config = copy.deepcopy(config) if config is not None else BertConfig()
    names = sorted({tag for line in tags for tag in line})
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    config.id2label, config.label2id = dict(enumerate(names)), {tag: number for number, tag in enumerate(names)}
    config.max_length_of_window = min(max_length, config.max_position_embeddings)
    config.held_out_accuracy = None
    return config


def _annotated(sentences: Iterable[str], tagger: Tagger) -> Tagged:
    """Words and tags of the texts that are not blank."""
    texts = readable_captions(list(sentences), "sentences")[0]
    words = [tokenize(text, tagger.contractions) for text in texts]
    return _checked(words, tagger.tag(texts) if texts else [], "the annotator")


def _gold(sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> Tagged:
    words, found = list(sentences), [list(line) for line in tags]
    if any(isinstance(line, str) for line in words):
        raise TypeError("`tags` were given for sentences that are not cut into words. Give a list of words for each.")
    return _checked([list(line) for line in words], found, "`tags`")


def _checked(words: list[list[str]], tags: list[list[str]], source: str) -> Tagged:
    if len(words) != len(tags):
        raise ValueError(
            f"There are {len(words)} sentences, but {source} has tags for {len(tags)}. Give one for each."
        )
    for line, found in zip(words, tags, strict=True):
        if len(line) != len(found):
            raise ValueError(
                f"A sentence has {len(line)} words ({line[:8]}), but {source} has {len(found)} tags for it "
                f"({found[:8]}). Each word needs one tag; an annotator must cut words as `tokenize` does."
            )
    there = [row for row, line in enumerate(words) if line]
    if not there:
        raise ValueError("There are no sentences with words, so there is nothing to learn tags from.")
    return [words[row] for row in there], [tags[row] for row in there]


def _split(words: list[list[str]], held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to learn from and rows to measure on; equal sentences stay together."""
    import torch

    if not 0 <= held_out < 1:
        raise ValueError(f"`held_out` is {held_out}. It is the share of sentences to measure on, from 0 to below 1.")
    numbers: dict[tuple[str, ...], int] = {}
    of_rows = [numbers.setdefault(tuple(line), len(numbers)) for line in words]
    size = round(held_out * len(numbers))
    if held_out and not 0 < size < len(numbers):
        raise ValueError(
            f"`held_out={held_out}` of {len(numbers)} distinct sentences leaves nothing to measure on, or to learn "
            "from. Give more sentences, or `held_out=0` to measure nothing."
        )
    chosen = set(torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))[:size].tolist())
    learn = [row for row, number in enumerate(of_rows) if number not in chosen]
    return learn, [row for row, number in enumerate(of_rows) if number in chosen]


def _accuracy(model: Any, pieces: Any, words: list[list[str]], labels: list[list[int]], rows: list[int]) -> float:
    """Share of the words of some rows whose label is predicted."""
    from hf_curriculum.scorers.pos_training import predict_labels

    predicted = predict_labels(model, pieces, [words[row] for row in rows], batch_pieces=8192)
    pairs = [pair for row, found in zip(rows, predicted, strict=True) for pair in zip(labels[row], found, strict=True)]
    return sum(wanted == found for wanted, found in pairs) / len(pairs)
