from __future__ import annotations

import functools
import io

import chat_models as CHAT
import numpy as np
import pytest
import tiny_models as TINY
from datasets import Dataset, Features, Image, List
from transformers import (
    BertConfig,
    BertLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_curriculum import Grounding, InstructionFollowingDifficulty, ModelLoss, add_scores
from hf_curriculum.provenance import score_values
from hf_curriculum.scorers.chat_inputs import Encoded, UnscorableError, expanded

NAMES = (*CHAT.VISION, "llama")
PICTURES = [CHAT.picture(number) for number in range(5)]
IMAGES = Features(images=List(Image()))


def parts(*given):
    """Texts, and images for None."""
    return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in given]


def said(role, *given):
    return {"role": role, "content": parts(*given)}


# each: the row's messages as a user has them, its images, the same messages as the processor wants them
ONE = (
    [{"role": "user", "content": "What is in the image?"}, {"role": "assistant", "content": "A red ball."}],
    [0],
    [said("user", None, "What is in the image?"), said("assistant", "A red ball.")],
)
ANOTHER = (
    [said("user", None, "What?"), {"role": "assistant", "content": "Two dogs run in the park, and it is a red one."}],
    [1],
    [said("user", None, "What?"), said("assistant", "Two dogs run in the park, and it is a red one.")],
)
SEVERAL = (
    [said("user", None, "This.\n", None, "And this?"), said("assistant", "A ball.")],
    [2, 0],
    [said("user", None, "This.\n", None, "And this?"), said("assistant", "A ball.")],
)
LATER = (
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": "What is it?"},
        said("user", "See: ", None),
        {"role": "assistant", "content": [{"type": "text", "text": "It runs\nin the park."}]},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Dogs \U0001f415 run."},
    ],
    [3],
    [
        said("system", "You are a helpful assistant."),
        said("user", "Hello."),
        said("assistant", "What is it?"),
        said("user", "See: ", None),
        said("assistant", "It runs\nin the park."),
        said("user", "And?"),
        said("assistant", "Dogs \U0001f415 run."),
    ],
)
WORDS = (
    [{"role": "user", "content": "What is a dog?"}, {"role": "assistant", "content": "It runs."}],
    [],
    [said("user", "What is a dog?"), said("assistant", "It runs.")],
)


def cases(name):
    """Rows that a model can read."""
    if name == "llama":
        return [ONE, LATER, WORDS]
    return [ONE, ANOTHER, SEVERAL, LATER, WORDS] if name in CHAT.WITH_TEMPLATE else [ONE, ANOTHER]


def batch(rows):
    return {
        "messages": [messages for messages, _, _ in rows],
        "images": [[CHAT.stored(PICTURES[number]) for number in numbers] or None for _, numbers, _ in rows],
    }


def responses(messages, turns="all"):
    found = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    return {"all": found, "first": found[:1], "last": found[-1:]}[turns]


def by_hand(name, row, turns="all", images=None, losses=CHAT.losses_by_hand):
    """The losses of a row's tokens."""
    _, numbers, messages = row
    scored = responses(messages, turns)
    if name == "llama":
        texts = ["\n".join(part["text"] for part in each["content"] if "text" in part) for each in messages]
        messages, numbers = [said(each["role"], text) for each, text in zip(messages, texts, strict=True)], []
    images = [PICTURES[number] for number in numbers] if images is None else images
    return losses(name, messages[: scored[-1] + 1], images, scored)


@functools.cache
def folder(name):
    return getattr(CHAT, name)()


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_a_loop_over_rows(name, batch_size):
    rows = cases(name)
    expected = [by_hand(name, row) for row in rows]
    for reduction, reduced in (("sum", np.sum), ("mean", np.mean)):
        scorer = ModelLoss(folder(name), reduction=reduction, batch_size=batch_size)
        found = scorer(batch(rows))["model_loss"]
        np.testing.assert_allclose(found, [reduced(losses) for losses in expected], rtol=1e-5)


@pytest.mark.parametrize("turns", ["first", "last"])
@pytest.mark.parametrize("name", [*CHAT.WITH_TEMPLATE, "llama"])
def test_the_turns_that_are_scored(name, turns):
    found = ModelLoss(folder(name), turns=turns)(batch([LATER, ONE]))["model_loss"]
    np.testing.assert_allclose(found, [np.sum(by_hand(name, row, turns)) for row in (LATER, ONE)], rtol=1e-5)
    assert found[0] < ModelLoss(folder(name))(batch([LATER]))["model_loss"][0]


@pytest.mark.parametrize("name", CHAT.VISION)
def test_the_images_count(name):
    rows = [(ONE[0], [number], None) for number in range(4)]
    found = ModelLoss(folder(name))(batch(rows))["model_loss"]
    assert np.abs(np.subtract.outer(found, found))[np.triu_indices(4, 1)].min() > 1e-3


@pytest.mark.parametrize("name", CHAT.VISION)
def test_captions_are_responses_to_their_image(name):
    rows = {"image": [CHAT.stored(PICTURES[0]), CHAT.stored(PICTURES[1]), None, PICTURES[0]]}
    rows["caption"] = ["A red ball.", " ", "A dog.", None]
    columns = {"image_column": "image", "caption_column": "caption"}
    for prompt in (None, "What is in the image?"):
        found = ModelLoss(folder(name), prompt=prompt, **columns)(rows)["model_loss"]
        question = [] if prompt is None and name in CHAT.WITH_TEMPLATE else [prompt or ""]
        expected = [said("user", None, *(question or [""])), said("assistant", "A red ball.")]
        if name == "blip2" and prompt is None:
            continue  # a text that begins with a space would be another one: see the next test
        assert found[0] == pytest.approx(np.sum(by_hand(name, (None, [0], expected))), rel=1e-5)
        assert np.isnan(found[1:]).all()


def test_blip_2_captions_without_a_prompt():
    rows = {"image": [PICTURES[0]], "caption": ["A red ball."]}
    found = ModelLoss(folder("blip2"), image_column="image", caption_column="caption")(rows)["model_loss"]
    processor = CHAT.processor_of("blip2")
    inputs = processor(images=PICTURES[0], text="A red ball.", return_tensors="pt")
    with CHAT.torch.no_grad():
        logits = CHAT.loaded("blip2")(**inputs).logits[0]
    ids = inputs["input_ids"][0]
    after = (ids == processor.tokenizer.bos_token_id).cumsum(0) - (ids == processor.tokenizer.bos_token_id).long()
    assert found[0] == pytest.approx(np.sum(CHAT.token_losses(logits, ids, after > 0)), rel=1e-5)


@pytest.mark.parametrize("name", [*CHAT.WITH_TEMPLATE, "llama"])
def test_prompt_and_completion(name):
    messages = LATER[0]
    rows = {"images": batch([LATER])["images"] * 2, "prompt": [messages[:4], messages[:4]]}
    rows["completion"] = [messages[4:], "It runs\nin the park."]
    found = ModelLoss(folder(name), prompt_column="prompt", caption_column="completion")(rows)["model_loss"]
    both, first = by_hand(name, LATER), by_hand(name, LATER, "first")
    assert found[0] == pytest.approx(np.sum(both[len(first) :]), rel=1e-5)  # the response of the prompt is not scored
    one = by_hand(name, (None, [3], LATER[2][:5]))
    assert found[1] == pytest.approx(np.sum(one[len(first) :]), rel=1e-5)
    texts = {"images": [None] * 2, "prompt": ["What is a dog?", None], "completion": ["It runs.", "It runs."]}
    found = ModelLoss(folder(name), prompt_column="prompt", caption_column="completion")(texts)["model_loss"]
    assert found[0] == pytest.approx(np.sum(by_hand(name, WORDS)), rel=1e-5)
    assert np.isnan(found[1])


@pytest.mark.parametrize("name", CHAT.VISION)
def test_grounding_is_the_loss_with_other_images_minus_that_with_the_own(name):
    rows = cases(name)
    data = Dataset.from_dict(
        {"images": [[CHAT.stored(each)] for each in PICTURES]}, features=Features(images=List(Image()))
    )
    scorer = Grounding(folder(name), k=2, batch_size=3).fit(data)
    drawn = [Picture(other) for other in scorer.other_images_]
    expected = []
    for row in rows:
        own = {PICTURES[number].tobytes() for number in row[1]}
        others = [image for image in drawn if image.tobytes() not in own][:2]
        each = [np.mean(by_hand(name, row, images=[image] * len(row[1]))) for image in others]
        expected.append(np.mean(each) - np.mean(by_hand(name, row)) if row[1] else np.nan)
    found = scorer(batch(rows))["grounding"]
    np.testing.assert_allclose(found, expected, atol=3e-6)
    assert np.nanmin(np.abs(found)) > 1e-4
    assert len(drawn) == 3


def Picture(content):
    return CHAT.Picture.open(io.BytesIO(content.tobytes())).convert("RGB")


@pytest.mark.parametrize("name", CHAT.WITH_TEMPLATE)
def test_grounding_against_no_image(name):
    rows = cases(name)
    scorer = Grounding(folder(name), against="none", batch_size=2)
    assert not scorer.needs_fit
    expected = []
    for row in rows:
        texts = [[part for part in each["content"] if part["type"] == "text"] for each in row[2]]
        without = [{**each, "content": text} for each, text in zip(row[2], texts, strict=True)]
        blind = np.mean(by_hand(name, (None, [], without)))
        expected.append(blind - np.mean(by_hand(name, row)) if row[1] else np.nan)
    np.testing.assert_allclose(scorer(batch(rows))["grounding"], expected, atol=3e-6)


@pytest.mark.parametrize("name", ["paligemma", "blip2"])
def test_grounding_against_no_image_without_a_template(name):
    model, words = CHAT.loaded(name), CHAT.AutoTokenizer.from_pretrained(folder(name))
    prompt, response = "What?", "Two dogs run in the park, and it is a red one."
    if name == "paligemma":
        before = words(f"<s>{prompt}\n", add_special_tokens=False)["input_ids"]
        after = words(f"{response}</s>", add_special_tokens=False)["input_ids"]
        types = CHAT.torch.tensor([[0] * len(before) + [1] * len(after)])
        options, reader = {"token_type_ids": types}, model
    else:
        before, after = words(prompt)["input_ids"], words(f" {response}", add_special_tokens=False)["input_ids"]
        options, reader = {}, model.language_model
    ids = CHAT.torch.tensor([before + after])
    with CHAT.torch.no_grad():
        logits = reader(input_ids=ids, **options).logits[0]
    blind = np.mean(CHAT.token_losses(logits, ids[0], CHAT.torch.arange(ids.shape[1]) >= len(before)))
    found = Grounding(folder(name), against="none")(batch([ANOTHER]))["grounding"]
    assert found[0] == pytest.approx(blind - np.mean(by_hand(name, ANOTHER)), abs=3e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_instruction_following_difficulty(name):
    rows = cases(name)
    found = InstructionFollowingDifficulty(folder(name), batch_size=3)(batch(rows))
    expected = [
        np.mean(by_hand(name, row)) / np.mean(by_hand(name, row, losses=CHAT.losses_alone_by_hand)) for row in rows
    ]
    np.testing.assert_allclose(found["instruction_following_difficulty"], expected, rtol=1e-5)
    assert np.abs(np.array(expected) - 1).min() > 1e-5


class TestWhatCannotBeScored:
    def check(self, name, messages, images, why, caplog, **options):
        rows = {"messages": [ONE[0], messages], "images": [[PICTURES[0]], images]}
        found = ModelLoss(folder(name), **options)(rows)["model_loss"]
        assert found[0] == pytest.approx(np.sum(by_hand(name, ONE)), rel=1e-5)  # the others of its batch are scored
        assert np.isnan(found[1])
        if why is None:
            assert "cannot be scored" not in caplog.text
        else:
            assert "1 of 2 conversations cannot be scored (NaN). The first, row 1 of the batch: " in caplog.text
            assert why in caplog.text

    @pytest.mark.parametrize("messages", [None, [], ONE[0][:1], [*ONE[0][:1], {"role": "assistant", "content": None}]])
    @pytest.mark.parametrize("name", NAMES)
    def test_no_response_is_no_fault(self, name, messages, caplog):
        self.check(name, messages, [PICTURES[0]], None, caplog)

    @pytest.mark.parametrize(
        ("messages", "images", "why"),
        [
            (SEVERAL[0], PICTURES[:1], "images in the messages: 2, images of the row: 1"),
            (ANOTHER[0], None, "images in the messages: 1, images of the row: 0"),
            (ANOTHER[0], [None], "no image"),
            (ANOTHER[0], [{"bytes": b"no image", "path": None}], "cannot be decoded"),
            (ONE[0][1:], PICTURES[:1], "no message of a user is there to show the row's images (1)"),
            (
                [{"role": "user", "content": "<image> What?"}, {"role": "assistant", "content": "A <image>."}],
                PICTURES[:1],
                "the text has 3 placeholders of images, and 1 are needed",
            ),
        ],
    )
    @pytest.mark.parametrize("name", ["llava", "idefics3"])
    def test_images_that_do_not_fit(self, name, messages, images, why, caplog):
        self.check(name, messages, images, why, caplog)

    def test_what_the_template_refuses(self, caplog):
        messages = [ONE[0][0], {"role": "tool", "content": "42"}, ONE[0][1]]
        self.check("idefics3", messages, PICTURES[:1], "the chat template refuses it: no tools are called", caplog)

    def test_several_turns_without_a_template(self, caplog):
        why = "the model has no chat template, so it reads the message of a user and one response, and this one is"
        self.check("paligemma", LATER[0], [PICTURES[3]], why, caplog)
        caplog.clear()
        self.check("blip2", LATER[0], [PICTURES[3]], f"{why} system, user, assistant", caplog)

    def test_several_images_for_a_model_of_one(self, caplog):
        self.check("blip2", SEVERAL[0], PICTURES[:2], "the model reads one image, and the row has 2", caplog)

    @pytest.mark.parametrize("name", NAMES)
    def test_too_long(self, name, caplog):
        length = len(by_hand_ids(name, ONE))
        long = [ONE[0][0], {"role": "assistant", "content": "It runs in the park. " * 9}]
        self.check(name, long, PICTURES[:1], f"the longest that is read has {length}", caplog, max_length=length)

    def test_an_image_that_the_processor_refuses(self, caplog):
        thin = CHAT.Picture.new("RGB", (6000, 20))
        self.check("qwen2_vl", ONE[0], [thin], "aspect ratio", caplog)

    def test_a_template_that_writes_a_message_in_another_way(self, tmp_path, caplog):
        words = CHAT.AutoTokenizer.from_pretrained(folder("llama"))
        words.chat_template = (
            "{% for message in messages %}{% if message.role == 'user' or loop.last %}{{ message.content }}"
            "{% else %}(thought of){% endif %}\n{% endfor %}"
        )
        words.save_pretrained(tmp_path)
        rows = {"messages": [ONE[0], LATER[0][1:]]}
        found = ModelLoss(folder("llama"), str(tmp_path))(rows)["model_loss"]
        np.testing.assert_array_equal(np.isnan(found), [False, True])
        assert "the chat template writes message 1 in another way when more messages follow" in caplog.text

    def test_an_unknown_role(self, caplog):
        said = [{"role": "human", "content": "Hi."}]
        self.check("llava", said, [], "message 0 is of the role 'human'", caplog)

    @pytest.mark.parametrize("messages", [7, ["Hi."]])
    def test_what_is_no_conversation_is_an_error(self, messages):
        with pytest.raises(TypeError, match=r"`messages` in row 1 of the batch is an? .* `load_conversations`"):
            ModelLoss(folder("llava"))({"messages": [ONE[0], messages], "images": [[PICTURES[0]], None]})

    def test_addresses_are_not_fetched(self):
        rows = {"messages": [ONE[0]], "images": [["https://example.org/a.png"]]}
        with pytest.raises(ValueError, match="holds addresses"):
            ModelLoss(folder("llava"))(rows)

    def test_a_response_of_one_token_alone_has_no_difficulty(self):
        words = CHAT.AutoTokenizer.from_pretrained(folder("blip2"))
        assert len(words("A", add_special_tokens=False)["input_ids"]) == 1
        rows = {"messages": [[ONE[0][0], {"role": "assistant", "content": "A"}]], "images": [PICTURES[:1]]}
        found = InstructionFollowingDifficulty(folder("blip2"))(rows)
        assert np.isfinite(found["instruction_following_difficulty"]).all()  # after the beginning of text

    def test_a_row_that_shows_every_image_that_was_drawn(self):
        data = Dataset.from_dict({"images": [PICTURES[:2]]}, features=IMAGES)
        scorer = Grounding(folder("llava"), k=1).fit(data)
        rows = {"messages": [SEVERAL[0], ONE[0]], "images": [PICTURES[:2], PICTURES[:1]]}
        np.testing.assert_array_equal(np.isnan(scorer(rows)["grounding"]), [True, False])


def by_hand_ids(name, row):
    messages = row[2]
    if name == "llama":
        messages = [said(each["role"], each["content"][-1]["text"]) for each in messages]
    return CHAT.encoded_by_hand(name, messages, [PICTURES[number] for number in row[1]], [])[0]["input_ids"][0]


def test_images_of_one_column_or_many_on_disk(tmp_path):
    data = CHAT.dialogues()
    expected = score_values(add_scores(data, ModelLoss(folder("llava"))), "model_loss")
    data.save_to_disk(tmp_path)
    found = score_values(add_scores(Dataset.load_from_disk(tmp_path), ModelLoss(folder("llava"))), "model_loss")
    np.testing.assert_array_equal(found, expected)
    singles = data.map(lambda row: {"image": row["images"][0]}, remove_columns=["images"])
    singles = singles.cast_column("image", Image())
    found = score_values(add_scores(singles, ModelLoss(folder("llava"), image_column="image")), "model_loss")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_texts_between_images_are_looked_for_in_order():
    ids, marks = np.array([1, 9, 2, 3, 9, 2, 3, 4]), np.array([0, 0, 1, 1, 0, 2, 2, 2])
    row, places = Encoded("", ids, marks), np.array([9])
    found = np.array([1, 9, 9, 2, 3, 7, 9, 8, 2, 3, 4])
    assert expanded(row, places, found).tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 2, 2, 2]
    for wrong in ([1, 9, 9, 2, 5, 9, 2, 3, 4], [1, 9, 9, 2, 3, 9, 2, 3, 5], [5, 9, 2, 3, 9, 2, 3, 4], [2, 3, 4]):
        with pytest.raises(UnscorableError, match="other tokens than the tokenizer does"):
            expanded(row, places, np.array(wrong))


def test_a_changed_template_is_another_score(tmp_path):
    words = CHAT.AutoTokenizer.from_pretrained(folder("llama"))
    words.save_pretrained(tmp_path)
    before = ModelLoss(folder("llama"), str(tmp_path))
    words.chat_template = CHAT.CHATML.replace("You are helpful.", "You see.")
    words.save_pretrained(tmp_path)
    after = ModelLoss(folder("llama"), str(tmp_path))
    assert before.arguments()["template"] != after.arguments()["template"]


class TestMistakes:
    def test_arguments(self):
        with pytest.raises(ValueError, match="`turns` is 'second'"):
            ModelLoss(folder("llava"), turns="second")
        with pytest.raises(ValueError, match="`prompt` and `prompt_column` were both given"):
            ModelLoss(folder("llava"), prompt="What?", prompt_column="prompt")
        with pytest.raises(ValueError, match="`against` is 'all'"):
            Grounding(folder("llava"), against="all")

    def test_captioners_read_no_conversations(self):
        rows = {"image": [PICTURES[0]], "caption": ["a dog"]}
        with pytest.raises(ValueError, match=r"`prompt` was given, but .* which reads captions, not conversations"):
            ModelLoss(TINY.git(), prompt="What?")(rows)
        with pytest.raises(ValueError, match=r"`against='none'` was given, but .* no caption without an image"):
            Grounding(TINY.git(), against="none")(rows)
        with pytest.raises(ValueError, match=r"reads captions, not instructions. Name a chat model"):
            InstructionFollowingDifficulty(TINY.git())(rows)
        assert "turns" not in ModelLoss(TINY.git()).arguments()
        assert "against" not in Grounding(TINY.git(), k=1).arguments()

    def test_chat_models_read_no_regions(self):
        with pytest.raises(ValueError, match=r"reads an image as placeholder tokens .* not regions"):
            ModelLoss(folder("llava"), regions=TINY.region_archive())({"image_id": ["0"], "caption": ["a dog"]})

    def test_models_of_words_see_no_image(self):
        with pytest.raises(ValueError, match="reads words alone, and grounding compares images"):
            Grounding(folder("llama")).fit(CHAT.dialogues())

    def test_columns_that_are_not_there(self):
        with pytest.raises(ValueError, match="`messages` is not in the data"):
            add_scores(Dataset.from_dict({"text": ["a"]}), ModelLoss(folder("llama")))

    def test_encoders(self):
        config = T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
        text = T5ForConditionalGeneration(config).config.to_dict()
        vision = {"image_size": 16, "patch_size": 8, **CHAT.WIDTH}
        config = CHAT.Blip2Config(
            vision_config=vision,
            qformer_config={**CHAT.WIDTH, "encoder_hidden_size": 16, "vocab_size": 8},
            text_config={**text, "model_type": "t5", "decoder_start_token_id": 0},
            num_query_tokens=3,
            image_token_index=3,
        )
        processor = CHAT.AutoProcessor.from_pretrained(folder("blip2"))
        where = CHAT.saved("blip2-t5", CHAT.Blip2ForConditionalGeneration(config), processor)
        with pytest.raises(ValueError, match="whose encoder reads the conversation"):
            ModelLoss(where)(batch([ONE]))

    def test_slow_tokenizers(self, monkeypatch):
        monkeypatch.setattr(CHAT.PreTrainedTokenizerFast, "is_fast", property(lambda tokenizer: False))
        with pytest.raises(ValueError, match="has a slow tokenizer"):
            ModelLoss(folder("llama"))

    def test_templates_that_take_something_else(self, tmp_path):
        words = CHAT.AutoTokenizer.from_pretrained(folder("llama"))
        words.chat_template = "{% for message in messages %}{{ message.content[0].text + 1 }}{% endfor %}"
        words.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"cannot render the message of a user.* takes a text as `content`"):
            ModelLoss(folder("llama"), str(tmp_path))({"messages": [ONE[0]]})

    def test_models_that_see_what_they_predict(self):
        words = CHAT.tokenizer("<|im_start|>", "<|im_end|>", bos=None)
        where = CHAT.saved("bert", BertLMHeadModel(BertConfig(vocab_size=len(words), **CHAT.WIDTH)), words)
        with pytest.raises(ValueError, match="is no causal language model"):
            ModelLoss(where)({"messages": [ONE[0]]})
