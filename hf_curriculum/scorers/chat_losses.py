"""The forward passes of a chat model over a batch, each run once however many scores are computed from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from xxhash import xxh3_128_intdigest

from hf_curriculum.config import kind_of
from hf_curriculum.data.conversations import ConversationError, Turns, is_conversation
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.scorers.chat_inputs import Chat, ChatModel, Encoded, UnscorableError, read_chat
from hf_curriculum.scorers.pretrained import to_host
from hf_curriculum.scorers.visual.images import open_image, read_ahead

if TYPE_CHECKING:
    import torch
    from PIL import Image

logger: logging.Logger = logging.getLogger(__name__)


class ResponseLosses(NamedTuple):
    """−Σ log p of the responses' tokens in nats, NaN where a row has none, and how many tokens, float64 (rows,)."""

    total: np.ndarray
    tokens: np.ndarray

    def reduced(self, reduction: Literal["sum", "mean"]) -> np.ndarray:
        """Losses of rows, float64 (rows,)."""
        return self.total / self.tokens if reduction == "mean" else self.total


class _Item(NamedTuple):
    """A text to run, of which row, and its images, opened or as stored."""

    row: int
    encoded: Encoded
    images: Sequence[Any]


class ChatScorer(Protocol):
    """What a scorer says of the conversations that it reads: see `ModelLoss`."""

    name: str
    columns: tuple[str, ...]
    batch_size: int
    image_column: str
    caption_column: str
    prompt_column: str | None
    prompt: str | None
    turns: Turns
    sees_images: bool

    def loaded(self, rank: int | None = None) -> ChatModel: ...


class ChatPasses:
    """A batch of conversations, and the losses of their responses in one context or another.

    Args:
        scorer: says which columns are read, which responses are scored, and what runs at once.
        batch: column → one entry per row.
        rank: the worker process.
    """

    def __init__(self, scorer: ChatScorer, batch: dict[str, list[Any]], rank: int | None) -> None:
        self.scorer, self.rank = scorer, rank
        self.rows = len(batch[scorer.caption_column])
        self.chats: dict[int, Chat] = {}
        self.failed: dict[int, str] = {}
        self.seen: dict[int, set[int]] = {}
        self._kept: dict[str, ResponseLosses] = {}
        self._read(batch)
        self.encoded: dict[int, Encoded] = self._encode(self.chats.items())

    def _read(self, batch: dict[str, list[Any]]) -> None:
        scorer, nothing = self.scorer, [None] * self.rows
        stored = batch[scorer.image_column] if scorer.image_column in scorer.columns else nothing
        before = nothing if scorer.prompt_column is None else batch[scorer.prompt_column]
        options = {"prompt": scorer.prompt or "", "turns": scorer.turns, "sees_images": scorer.sees_images}
        for row, cell in enumerate(batch[scorer.caption_column]):
            if scorer.prompt_column is not None and before[row] is None:
                continue
            _validate_cell(cell, scorer.caption_column, row)
            _validate_cell(before[row], scorer.prompt_column, row)
            try:
                chat = read_chat(cell, stored[row], before[row], **options)
            except (ConversationError, UnscorableError) as error:
                self.failed[row] = str(error)
                continue
            if chat is not None:
                self.chats[row] = chat

    def _encode(self, chats: Iterable[tuple[int, Chat]]) -> dict[int, Encoded]:
        found = {}
        for row, chat in chats:
            try:
                found[row] = self.loaded.encode(chat)
            except UnscorableError as error:
                self.failed[row] = str(error)
        return found

    @property
    def loaded(self) -> ChatModel:
        """The model; a batch without a response does not load it."""
        return self.scorer.loaded(self.rank)

    def own(self) -> ResponseLosses:
        """Given all that stands before, and the row's images."""
        return self._once("own", lambda: [self._item(row, self.chats[row].images) for row in self.encoded])

    def without_images(self) -> ResponseLosses:
        """Given the words that stand before alone."""

        def items() -> list[_Item]:
            chats = {row: self.chats[row].without_images() for row in self.encoded}
            return [_Item(row, encoded, ()) for row, encoded in self._encode(chats.items()).items()]

        return self._once("without_images", items)

    def alone(self) -> ResponseLosses:
        """Of each response by itself, after the tokenizer's beginning of text if it has one."""

        def items() -> list[_Item]:
            first = self.loaded.tokenizer.bos_token_id if self.encoded else None
            before = np.array([] if first is None else [first], np.int64)
            found = []
            for row, encoded in self.encoded.items():
                for number in range(1, encoded.response.max() + 1):
                    ids = np.concatenate([before, encoded.ids[encoded.response == number]])
                    marks = np.arange(len(ids)) >= len(before)
                    if len(ids) > 1:
                        found.append(_Item(row, Encoded("", ids, marks.astype(np.int64)), ()))
            return found

        return self._once("alone", items)

    def with_image(self, image: Image.Image, rows: Sequence[int]) -> ResponseLosses:
        """Of some rows, given another image in place of each of theirs."""
        return self._run([self._item(row, [image] * len(self.chats[row].images)) for row in rows])

    def report(self) -> None:
        """Logs how many rows cannot be scored, and why the first one."""
        if self.failed:
            row = min(self.failed)
            logger.warning(
                "`%s`: %d of %d conversations cannot be scored (NaN). The first, row %d of the batch: %s",
                *(self.scorer.name, len(self.failed), self.rows, row, self.failed[row]),
            )

    def _item(self, row: int, images: Sequence[Any]) -> _Item:
        return _Item(row, self.encoded[row], images)

    def _once(self, name: str, items: Callable[[], list[_Item]]) -> ResponseLosses:
        if name not in self._kept:
            self._kept[name] = self._run(items(), keep=name == "own")
        return self._kept[name]

    def _run(self, items: Sequence[_Item], keep: bool = False) -> ResponseLosses:
        """Losses of all rows; the longest first, for a batch that does not fit into memory to fail at once."""
        losses = ResponseLosses(np.zeros(self.rows), np.zeros(self.rows))
        failed: dict[int, str] = {}
        batches: list[list[_Item]] = []
        for with_images in (True, False):
            chosen = [item for item in items if bool(item.images) == with_images]
            chosen.sort(key=lambda item: (-len(item.images), -len(item.encoded.ids)))
            size = self.scorer.batch_size
            batches += [chosen[start : start + size] for start in range(0, len(chosen), size)]
        rows: list[int] = []
        totals: list[torch.Tensor] = []  # on the device: each copy from there would wait for it
        for ready in read_ahead(self.scorer, batches, lambda items: _ready(self.loaded, items)):
            failed |= ready.failed
            self.seen |= ready.seen if keep else {}
            for own, inputs, marks in ready.batches:
                rows += own
                totals.append(self.loaded.losses(inputs, marks))
                np.add.at(losses.tokens, own, (marks[:, 1:] > 0).sum(1))
        if rows:
            np.add.at(losses.total, rows, np.nan_to_num(to_host(totals)))
        self.failed |= failed
        unscored = np.isin(np.arange(self.rows), list(failed)) | (losses.tokens == 0)
        losses.total[unscored] = losses.tokens[unscored] = np.nan
        return losses


class _Ready(NamedTuple):
    """What a model reads of some texts: rows, inputs and marks of batches; digests of rows' images; why rows fail."""

    batches: list[tuple[list[int], dict[str, Any], np.ndarray]]
    seen: dict[int, set[int]]
    failed: dict[int, str]


def _ready(loaded: ChatModel, items: Sequence[_Item]) -> _Ready:
    """Opens the images of texts and prepares them; rows that cannot be read are left out, with the reason."""
    ready, opened = _Ready([], {}, {}), []
    for item in items:
        try:
            images = [open_image(stored) for stored in item.images]
        except UnreadableImageError as error:
            ready.failed[item.row] = str(error)
            continue
        ready.seen[item.row] = {image_digest(image) for image in images}
        opened.append(item._replace(images=images))
    _prepare(loaded, opened, ready)
    return ready


def _prepare(loaded: ChatModel, items: list[_Item], ready: _Ready) -> None:
    """Adds the inputs of texts, in one batch unless the processor refuses one of them."""
    while items:
        try:
            inputs, marks, wrong = loaded.prepare([item.encoded for item in items], [item.images for item in items])
        except ValueError as error:  # of a processor, which does not say which row it is about
            if len(items) == 1:
                ready.failed[items[0].row] = " ".join(str(error).split())
                return
            for item in items:
                _prepare(loaded, [item], ready)
            return
        ready.failed.update({items[number].row: reason for number, reason in wrong.items()})
        if not wrong:
            ready.batches.append(([item.row for item in items], inputs, marks))
            return
        items = [item for number, item in enumerate(items) if number not in wrong]


def _validate_cell(cell: Any, column: str | None, row: int) -> None:
    if not (cell is None or isinstance(cell, str) or is_conversation(cell)):
        raise TypeError(
            f"`{column}` in row {row} of the batch is {kind_of(cell)}: {str(cell)[:60]!r}. A chat model reads a list "
            "of messages with `role` and `content`, or a text. Name another column, or load the data with "
            "`load_conversations`."
        )


def image_digest(image: Image.Image) -> int:
    """A digest of an image's size and pixels."""
    return xxh3_128_intdigest(f"{image.size}".encode() + image.tobytes())
