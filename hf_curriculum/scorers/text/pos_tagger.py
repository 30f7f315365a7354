"""A part-of-speech tagger: a BERT token classifier, trained from scratch."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from hf_curriculum.config import at_least, digest
from hf_curriculum.data.seeding import forked_generators
from hf_curriculum.files import staged_folder
from hf_curriculum.scorers.base import readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.scorers.text.taggers import Tagger, resolve_tagger, tokenize_sentence
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase

_ROWS = 1000
"""Sentences that are tagged, encoded or counted at a time."""


class PosTagger(Tagger):
    """A part-of-speech tagger that you train or load, for `NounCount(PosTagger(folder))`.

    Sentences are split into words as by the annotator of the training data. A word gets the label of its first piece.
    Sentences longer than the model's positions are tagged in several windows, so that no word is lost.

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
    with 1e-5 and linear decay, 5 epochs, batches of 512. Accuracy 97.42 % of tokens of the 10 % held out.

    Example:
        >>> tagger = PosTagger.train(captions, annotator="pattern")            # doctest: +SKIP
        >>> tagger.accuracy_, tagger.save_pretrained("tagger")                 # doctest: +SKIP
        >>> add_scores(data, NounCount(PosTagger("tagger")))                   # doctest: +SKIP
    """

    packages: tuple[str, ...] = ("torch", "transformers", "tokenizers")

    @validate_arguments
    def __init__(self, model: str | Path, revision: str | None = None, *, batch_pieces: int = 8192) -> None:
        at_least("PosTagger", batch_pieces=(batch_pieces, 1))
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
    @validate_arguments
    def train(
        cls,
        sentences: Iterable[str | None] | Iterable[Sequence[str]],
        tags: Iterable[Sequence[str]] | None = None,
        *,
        annotator: str | Tagger | Callable[[list[str]], list[list[str]]] = "pattern",
        config: BertConfig | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        output_dir: str | Path | None = None,
        held_out: float = 0.1,
        max_length: int = 128,
        num_proc: int | None = None,
        **training: Any,
    ) -> PosTagger:
        """Trains a tagger with `transformers.Trainer`: first without held-out sentences, to measure it, then on all.

        Sentences, tags and word pieces are written to files in a temporary folder (`TMPDIR`), about 40 bytes per word,
        and read from there. Memory holds 40 bytes per sentence and the distinct words.

        Args:
            sentences: texts, which the annotator tags; or with `tags`, words. They are read once.
            tags: gold tags, one per word.
            annotator: any tagger, as in `NounCount`.
            config: sizes of the model, BERT-base by default; vocabulary, padding and labels are filled in.
            tokenizer: BERT-style; by default one of up to 30,522 lower-case pieces is trained on the sentences.
            output_dir: where to save the tagger; by default a temporary folder that lasts as long as the tagger.
            held_out: share of the distinct sentences to measure on; 0 measures nothing. A sentence that occurs
                several times is on one side only.
            max_length: most pieces of a window of words.
            num_proc: processes that run the annotator.
            training: `epochs`, `learning_rate`, `batch_size`, `fp16`, `seed`; see `TagTraining`.

        Raises:
            ValueError: no sentences, tags that do not fit the words, a share outside 0 ≤ `held_out` < 1, or one that
                leaves nothing on a side.
            TypeError: a sentence that is not a string.
        """
        from hf_curriculum.data.tokenizer import train_wordpiece

        how = TagTraining(**training)
        if tags is not None and num_proc is not None:
            raise ValueError("`num_proc` has no effect with `tags`: there is nothing to annotate.")
        tagger = None if tags is not None else resolve_tagger(annotator)
        folder = tempfile.TemporaryDirectory(prefix="pos-tagger-") if output_dir is None else None
        path = Path(output_dir if folder is None else folder.name)
        with tempfile.TemporaryDirectory(prefix="tagged-") as work:
            if tags is None:
                tagged = _annotated(sentences, tagger, num_proc, Path(work))
            else:
                tagged = _stored(_gold(sentences, tags), _TAGGED, Path(work, "tagged.arrow"))
            if not len(tagged):
                raise ValueError("There are no sentences with words, so there is nothing to learn tags from.")
            is_held_out = _split(tagged["words"], held_out, how.seed)
            if tokenizer is None:
                tokenizer = train_wordpiece(map(" ".join, tagged["words"]), layout="compact")
            config = _filled(config, tokenizer, tagged["tags"], max_length)
            config.contractions = "cut" if tagger is None else tagger.contractions
            pieces, device = WordPieces(tokenizer, config.max_length_of_window), Tagger().device()
            if is_held_out.any():
                model = train_classifier(config, pieces, tagged.select(np.flatnonzero(~is_held_out)), how, device)
                config.held_out_accuracy = _accuracy(model, pieces, tagged.select(np.flatnonzero(is_held_out)))
            model = train_classifier(config, pieces, tagged, how, device)
        with staged_folder(path) as staging:
            model.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
        trained = cls(path)
        trained._folder = folder  # removed with the tagger
        return trained

    @property
    def accuracy_(self) -> float | None:
        return self.loaded()[0].config.held_out_accuracy

    def save_pretrained(self, folder: str | Path) -> PosTagger:
        """Saves the tagger, and returns the one in that folder, which is the model in its provenance."""
        model, pieces = self.loaded()
        with staged_folder(folder) as staging:
            model.save_pretrained(staging)
            pieces.tokenizer.save_pretrained(staging)
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
        return self.tag_words([tokenize_sentence(sentence, config.contractions) for sentence in sentences], rank)

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
    config: BertConfig | None, tokenizer: PreTrainedTokenizerBase, tags: Iterable[list[str]], max_length: int
) -> BertConfig:
    """A copy of the configuration with what follows from tokenizer and tags."""
    from transformers import BertConfig

    config = copy.deepcopy(config) if config is not None else BertConfig()
    names = sorted(set(chain.from_iterable(tags)))
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    config.id2label, config.label2id = dict(enumerate(names)), {tag: number for number, tag in enumerate(names)}
    config.max_length_of_window = min(max_length, config.max_position_embeddings)
    config.held_out_accuracy = None
    return config


_TAGGED = Features({"words": List(Value("string")), "tags": List(Value("string"))})


def _stored(rows: Iterable[dict[str, Any]], features: Features, file: Path) -> Dataset:
    """Rows as a memory-mapped data set; `Dataset.from_generator` would hide the error of a wrong row in its own."""
    with ArrowWriter(path=str(file), features=features) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    return Dataset.from_file(str(file))


def _annotated(sentences: Iterable[str], tagger: Tagger, num_proc: int | None, folder: Path) -> Dataset:
    """Words and tags of the texts that are not blank, memory-mapped."""
    rows = iter(sentences)
    batches = iter(lambda: list(islice(rows, _ROWS)), [])
    texts = ({"text": text} for batch in batches for text in readable_captions(batch, "sentences")[0])
    return _stored(texts, Features({"text": Value("string")}), folder / "texts.arrow").map(
        partial(_annotate, tagger=tagger),
        batched=True,
        batch_size=_ROWS,
        with_rank=True,
        num_proc=num_proc,
        remove_columns=["text"],
        features=_TAGGED,
        cache_file_name=str(folder / "tagged.arrow"),
        new_fingerprint="tagged",  # nothing is looked up in a cache
        desc="Tagging",
    )


def _annotate(batch: dict[str, list[str]], rank: int | None, tagger: Tagger) -> dict[str, list[list[str]]]:
    words = [tokenize_sentence(text, tagger.contractions) for text in batch["text"]]
    tags = tagger.tag(batch["text"], rank)
    if len(words) != len(tags):
        raise ValueError(f"The annotator gave tags for {len(tags)} of {len(words)} sentences. Each needs a list.")
    kept = [line for line in zip(words, tags, strict=True) if _has_words(*line, "the annotator")]
    return {"words": [words for words, _ in kept], "tags": [tags for _, tags in kept]}


def _gold(sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> Iterator[dict[str, list[str]]]:
    """Words and tags as they were given, of the sentences that have words."""
    for words, found in zip_longest(sentences, tags):
        if words is None or found is None:
            raise ValueError("The numbers of `tags` and sentences differ. Give one list of tags for each sentence.")
        if isinstance(words, str):
            raise TypeError("`tags` were given for sentences that are not split into words. Give lists of words.")
        if _has_words(words, found, "`tags`"):
            yield {"words": list(words), "tags": list(found)}


def _has_words(words: Sequence[str], tags: Sequence[str], source: str) -> bool:
    """Whether a sentence has words; an error if it has not as many tags."""
    if len(words) != len(tags):
        raise ValueError(
            f"A sentence has {len(words)} words ({list(words[:8])}), but {source} has {len(tags)} tags for it "
            f"({list(tags[:8])}). Each word needs one tag; an annotator must split words as `tokenize` does."
        )
    return bool(words)


def _split(sentences: Iterable[Sequence[str]], held_out: float, seed: int) -> np.ndarray:
    """Which sentences are to be measured on, bool (sentences,); equal sentences are on one side."""
    if not 0 <= held_out < 1:
        raise ValueError(f"`held_out` is {held_out}. It is the share of sentences to measure on, from 0 to below 1.")
    keys = np.fromiter((int(digest("\0".join(line), size=8), 16) for line in sentences), np.uint64)
    _, first, of_rows = np.unique(keys, return_index=True, return_inverse=True)
    size = round(held_out * len(first))
    if held_out and not 0 < size < len(first):
        raise ValueError(
            f"`held_out={held_out}` of {len(first)} distinct sentences leaves nothing to measure on, or to learn "
            "from. Give more sentences, or `held_out=0`."
        )
    drawn = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))[:size].numpy()
    chosen = np.zeros(len(first), bool)
    chosen[np.argsort(first)[drawn]] = True  # numbered in the order in which they first occur
    return chosen[of_rows]


def _accuracy(model: Any, pieces: WordPieces, tagged: Dataset) -> float:
    """The share of words whose likeliest tag is theirs."""
    names, right, words = model.config.id2label, 0, 0  # read once: a configuration looks its attributes up slowly
    for batch in tagged.iter(10 * _ROWS):
        predicted = predict_labels(model, pieces, batch["words"], batch_pieces=8192)
        for tags, labels in zip(batch["tags"], predicted, strict=True):
            right += sum(names[label] == tag for label, tag in zip(labels, tags, strict=True))
            words += len(tags)
    return right / words


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
    config: BertConfig, pieces: WordPieces, tagged: Dataset, training: TagTraining, device: torch.device
) -> PreTrainedModel:
    """A BERT token classifier trained from random weights on sentences of `words`, with one of `tags` per word."""
    from transformers import (
        BertForTokenClassification,
        DataCollatorForTokenClassification,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    with tempfile.TemporaryDirectory(prefix="windows-") as folder, _isolated(device):
        rows = training_windows(tagged, pieces, config.label2id, Path(folder))
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
            raise ValueError(f"The tokenizer has no `{missing[0]}`. Give BERT's, like one of `train_wordpiece`.")
        at_least("WordPieces", max_length=(max_length, 3))  # a word between two special tokens
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
            found = self.tokenizer(new, add_special_tokens=False, verbose=False, split_special_tokens=True)
            for word, pieces in zip(new, found["input_ids"], strict=True):
                self._known[word] = pieces[: self.max_length - 2] or [self.tokenizer.unk_token_id]


def piece_labels(windows: Sequence[Window], labels: Sequence[Sequence[int]]) -> list[list[int]]:
    """Labels of every piece of all windows: a word's first piece has the word's, all others are ignored."""
    of_words = chain.from_iterable(labels)
    found = [[IGNORED] * len(window.ids) for window in windows]
    for window, row in zip(windows, found, strict=True):
        for position in window.firsts:
            row[position] = next(of_words)
    return found


def training_windows(tagged: Dataset, pieces: WordPieces, label2id: dict[str, int], folder: Path) -> Dataset:
    """The windows of tagged sentences: piece ids, and a label of every piece. Memory-mapped."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        windows = pieces.windows(batch["words"])
        labels = piece_labels(windows, [[label2id[tag] for tag in tags] for tags in batch["tags"]])
        return {"input_ids": [window.ids for window in windows], "labels": labels}

    return tagged.map(
        encode,
        batched=True,
        batch_size=_ROWS,
        remove_columns=tagged.column_names,
        features=Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))}),
        cache_file_name=str(folder / "windows.arrow"),
        new_fingerprint="windows",
        desc="Encoding",
    )
