"""A part-of-speech tagger: a BERT token classifier, trained from scratch."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hf_curriculum.data.seeding import forked_generators
from hf_curriculum.scorers.base import readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.scorers.text.taggers import Tagger, resolve_tagger, tokenize

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase


Tagged = tuple[list[list[str]], list[list[str]]]
"""Sentences of words, and the tags of these words."""


class PosTagger(Tagger):
    """A trained part-of-speech tagger, for `NounCount(PosTagger(folder))`.

    Sentences are split into words as by the annotator of the training data. The label of a word is that of its first
    piece. Sentences longer than the model's positions are tagged in several windows, so that no word is lost.

    Args:
        model: a folder or a repository of the Hub with a BERT-style token classifier whose labels are tags, from
            `train` or another source.
        revision: of a repository; of a folder, a digest of its files.
        batch_pieces: most word pieces, padding included, that run through the model at once.

    Attributes:
        accuracy_: share of held-out words with the right tag, measured by `train`; None for other models.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the model is no trained token classifier, its tokenizer is not BERT's, or `batch_pieces` below 1.

    Source: Saha et al. 2024 (BabyLM), §3.3: a BERT-base token classifier trained from scratch on NLTK's tags, Adam
    with 1e-5 and linear decay, 5 epochs, batches of 512, 97.42 % of tokens of the 10 % held out.

    Example:
        >>> tagger = PosTagger.train(captions, annotator="pattern")            # doctest: +SKIP
        >>> tagger.accuracy_, tagger.save_pretrained("tagger")                 # doctest: +SKIP
        >>> add_scores(data, NounCount(PosTagger("tagger")))                   # doctest: +SKIP
    """

    packages: tuple[str, ...] = ("torch", "transformers", "tokenizers")

    def __init__(self, model: str | Path, revision: str | None = None, *, batch_pieces: int = 8192) -> None:
        if batch_pieces < 1:
            raise ValueError(f"`batch_pieces` is {batch_pieces}. A batch has at least 1 word piece.")
        self.model: str = str(model)
        self.batch_pieces = batch_pieces
        self.revision: str | None = folder_digest(self.model) if revision is None else revision

    @classmethod
    def from_pretrained(cls, model: str | Path, revision: str | None = None) -> PosTagger:
        """The tagger of a folder or of a repository of the Hub, loaded at once so that a mistake shows here."""
        tagger = cls(model, revision)
        tagger.loaded()
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
        """Trains a tagger with `transformers.Trainer`: without the held-out sentences, to measure it, and then on all.

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

        how = TagTraining(**training)
        tagger = None if tags is not None else resolve_tagger(annotator)
        words, found = _annotated(sentences, tagger) if tags is None else _gold(sentences, tags)
        train_rows, held_out_rows = _split(words, held_out, how.seed)
        if tokenizer is None:
            tokenizer = train_wordpiece((" ".join(line) for line in words), layout="compact")
        config = _filled(config, tokenizer, found, max_length)
        config.contractions = "cut" if tagger is None else tagger.contractions
        labels = [[config.label2id[tag] for tag in line] for line in found]
        pieces, device = WordPieces(tokenizer, config.max_length_of_window), Tagger().device()

        def fit(rows: list[int]) -> Any:
            chosen = [words[row] for row in rows], [labels[row] for row in rows]
            return train_classifier(config, pieces, *chosen, how, device)

        if held_out_rows:
            model = fit(train_rows)
            predicted = predict_labels(model, pieces, [words[row] for row in held_out_rows], batch_pieces=8192)
            right = [
                one == other
                for row, line in zip(held_out_rows, predicted, strict=True)
                for one, other in zip(labels[row], line, strict=True)
            ]
            config.held_out_accuracy = sum(right) / len(right)
        model = fit(list(range(len(words))))
        folder = tempfile.TemporaryDirectory(prefix="pos-tagger-") if output_dir is None else None
        path = Path(output_dir if folder is None else folder.name)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        trained = cls(path)
        trained._folder = folder  # removed with the tagger
        return trained

    @property
    def accuracy_(self) -> float | None:
        return self.loaded()[0].config.held_out_accuracy

    def save_pretrained(self, folder: str | Path) -> PosTagger:
        """Saves the tagger, and returns the one in that folder, which is the model in its provenance."""
        model, pieces = self.loaded()
        model.save_pretrained(folder)
        pieces.tokenizer.save_pretrained(folder)
        return type(self)(folder, batch_pieces=self.batch_pieces)

    def push_to_hub(self, repo_id: str, **options: Any) -> PosTagger:
        """Uploads model and tokenizer, and returns the tagger of that repository.

        Args:
            repo_id: "owner/name".
            options: of `PreTrainedModel.push_to_hub`, such as `private` and `token`.
        """
        model, pieces = self.loaded()
        model.push_to_hub(repo_id, **options)
        pieces.tokenizer.push_to_hub(repo_id, **options)
        return type(self)(repo_id, batch_pieces=self.batch_pieces)

    def tag(self, sentences: list[str], rank: int | None = None) -> list[list[str]]:
        config = self.loaded(rank)[0].config
        return self.tag_words([tokenize(sentence, config.contractions) for sentence in sentences], rank)

    def tag_words(self, sentences: Sequence[Sequence[str]], rank: int | None = None) -> list[list[str]]:
        """Tags of sentences that are split into words; `rank` is the worker process."""
        model, pieces = self.loaded(rank)
        names = model.config.id2label
        predicted = predict_labels(model, pieces, sentences, self.batch_pieces)
        return [[names[label] for label in labels] for labels in predicted]

    def load(self, device: torch.device) -> tuple[Any, WordPieces]:
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        tokenizer = load_pretrained(AutoTokenizer, self.model, self.revision)
        model = load_model(AutoModelForTokenClassification, self.model, self.revision).to(device)
        config = model.config
        # other taggers do not record how words were split
        config.contractions = getattr(config, "contractions", "cut")
        config.held_out_accuracy = getattr(config, "held_out_accuracy", None)
        longest = getattr(config, "max_length_of_window", config.max_position_embeddings)
        return model, WordPieces(tokenizer, longest)


def _filled(
    config: BertConfig | None, tokenizer: PreTrainedTokenizerBase, tags: list[list[str]], max_length: int
) -> BertConfig:
    """A copy of the configuration with what follows from tokenizer and tags."""
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
        raise TypeError("`tags` were given for sentences that are not split into words. Give lists of words.")
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
                f"({found[:8]}). Each word needs one tag; an annotator must split words as `tokenize` does."
            )
    there = [row for row, line in enumerate(words) if line]
    if not there:
        raise ValueError("There are no sentences with words, so there is nothing to learn tags from.")
    return [words[row] for row in there], [tags[row] for row in there]


def _split(words: list[list[str]], held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to train on and rows to measure on; equal sentences are on one side."""
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
    kept = [row for row, number in enumerate(of_rows) if number not in chosen]
    return kept, [row for row, number in enumerate(of_rows) if number in chosen]


@dataclass(frozen=True)
class TagTraining:
    """How a tagger is trained; the defaults are the paper's (Saha et al. 2024, released code).

    Args:
        epochs: passes over the sentences.
        learning_rate: Adam's at the start; it decays linearly to 0.
        batch_size: windows of words per step.
        fp16: half precision with loss scaling; needs a CUDA device.
        seed: of the weights, the order of sentences and dropout.
    """

    epochs: int = 5
    learning_rate: float = 1e-5
    batch_size: int = 512
    fp16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "batch_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}. Training needs a number above 0.")
        if self.fp16 and not torch.cuda.is_available():
            raise ValueError("`fp16=True` needs a CUDA device, and there is none. Leave it out to train in float32.")


def train_classifier(
    config: BertConfig,
    pieces: WordPieces,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[Sequence[int]],
    training: TagTraining,
    device: torch.device,
) -> PreTrainedModel:
    """A BERT token classifier trained from random weights on sentences of words, with one label per word."""
    from transformers import (
        BertForTokenClassification,
        DataCollatorForTokenClassification,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    windows = pieces.windows(sentences)
    rows = [
        {"input_ids": window.ids, "attention_mask": [1] * len(window.ids), "labels": of_pieces}
        for window, of_pieces in zip(windows, piece_labels(windows, labels), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder, _isolated(device):
        torch.manual_seed(training.seed)
        model = BertForTokenClassification(config)
        arguments = TrainingArguments(
            folder,
            num_train_epochs=training.epochs,
            learning_rate=training.learning_rate,
            per_device_train_batch_size=training.batch_size,
            fp16=training.fp16,
            seed=training.seed,
            max_grad_norm=0,  # as in the paper's code
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        arguments._n_gpu = min(arguments.n_gpu, 1)  # the batch size is that of the paper on any machine
        collator = DataCollatorForTokenClassification(pieces.tokenizer)
        trainer = Trainer(model, arguments, data_collator=collator, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()


@contextmanager
def _isolated(device: torch.device) -> Iterator[None]:
    """A `Trainer` here is of this process only, whatever a launcher set, and leaves random generators as they were."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = (PartialState, AcceleratorState, GradientState)
    shared, environment = [state._shared_state for state in states], dict(os.environ)
    try:
        for state in states:
            state._shared_state = type(state._shared_state)()
        for name in environment:
            if name.startswith(("ACCELERATE_", "FSDP_")) or name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
                del os.environ[name]
        with forked_generators(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for state, before in zip(states, shared, strict=True):
            state._shared_state = before
        os.environ.update(environment)


def predict_labels(
    model: Any, pieces: WordPieces, sentences: Sequence[Sequence[str]], batch_pieces: int
) -> list[list[int]]:
    """The likeliest label of every word; a batch has up to `batch_pieces` pieces, padding included."""
    windows = pieces.windows(sentences)
    order = sorted(range(len(windows)), key=lambda row: -len(windows[row].ids))
    found: list[list[int]] = [[] for _ in windows]
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, batch_pieces // len(windows[order[start]].ids))]
        ids, mask = (values.to(model.device) for values in padded([windows[row].ids for row in rows]))
        with torch.inference_mode():
            best = model(input_ids=ids, attention_mask=mask).logits.argmax(-1).tolist()  # (windows, pieces)
        for row, line in zip(rows, best, strict=True):
            found[row] = [line[position] for position in windows[row].firsts]
        start += len(rows)
    predicted: list[list[int]] = [[] for _ in sentences]
    for window, labels in zip(windows, found, strict=True):
        predicted[window.sentence] += labels
    return predicted


IGNORED = -100
"""The label of a piece that is not trained on, as `torch.nn.functional.cross_entropy` has it."""


class Window(NamedTuple):
    """Words of one sentence: piece ids between special tokens, and the position of each word's first piece."""

    sentence: int
    ids: list[int]
    firsts: list[int]


class WordPieces:
    """Splits sentences into windows of up to `max_length` pieces, special tokens included.

    Words are never split between windows, and none is left out; of a word longer than a window, the first pieces are
    read.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        ends = {name: getattr(tokenizer, name) for name in ("cls_token_id", "sep_token_id", "pad_token_id")}
        missing = [name for name, token in ends.items() if token is None]
        if missing:
            raise ValueError(
                f"The tokenizer has no `{missing[0]}`. A tagger reads sentences between [CLS] and [SEP], padded with "
                "[PAD]. Give a BERT-style tokenizer, like one of `train_wordpiece`."
            )
        if max_length < 3:
            raise ValueError(f"`max_length` is {max_length}. A word between two special tokens takes at least 3.")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._known: dict[str, list[int]] = {}

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[Window]:
        """The windows of all sentences, in order; a sentence without words has none."""
        self._look_up(sentences)
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        room, windows = self.max_length - 1, []
        for sentence, words in enumerate(sentences):
            ids, firsts = [first], []
            for word in words:
                pieces = self._known[word]
                if len(ids) + len(pieces) > room:
                    windows.append(Window(sentence, [*ids, last], firsts))
                    ids, firsts = [first], []
                firsts.append(len(ids))
                ids.extend(pieces)
            if firsts:
                windows.append(Window(sentence, [*ids, last], firsts))
        return windows

    def _look_up(self, sentences: Sequence[Sequence[str]]) -> None:
        """The pieces of words not seen before; of a word without pieces, the unknown token: each word has a tag."""
        new = list(dict.fromkeys(word for words in sentences for word in words if word not in self._known))
        if new:
            found = self.tokenizer(new, add_special_tokens=False, verbose=False)["input_ids"]
            for word, pieces in zip(new, found, strict=True):
                self._known[word] = pieces[: self.max_length - 2] or [self.tokenizer.unk_token_id]


def piece_labels(windows: Sequence[Window], labels: Sequence[Sequence[int]]) -> list[list[int]]:
    """Labels of every piece of all windows: a word's first piece has the word's, all others are ignored."""
    of_words = chain.from_iterable(labels)
    found = [[IGNORED] * len(window.ids) for window in windows]
    for window, row in zip(windows, found, strict=True):
        for position in window.firsts:
            row[position] = next(of_words)
    return found
