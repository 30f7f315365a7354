"""Tokens of the Penn Treebank, as Stanford CoreNLP 3.4.1 makes them in Java."""

import csv
import gzip
import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest

from hf_curriculum.tasks.captioning.metrics.tokens import tokenize, tokenize_all


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A man's dog isn’t here.", "a man 's dog is n't here"),
        ("a black-and-white, 1,000 year-old cat!", "a black-and-white 1,000 year-old cat"),
        ('"quoted" (and) [bracketed]', "quoted -lrb- and -rrb- -lsb- bracketed -rsb-"),
        ("They're  two\n\tgirls'", "they 're two girls"),
        ("Ein großer Bär", "ein großer bär"),
        ("...", ""),
    ],
)
def test_tokens(caption, tokens):
    assert tokenize(caption) == tokens


PENN_TREEBANK = [  # as Stanford CoreNLP 3.4.1 writes them, lower case, punctuation dropped
    (
        "A plastic plate with beans,quiche, apples and 1,000 peas",
        "a plastic plate with beans quiche apples and 1,000 peas",
    ),
    ("A cross road of Furnace St. and Crapo St.", "a cross road of furnace st. and crapo st."),
    ("W. Centre st, KY. in Wash. or a wash.", "w. centre st ky. in wash. or a wash"),
    ("A flat T.V. and a U.S.A flag at 10 p.m.", "a flat t.v. and a u.s.a flag at 10 p.m."),
    ("A person I. A hood, Miami U. pushes, plan b. now", "a person i a hood miami u. pushes plan b. now"),
    ("a huge clock at 5:54pm, not 5:54 or 6pm", "a huge clock at 5:54 pm not 5:54 or 6pm"),
    ("at&t & co; 50% of $5.50 = #2 */ a\\b", "at & t & co 50 % of $ 5.50 = # 2 * / a \\ b"),
    ("£5, €5 &amp; ½", "# 5 $ 5 & 1/2"),
    ("22 3/4 street and 3rd", "22\u00a03/4 street and 3rd"),
    ("they cannot but can not, gonna wanna", "they can not but can not gon na wan na"),
    ("slip 'n' slide, rock'n'roll, mac'n cheese", "slip 'n' slide rock 'n' roll mac 'n cheese"),
    ("the 5 o'clock hors d'oeuvre of Ho'ohu, y'all", "the 5 o'clock hors d'oeuvre of ho'ohu y' all"),
    ("the '80s of 'em, 'tis 1980's", "the '80s of 'em 't is 1980 's"),
    ("a ( b { c } ) on stairs.] with", "a -lrb- b -lcb- c -rcb- -rrb- on stairs -rsb- with"),
    ("an elephant/ and/or 24/7, a dog -- cat – e-mail", "an elephant / and/or 24/7 a dog cat e-mail"),
    ("no. 5 of no. dogs, dog., cat", "no. 5 of no dogs dog. cat"),
    ("dog_cat dog:cat 3:4 dog.The 1.5.6 .5 5.dog -5 1+1", "dog_cat dog cat 3:4 dog.the 1.5.6 .5 5 dog -5 1 +1"),
]


@pytest.mark.parametrize(("caption", "tokens"), PENN_TREEBANK)
def test_tokens_of_the_penn_treebank(caption, tokens):
    assert tokenize(caption) == tokens


OTHER_SCRIPTS = [  # as Stanford CoreNLP writes them, marks of other scripts included
    ("एक कुत्ता दौड़ रहा है। दो औरतें, हँसती हुई!", "एक कुत्ता दौड़ रहा है । दो औरतें हँसती हुई"),
    ("लड़के ने ४२/४२ किताबें पढ़ीं - ज़मीन पर", "लड़के ने ४२/४२ किताबें पढ़ीं ज़मीन पर"),
    ("कुत्रा-कुत्रा धावत आहे", "कुत्रा कुत्रा धावत आहे"),
    ("สุนัขวิ่ง บนหญ้า ผู้ชาย-เด็ก ขี่ จักรยาน ๒ คัน", "สุนัขวิ่ง บนหญ้า ผู้ชาย เด็ก ขี่ จักรยาน ๒ คัน"),
    ("كَلْبٌ يَجْرِي فِي الحَدِيقَةِ، رَجُلٌ وامْرَأَةٌ؟ ٣٥", "كَلْبٌ يَجْرِي فِي الحَدِيقَةِ ، رَجُلٌ وامْرَأَةٌ ؟ ٣٥"),
    ("ایک کتا دوڑ رہا ہے۔", "ایک کتا دوڑ رہا ہے ۔"),
    ("שָׁלוֹם, כֶּלֶב רָץ בַּגַּן; כלב־ים", "שָׁלוֹם כֶּלֶב רָץ בַּגַּן כלב ־ ים"),
    ("Một con chó chạy trên cỏ; người đàn ông", "một con chó chạy trên cỏ người đàn ông"),
    ("Un café près d'une forêt, l'été/été où ça «naïf»", "un café près d'une forêt l'été / été où ça naïf"),
    ("একটি কুকুর দৌড়াচ্ছে। দুটি মেয়ে ক্ষেতে", "একটি কুকুর দৌড়াচ্ছে । দুটি মেয়ে ক্ষেতে"),
    ("ஒரு நாய் ஓடுகிறது, இரண்டு பெண்கள்.", "ஒரு நாய் ஓடுகிறது இரண்டு பெண்கள்"),
    ("ఒక కుక్క పరుగెత్తుతోంది", "ఒక కుక్క పరుగెత్తుతోంది"),
    ("એક કૂતરો દોડે છે", "એક કૂતરો દોડે છે"),
    ("ໝາ ກຳລັງ ແລ່ນ", "ໝາ ກຳລັງ ແລ່ນ"),
    ("개가 달리고 있다. 두 여자가 (웃고) 있다", "개가 달리고 있다 두 여자가 -lrb- 웃고 -rrb- 있다"),
    ("Соба́ка бежи́т по траве́ — два ма́льчика", "соба́ка бежи́т по траве́ два ма́льчика"),
    ("Ένας σκύλος τρέχει", "ένας σκύλος τρέχει"),
    ("Žluťoučký kůň a pes–kočka", "žluťoučký kůň a pes kočka"),
    ("一只狗在草地上奔跑。 两个 人、 猫", "一只狗在草地上奔跑 。 两个 人 、 猫"),
    ("犬が走っている。ラーメン、ヴァイオリン！", "犬が走っている 。 ラーメン 、 ヴァイオリン ！"),
    ("5¢ → ♥ « ¿qué?", "5 cents → ♥ ¿ qué"),
]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(("caption", "tokens"), OTHER_SCRIPTS)
def test_tokens_of_other_scripts_keep_their_marks(caption, tokens, form):
    assert tokenize(unicodedata.normalize(form, caption)) == unicodedata.normalize("NFC", tokens)


@pytest.mark.parametrize(
    ("caption", "tokens", "java"),
    [
        ("ಒಂದು ನಾಯಿ", "ಒಂದು ನಾಯಿ", "ಒ ದ ನ ಯ"),
        ("می‌خواهم", "می‌خواهم", "می خواهم"),
        ("२टि र-कुत्र", "२टि र कुत्र", "२ट ि र-क ुत्र"),
        ("5 m² 👨", "5 m²", "5 m ²"),
    ],
)
def test_tokens_that_differ_from_javas_keep_whole_words(caption, tokens, java):
    assert tokenize(caption) == tokens != java


BY_THE_NEXT_LINE = [  # a last initial keeps its full stop, unless the next line looks like a new sentence
    ("A light over a street with a sign that reads K.", "a light over a street with a sign that reads k"),
    ("An intersection of S Lane St. and 12th Ave S.", "an intersection of s lane st. and 12th ave s."),
    ("a sign of 23 3/4 St and 8th Ave/CTH D.", "a sign of 23\u00a03/4 st and 8th ave/cth d"),
    ("The pig is <b", "the pig is < b"),
    ("in> front of a sign", "in > front of a sign"),
    ("", ""),
    ("a line\nbreak\u2028in  a caption\r\n", "a line break in a caption"),
    ("No.", "no."),
    ("5 dogs at 12th Ave S.", "5 dogs at 12th ave s."),
]


def test_the_next_caption_decides_about_a_last_initial():
    assert tokenize_all([caption for caption, _ in BY_THE_NEXT_LINE]) == [tokens for _, tokens in BY_THE_NEXT_LINE]
    assert tokenize("that reads K.") == "that reads k."
    assert tokenize_all([]) == []


def test_a_caption_is_text():
    with pytest.raises(TypeError, match=r"Caption 1 is None, a NoneType\. Only text has tokens"):
        tokenize_all(["a dog", None])
    with pytest.raises(TypeError, match="Caption 0 is 3, a int"):
        tokenize(3)


def real_captions(name):
    folder = os.environ.get("HF_CURRICULUM_TEST_DATA")
    if not folder:
        pytest.skip("needs real data: set HF_CURRICULUM_TEST_DATA")
    if name == "flickr8k":
        file = Path(folder) / "flickr8k" / "captions_all_8091.csv.gz"
        with gzip.open(file, "rt", encoding="utf-8", newline="") as stream:
            return [row["caption"] for row in csv.DictReader(stream)]
    with gzip.open(Path(folder) / "coco_captions_val2017" / "captions_val2017.json.gz", "rt") as stream:
        return [row["caption"] for row in json.load(stream)["annotations"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("recorded", 47), ("coco", 25_014), ("flickr8k", 40_455)])
def test_tokens_are_those_of_java(name, number, tmp_path):
    """The reference itself, where Java is installed: all captions in one file, as the COCO evaluation runs it."""
    reference = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    if not shutil.which("java"):
        pytest.skip("needs Java")
    recorded = [
        unicodedata.normalize("NFC", caption) for caption, _ in [*PENN_TREEBANK, *OTHER_SCRIPTS, *BY_THE_NEXT_LINE]
    ]
    captions = recorded if name == "recorded" else real_captions(name)
    assert len(captions) == number
    (tmp_path / "captions.txt").write_text("\n".join(" ".join(one.split()) for one in captions), "utf-8")
    jar = Path(reference.__file__).with_name(reference.STANFORD_CORENLP_3_4_1_JAR)
    options = ["-preserveLines", "-lowerCase", "-encoding", "utf-8", "captions.txt"]
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", *options]
    lines = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True).stdout.decode().split("\n")
    expected = [
        " ".join(word for word in line.rstrip().split(" ") if word not in reference.PUNCTUATIONS) for line in lines
    ]
    differ = [row for row, tokens in enumerate(tokenize_all(captions)) if tokens != expected[row]]
    assert [(captions[row], expected[row]) for row in differ] == []
