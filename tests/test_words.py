"""What a word is, in any script, and what passes for one."""

import re
import unicodedata

import pytest
from transformers import AutoTokenizer

from hf_curriculum import CaptionLength, NounCount, WordRarity
from hf_curriculum.data.tokenizer import train_word_tokenizer, train_wordpiece
from hf_curriculum.evaluation.nouns import noun_recall
from hf_curriculum.scorers.alignment.clip import vocabulary_of
from hf_curriculum.scorers.text.taggers import tokenize_sentence
from hf_curriculum.tasks.captioning.metrics.metrics import caption_metrics
from hf_curriculum.words import joined_words_of, warn_about_words, words_of

SENTENCES = {
    "Hindi": "एक कुत्ता दौड़ रहा है",
    "Thai, separated": "สุนัข วิ่ง บน หญ้า",
    "Arabic with vowels": "كَلْبٌ يَجْرِي فِي الحَدِيقَةِ",
    "Hebrew with points": "כֶּלֶב רָץ בַּגַּן",
    "Persian with joiners": "کتاب‌ها را می‌خواهم",
    "Vietnamese": "một con chó chạy",
    "French": "un café près de là",
    "Bengali": "একটি কুকুর দৌড়াচ্ছে",
    "Tamil": "ஒரு நாய் ஓடுகிறது",
    "Khmer, separated": "ឆ្កែ កំពុង រត់",
    "Kannada": "ಒಂದು ನಾಯಿ ಓಡುತ್ತಿದೆ",
    "Korean": "개가 달리고 있다",
    "Russian with stress": "соба́ка бежи́т по траве́",
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("language", SENTENCES)
def test_a_word_is_what_stands_between_spaces(language, form):
    composed = unicodedata.normalize("NFC", SENTENCES[language])
    sentence, words = unicodedata.normalize(form, SENTENCES[language]), composed.split()
    assert words_of(f"«{sentence}»!") == joined_words_of(f"({sentence}).") == words
    assert CaptionLength("regex")({"caption": [sentence]})["caption_length"] == len(words)
    assert tokenize_sentence(sentence) == words
    assert vocabulary_of([sentence]) == set(words)
    assert noun_recall([sentence], [{composed.split()[0]}]) == 1
    rarity = WordRarity().fit_counts({words[0]: 9, "x": 1})
    assert rarity({"caption": [sentence.split()[0]]})["word_rarity"] < rarity({"caption": ["x"]})["word_rarity"]


def test_a_noun_is_not_found_in_the_word_of_another_gender():
    assert noun_recall(["एक कुत्ती"], [{"कुत्ता"}]) == 0


ENGLISH = "The dog's T-shirt, 3.5 m² and ½ a x_y: it isn't 10:30 in Zürich… été №5 ①"


def test_words_of_english_are_those_of_the_standard_library():
    assert words_of(ENGLISH) == re.findall(r"[^\W_]+", ENGLISH)
    assert joined_words_of(ENGLISH) == re.findall(r"\w+(?:['’\-]\w+)*", ENGLISH)


def test_marks_of_emoji_and_joiners_between_them_are_no_words():
    assert words_of("a cat ❤️ and 👨\u200d👩\u200d👧 1️⃣") == ["a", "cat", "and", "1️⃣"]


def test_another_gender_is_another_sentence():
    found = caption_metrics(["एक कुत्ता दौड़ रहा है", "दो औरतें"], [["एक कुत्ती दौड़ रही है"], ["दो औरत"]], ["bleu"])
    assert found["bleu_1"] == pytest.approx(4 / 7)  # एक, दौड़, है and दो, of seven words


def test_decomposed_and_composed_text_are_the_same_words():
    composed = ["un café près d'une forêt", "một con chó chạy"]
    decomposed = [unicodedata.normalize("NFD", text) for text in composed]
    assert caption_metrics(decomposed, [[text] for text in composed], ["rouge"])["rouge_l"] == 1
    words = train_word_tokenizer(composed, 1)
    assert words(decomposed)["input_ids"] == words(composed)["input_ids"]
    assert words.unk_token_id not in words(decomposed[0])["input_ids"]


@pytest.mark.parametrize(
    ("texts", "warned"),
    [
        (
            ["一只狗在草地上奔跑", "两个男人在打篮球"],
            "2 of the first 2 texts, such as '一只狗在草地上奔跑', are in a lang",
        ),
        (["一只狗在草地上奔跑", *["a dog"] * 98], "1 of the first 99 texts, such as '一只狗在草地上奔跑'"),
        (["一只狗在草地上奔跑", *["a dog"] * 99], ""),
        (["一 只 狗 在 草地 上 奔跑", "两 个 男人 在 打 篮球"], ""),
        (["犬が公園を走っている。"], "language without spaces"),
        (["犬 が 公園 を 走って いる", "赤い 車 が 通り に 止まって いる"], ""),
        (["สุนัขวิ่งบนหญ้า"], "language without spaces"),
        (["ผู้ชาย กำลัง ขี่ จักรยาน บน ถนน"], ""),
        (["ឆ្កែកំពុងរត់នៅលើស្មៅ"], "language without spaces"),
        (["ໝາກຳລັງແລ່ນຢູ່ເທິງຫຍ້າ"], "language without spaces"),
        (["ခွေးတစ်ကောင်ပြေးနေသည်"], "language without spaces"),
        (["개가 달리고 있다", *SENTENCES.values()], ""),
        (["a sign that says 一只狗在草地上奔跑", "a dog", "a cat", "a cow"], ""),
        (["Tom &amp; Jerry", "a dog"], "of the first 2 texts 1 hold HTML entities ('Tom &amp; Jerry')"),
        (["denise%27s+peanut+chicken"], "1 hold %-escapes"),
        (["see https://example.com/a.jpg", "www.example.com"], "2 hold addresses"),
        (["DSC01234", "IMG_0042.JPG", "a photo.png"], "2 hold names of files ('DSC01234')"),
        (["Q&A at AT&T; 50% off 100%", "the file.txt of Mr. Img", "dsc"], ""),
    ],
)
def test_what_passes_for_words_is_warned_of(texts, warned, caplog):
    warn_about_words(texts, "It")
    assert warned in caplog.text
    assert bool(warned) == bool(caplog.records)


def test_scorers_and_metrics_warn_once(caplog):
    for scorer, words in ((CaptionLength(), "一只狗在草地上奔跑"), (NounCount(), "a Tom &amp; Jerry dog")):
        for _ in range(2):
            scorer({"caption": [words] * 5})
        (record,) = caplog.records
        assert record.message.startswith(type(scorer).__name__)
        caplog.clear()
    caption_metrics(["一只狗在草地上奔跑"] * 2, [["一只狗在草地上奔跑"], ["两个男人在打篮球"]], ["rouge"])
    assert "The evaluation of captions separates words at spaces" in caplog.text


def test_lower_case_that_removes_vowels_is_warned_of(caplog):
    hindi = [SENTENCES["Hindi"]] * 2
    train_wordpiece(hindi, 60)
    assert "lose marks: lowercase=True removes accents" in caplog.text
    caplog.clear()
    words = train_wordpiece(hindi, 60, lowercase=False)
    assert words.decode(words(hindi[0])["input_ids"], skip_special_tokens=True) == hindi[0]
    train_wordpiece([SENTENCES["French"], SENTENCES["Vietnamese"]] * 2, 80)
    assert caplog.text == ""


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("ma má mà mả mã mạ", "6 different words of the text become 1, such as 'ma', 'má', 'mà', 'mả', 'mã', which"),
        ("Мой мои ёлка", "2 different words of the text become 1, such as 'мои', 'мой', which all become 'мои'"),
        ("das ist schon Schön", "2 different words of the text become 1, such as 'schon', 'schön'"),
        ("犬がいる", "1 words, such as '犬がいる', lose marks"),
        ("the Café and the résumé ❤️ of a café", ""),
        ("한국어 개가", ""),
    ],
)
def test_different_words_that_become_one_are_counted(text, warned, form, caplog):
    lines = [unicodedata.normalize(form, text)]
    train_wordpiece(lines, 80, min_frequency=1)
    assert warned in unicodedata.normalize("NFC", caplog.text)
    assert bool(warned) == bool(caplog.records)
    caplog.clear()
    cased = train_wordpiece(lines, 80, min_frequency=1, lowercase=False)
    assert not caplog.records
    assert len({tuple(cased(word).input_ids) for word in text.split()}) == len(set(text.split()))


@pytest.mark.parametrize("lowercase", [True, False])
def test_korean_is_written_as_it_was_read(lowercase, tmp_path):
    text = "한국어 개가"
    train_wordpiece([text], 60, lowercase=lowercase).save_pretrained(tmp_path)
    words = AutoTokenizer.from_pretrained(tmp_path)
    for form in ("NFC", "NFD"):
        ids = words(unicodedata.normalize(form, text)).input_ids
        assert words.unk_token_id not in ids
        assert words.decode(ids, skip_special_tokens=True) == text
