"""What a chat model reads of a conversation: the text of its template, the images in it, and which tokens respond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.data.conversations import Message, Turns, read_messages
from hf_curriculum.scorers.pretrained import Precision, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded, reduced_losses, validate_causal

if TYPE_CHECKING:
    import torch
    from PIL import Image


class UnscorableError(ValueError):
    """Why a row's conversation has no score."""


class Chat(NamedTuple):
    """A conversation up to the last response that is scored.

    `scored` numbers the messages that are; `images` are as stored, one for each image that the messages show.
    """

    messages: list[Message]
    scored: list[int]
    images: list[Any]

    def without_images(self) -> Chat:
        """The same words."""
        texts = [tuple(part for part in message.parts if part is not None) for message in self.messages]
        messages = [Message(message.role, parts) for message, parts in zip(self.messages, texts, strict=True)]
        return Chat(messages, self.scored, [])


class Encoded(NamedTuple):
    """The tokens of a text in which each image is one placeholder, int64 (tokens,).

    `response` (tokens,) is the number of the scored response that a token belongs to, from 1, or 0. `suffix` is the
    response where the processor takes it apart from the text.
    """

    text: str
    ids: np.ndarray
    response: np.ndarray
    suffix: str | None = None


def read_chat(
    cell: Any, stored: Any, before: Any = None, *, prompt: str = "", turns: Turns = "all", sees_images: bool = True
) -> Chat | None:
    """A row's conversation; None where it has no response.

    Args:
        cell: its messages, or the text of the one response.
        stored: its image or images, None for none.
        before: the prompt, as messages or a text, where `cell` is what completes it.
        prompt: what a user asks where `cell` is a text and nothing is `before` it.
        turns: which responses are scored.
        sees_images: whether the model does; texts alone are kept for another one.

    Raises:
        ConversationError: these are no messages.
        UnscorableError: they show another number of images than the row has.
    """
    if cell is None:
        return None
    images = [] if stored is None else list(stored) if isinstance(stored, (list, tuple)) else [stored]
    responses = [Message("assistant", (cell,))] if isinstance(cell, str) else read_messages(cell)
    asked: list[Message] = []
    if isinstance(before, str) or (before is None and isinstance(cell, str)):
        asked = [Message("user", (prompt if before is None else before,))]
    elif before is not None:
        asked = read_messages(before)
    messages = [*asked, *responses]
    spoken = [n for n, message in enumerate(messages) if message.role == "assistant" and n >= len(asked)]
    spoken = {"all": spoken, "first": spoken[:1], "last": spoken[-1:]}[turns]
    scored = [n for n in spoken if messages[n].text.strip()]
    if not scored:
        return None
    if not sees_images:
        return Chat(messages[: scored[-1] + 1], scored, []).without_images()
    if before is None and isinstance(cell, str) and not images:
        raise UnscorableError("the caption has no image")
    messages = _with_images(messages, len(images))[: scored[-1] + 1]  # what is said later is not read
    return Chat(messages, scored, images[: sum(message.num_images for message in messages)])


def _with_images(messages: list[Message], images: int) -> list[Message]:
    """The messages, with so many images before the first user's words where no message shows any."""
    shown = sum(message.num_images for message in messages)
    if images and not shown:
        first = next((n for n, message in enumerate(messages) if message.role == "user"), None)
        if first is None:
            raise UnscorableError(f"no message of a user is there to show the row's images ({images})")
        question = Message("user", (None,) * images + messages[first].parts)
        return [*messages[:first], question, *messages[first + 1 :]]
    if shown != images:
        raise UnscorableError(f"images in the messages: {shown}, images of the row: {images}")
    return messages


def reads_chats(config: Any) -> bool:
    """Whether a model reads conversations: a language model, or one that reads images as placeholders in a text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from hf_curriculum.models.base import image_placeholder

    writes = type(config) in AutoModelForCausalLM._model_mapping
    captions = type(config) in AutoModelForImageTextToText._model_mapping  # GIT is both
    return image_placeholder(config) is not None or (writes and not captions)


class ChatParts(NamedTuple):
    """What turns conversations into a model's inputs; no processor, and no template, where there is none."""

    processor: Any | None
    tokenizer: Any
    template: str | None

    @property
    def template_digest(self) -> str | None:
        """A digest of the template, which decides what the model reads."""
        return None if self.template is None else digest(self.template)

    @classmethod
    def load(cls, config: Any, name: str, revision: str | None) -> ChatParts:
        from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

        from hf_curriculum.models.base import image_placeholder

        processor = None
        if image_placeholder(config) is not None:
            processor = load_pretrained(AutoProcessor, name, revision)
            processor.image_processor = load_pretrained(AutoImageProcessor, name, revision, backend="pil")
        tokenizer = load_pretrained(AutoTokenizer, name, revision) if processor is None else processor.tokenizer
        if not tokenizer.is_fast:
            raise ValueError(
                f"{name!r} has a slow tokenizer ({type(tokenizer).__name__}), which does not say where in a text its "
                "tokens stand, so responses cannot be found. Name a `processor` with a fast one (`tokenizer.json`)."
            )
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        template = (processor and processor.chat_template) or tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default", next(iter(template.values())))
        # a PaliGemma reads a prefix and a suffix, whatever else is saved with it
        return cls(processor, tokenizer, None if config.model_type == "paligemma" else template)


class ChatModel:
    """A chat model on its device, and what it reads of conversations."""

    def __init__(self, model: Any, parts: ChatParts, name: str, max_length: int | None) -> None:
        self.model, self.name = model, name
        self.processor, self.tokenizer, self.template = parts
        self.kind: str = model.config.model_type
        text = model.config.get_text_config(decoder=True)
        text.use_cache = False
        limits = (max_length, getattr(text, "max_position_embeddings", None))
        self.limit = min((limit for limit in limits if limit is not None), default=None)
        self.places = np.array(self._placeholders())
        self._validate()

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None,
        processor: str | None,
        max_length: int | None,
        device: torch.device,
        dtype: Precision = "float32",
    ) -> ChatModel:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

        where, at = (name, revision) if processor is None else (processor, None)
        config = load_pretrained(AutoConfig, name, revision)
        parts = ChatParts.load(config, where, at)
        auto_class = AutoModelForCausalLM if parts.processor is None else AutoModelForImageTextToText
        return cls(load_model(auto_class, name, revision, dtype=dtype).to(device), parts, name, max_length)

    def _placeholders(self) -> list[int]:
        """Tokens that stand for an image in a text."""
        from hf_curriculum.models.base import image_placeholder

        if self.processor is None:
            return []
        # Gemma 3 writes a `boi_token`, and reads another one
        texts = [getattr(self.processor, name, None) for name in ("image_token", "boi_token")]
        found = self.tokenizer.convert_tokens_to_ids([str(text) for text in texts if text is not None])
        own = getattr(self.model.config, str(image_placeholder(self.model.config)))
        return sorted({own, *found} - {None, self.tokenizer.unk_token_id})

    def _validate(self) -> None:
        config, kind = self.model.config, type(self.model).__name__
        if config.is_encoder_decoder or config.get_text_config(decoder=True).is_encoder_decoder:
            raise ValueError(
                f"{self.name!r} is a {kind} whose encoder reads the conversation, and responses are scored by models "
                "that read from left to right. Name one of those, such as Qwen2-VL, SmolVLM or LLaVA."
            )
        if self.processor is None:
            validate_causal(self.model, self.name)
        if self.template is not None:
            try:
                self._render([Message("user", ("Hello.",))], True)
            except (UnscorableError, TypeError) as error:
                raise ValueError(
                    f"The chat template of {self.name!r} cannot render the message of a user ({error}), so no "
                    "conversation can be read. Save the model with a template that takes "
                    f"{'a text' if self.processor is None else 'a list of texts and images'} as `content`."
                ) from error

    def _render(self, messages: Sequence[Message], with_prompt: bool) -> str:
        """The template's text, with the beginning of a response after it where it is `with_prompt`."""
        from jinja2 import TemplateError

        def content(message: Message) -> Any:
            if self.processor is None:
                return message.text
            parts = message.parts or ("",)
            return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]

        chat = [{"role": message.role, "content": content(message)} for message in messages]
        options = {"chat_template": self.template, "tokenize": False, "add_generation_prompt": with_prompt}
        try:
            return (self.processor or self.tokenizer).apply_chat_template(chat, **options)
        except TemplateError as error:
            raise UnscorableError(f"the chat template refuses it: {error}") from error

    def encode(self, chat: Chat) -> Encoded:
        """The tokens of a conversation before its images are put in, and which of them respond.

        Raises:
            UnscorableError: the template refuses it, or writes a message in another way when more follow; the text
                has other placeholders than images; without a template, several turns.
        """
        if self.template is None:
            return self._encode_pair(chat)
        text, spans = self._render(chat.messages, False), []
        for number in chat.scored:
            start = self._render(chat.messages[:number], True)
            stop = text if number == len(chat.messages) - 1 else self._render(chat.messages[: number + 1], False)
            if not (text.startswith(start) and text.startswith(stop)):
                raise UnscorableError(
                    f"the chat template writes message {number} in another way when more messages follow"
                )
            spans.append((len(start), len(stop)))
        return self._tokens(text, spans, len(chat.images))

    def _encode_pair(self, chat: Chat) -> Encoded:
        """Without a template: what the user says, and the response after it."""
        roles = [message.role for message in chat.messages]
        if roles != ["user", "assistant"]:
            raise UnscorableError(
                "the model has no chat template, so it reads the message of a user and one response, and this one is "
                + ", ".join(roles)
            )
        question, response = (message.text for message in chat.messages)
        images = len(chat.images)
        if self.kind == "paligemma":
            shown = self.processor.image_token * images
            pair = (f"{shown}{self.tokenizer.bos_token}{question}\n", f"{response}{self.tokenizer.eos_token}")
            asked, said = self.tokenizer(list(pair), add_special_tokens=False, verbose=False)["input_ids"]
            marks = np.repeat([0, 1], [len(asked), len(said)])
            return self._checked(Encoded(shown + question, np.array(asked + said), marks, response), images)
        shown = "" if self.kind == "blip-2" or not images else self.processor.image_token * images
        before = shown + question
        text = f"{before} {response}" if question else before + response
        return self._tokens(text, [(len(before), len(text))], images)

    def _tokens(self, text: str, spans: Sequence[tuple[int, int]], images: int) -> Encoded:
        special = self._adds_special(text)
        found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
        ids, places = np.array(found["input_ids"]), np.array(found["offset_mapping"])  # (tokens,), (tokens, 2)
        response = np.zeros(len(ids), np.int64)
        for number, (start, stop) in enumerate(spans, 1):
            inside = np.flatnonzero((places[:, 0] < stop) & (places[:, 1] > start))
            if len(inside):
                response[inside[0] : inside[-1] + 1] = number
        return self._checked(Encoded(text, ids, response), images)

    def _adds_special(self, text: str) -> bool:
        """Whether the tokenizer's own beginning is put before a text: as `apply_chat_template` does it."""
        if self.processor is None:
            return self.template is None
        return self.tokenizer.bos_token is None or not text.startswith(self.tokenizer.bos_token)

    def _checked(self, encoded: Encoded, images: int) -> Encoded:
        if self.kind == "blip-2" and images > 1:
            raise UnscorableError(f"the model reads one image, and the row has {images}")
        found = int(np.isin(encoded.ids, self.places).sum())
        wanted = 0 if self.kind == "blip-2" else images  # its processor puts the image in
        if found != wanted:
            raise UnscorableError(f"the text has {found} placeholders of images, and {wanted} are needed")
        return encoded

    def prepare(
        self, rows: Sequence[Encoded], images: Sequence[Sequence[Image.Image]]
    ) -> tuple[dict[str, Any], np.ndarray, dict[int, str]]:
        """The inputs of a batch, the number of each token's response (rows, tokens), and why rows cannot be read.

        Either all rows have images or none has.
        """
        inputs = self._processed(rows, images) if images[0] else self._texts(rows)
        ids, mask = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy() > 0
        marks, wrong = np.zeros(ids.shape, np.int64), {}
        for number, row in enumerate(rows):
            found = ids[number, mask[number]]
            if self.limit is not None and len(found) > self.limit:
                wrong[number] = f"it has {len(found):,} tokens, and the longest that is read has {self.limit:,}"
                continue
            try:
                marks[number, mask[number]] = expanded(row, self.places, found)
            except UnscorableError as error:
                wrong[number] = str(error)
        return inputs, marks, wrong

    def _processed(self, rows: Sequence[Encoded], images: Sequence[Sequence[Image.Image]]) -> dict[str, Any]:
        options: dict[str, Any] = {"add_special_tokens": self._adds_special(rows[0].text)}
        if self.kind == "paligemma":
            options = {"suffix": [row.suffix for row in rows]}
        texts = {"text": [row.text for row in rows], "padding": True, "padding_side": "right"}
        return dict(self.processor(images=[list(each) for each in images], return_tensors="pt", **texts, **options))

    def _texts(self, rows: Sequence[Encoded]) -> dict[str, Any]:
        ids, mask = padded([row.ids.tolist() for row in rows])
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.kind == "paligemma":  # it attends to all of the prefix, of type 0, and from left to right in the rest
            types = padded([(row.response > 0).astype(int).tolist() for row in rows])[0]
            inputs |= {"token_type_ids": types, "labels": ids.masked_fill(types == 0, -100)}
        return inputs

    def losses(self, inputs: dict[str, Any], marks: np.ndarray, differentiable: bool = False) -> torch.Tensor:
        """−Σ log p of the marked tokens of each row, float64 (rows,), on the model's device."""
        import torch

        from hf_curriculum.models.captioner import reads
        from hf_curriculum.models.on_host import to_device

        model, device = self.model, self.model.device
        if self.kind == "blip-2" and "pixel_values" not in inputs:
            model = model.language_model
        inputs = {name: to_device(value, device) for name, value in inputs.items()}
        inputs |= {name: value.to(model.dtype) for name, value in inputs.items() if value.is_floating_point()}
        scored, targets = torch.from_numpy(marks[:, 1:] > 0), inputs["input_ids"][:, 1:]  # (rows, tokens - 1)
        kept = slice(None, -1)
        options: dict[str, Any] = {}
        if "labels" not in inputs and reads(model, "logits_to_keep"):
            needed = scored.any(0).nonzero()[:, 0]  # logits of a prompt and its images would fill the memory
            options = {"logits_to_keep": to_device(needed, device)}
            scored, targets, kept = scored[:, needed], targets[:, options["logits_to_keep"]], slice(None)
        with torch.inference_mode(not differentiable):
            logits = model(**inputs, **options).logits[:, kept]  # (rows, positions, vocabulary)
            return reduced_losses(logits, targets, to_device(scored.long(), device), "sum")


def expanded(row: Encoded, places: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The marks of tokens in which each image is a run of them, int64 (found,), from those of one placeholder each.

    The text between two images is looked for after what was found before, the text after the last one at the end, and
    each of its tokens is compared.

    Raises:
        UnscorableError: a text is not found.
    """
    marks, cursor = np.zeros(len(found), np.int64), 0
    cuts = np.flatnonzero(np.isin(row.ids, places)).tolist()
    for start, stop in zip([-1, *cuts], [*cuts, len(row.ids)], strict=True):
        text, size = row.ids[start + 1 : stop], stop - start - 1
        at = len(found) - size if stop == len(row.ids) else _position(found, text, cursor)
        if at < cursor or not np.array_equal(found[at : at + size], text):
            raise UnscorableError("the processor reads its text as other tokens than the tokenizer does")
        marks[at : at + size], cursor = row.response[start + 1 : stop], at + size
    return marks


def _position(tokens: np.ndarray, wanted: np.ndarray, start: int) -> int:
    """Where `wanted` first stands in `tokens` from `start` on, or -1."""
    width, content = tokens.itemsize, tokens.tobytes()
    at = content.find(wanted.astype(tokens.dtype).tobytes(), start * width)
    while at > 0 and at % width:
        at = content.find(wanted.astype(tokens.dtype).tobytes(), at + 1)
    return at // width if at >= 0 else -1
