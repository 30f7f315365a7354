"""Captions as tokens of the Penn Treebank, as the COCO caption evaluation makes them."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from hf_curriculum.words import WORD, compose

_ABBREVIATIONS = (
    "jan feb mar apr jun jul aug sept? oct nov dec mon tues? wed thu(?:rs)? fri ala ariz calif colo conn ct dak fla "
    "ga ind kans? ky md mich minn mo mont neb nev okla penn tenn va vt wisc? wyo mr mrs ms drs? profs? sens? reps? "
    "atty lt col gen messrs govs? adm rev maj sgt cpl pvt capt ste? ave pres lieut hon brig comdr cmdr pfc spc supt "
    "det jr sr bros blvd rd esq inc cos? corp ltd plc bancorp dept bhd assn ph etc al seq vs alex wm jos cie cf treas "
    "ft mt sq est tel ext bldg univ natl intl"
).replace(" ", "|")
"""Words that keep their full stop, as in the Penn Treebank tokenizer."""
_CAPITAL_ABBREVIATIONS = "Az|Ark|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash"
_SENTENCE_STARTS = (
    "A About According Additionally After An As At But Her? Here However If In It Last Many Now Once One Other Our "
    "She Since So Some Such That The Their Then There These They This We What When While Yet You"
).replace(" ", "|")
_SPACED = regex.compile(r"(n't|'(?:s|m|d|re|ve|ll))\b|(?<=\w)('n)\b('?)", regex.IGNORECASE)
_MARKS = (
    r"\xa1\xa5-\xa9\xac-\xb8\xbf\xd7\xf7\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u05f4\u0606-\u060c\u061b"
    r"\u061e-\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964-\u0965\u0e3f\u0e4f\u1fbd\u2016-\u2017\u201a"
    r"\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u207a-\u207e\u208a-\u208e\u20a4\u2100-\u214f\u2190-"
    r"\u244a\u249c-\u24e9\u2500-\u2bff\u3001-\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-"
    r"\uff65\uffe0-\uffe1\uffe5-\uffe6"
)
"""Marks and symbols beyond ASCII that are tokens in Java; it drops all others, as the COCO evaluation drops ","."""
_HYPHEN = r"(?<!\p{M}\w{0,99})[-‐‑_](?!\w{0,99}\p{M})"  # not next to a word with marks, as in Java
_SLASH = r"(?<![^\W\d\p{ASCII}]\w{0,99})/(?!\w{0,99}[^\W\d\p{ASCII}])"  # only between words in ASCII, as there
_TOKEN = regex.compile(
    rf"""
    \w[\w.]{{0,99}}@\w[\w.]*\w | @\w+ | \#[A-Za-z]\w* | </?[A-Za-z][^<>\n]*>  # addresses, #names, tags
    | \d+[ ]\d+/\d+ | \d+:\d\d(?=[ap]m\b)                              # 22 3/4, 5:54 of 5:54pm
    | n't | '(?:s|m|d|re|ve|ll|em|cause|til)\b | 'n\b'? | '[0-9]{{2}}s?\b    # 's of dog's, 'em, 'n', '80s
    | \b(?:can(?=not\b)|(?:gon|wan)(?=na\b)|got(?=ta\b)|(?:lem|gim)(?=me\b)|y'(?=all\b)) | 't(?=is\b|was\b)
    | \b(?:(?:{_ABBREVIATIONS})\.|(?-i:{_CAPITAL_ABBREVIATIONS})\.|ph\.d\.|no\.(?=\s*\d))(?!\w(?<!\d))
    | \b(?:[A-Za-z]\.){{2,}}(?![A-Za-z]) | \b[A-Za-z]\.(?![A-Za-z]|\s(?-i:{_SENTENCE_STARTS})\b)    # t.v., b.
    | {WORD}\.(?=,)                                                   # any word before a full stop and a comma
    | {WORD}(?:(?:(?<=\d)[,:.](?=\d)|(?<=[^\W\d_])[.'?!](?=[^\W\d_])|{_HYPHEN}|{_SLASH}){WORD})*
    | (?<!\w)[-+.]\d[\d,.]*(?<=\d) | (?<=\w)[+.]\d+                    # -5, +1, .5
    | \n                                                              # between two captions
    | [:;]-?[()] | [()\[\]{{}}] | [*]+ | [#]+ | [_]+ | [&$%=~^<>|\\/+@{_MARKS}]
    """,
    regex.VERBOSE | regex.IGNORECASE,
)
_REPLACED = {"’": "'", "‘": "'", "&amp;": "&", "½": "1/2", "¼": "1/4", "¾": "3/4"}
_REPLACED |= {"£": "#", "€": "$", "¤": "$", "¢": " cents "}
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


def tokenize_all(captions: Sequence[str]) -> list[str]:
    """Words in lower case without punctuation, "dog's" as "dog 's": what the scores are computed on.

    Tokens of the Penn Treebank tokenizer (Stanford CoreNLP 3.4.1), which the COCO evaluation runs in Java, punctuation
    marks dropped as there; brackets stay, as "-lrb-". Equal to Java's on the 25,014 captions of COCO val2017, the
    40,455 of Flickr8k, and on captions in fifteen other scripts and languages. The tokenizers differ on:

    - web addresses, telephone numbers, some contractions ("who'da"), apostrophes in other languages ("dell'uomo", ’),
      and runs of marks, which Java keeps as a word ("a dog!!");
    - decomposed text, which is composed first (Unicode NFC), so that "é" is the same word however it was typed;
    - letters with marks in scripts that Java's tokenizer does not list, as Kannada, Odia, Sinhala, Khmer, Burmese,
      Tibetan, in part Gurmukhi, Malayalam and Japanese: it ends a word at each mark and drops it. It also divides a
      word with marks that begins with a digit or comes after a hyphen. Here words keep their marks;
    - zero-width joiners and superscripts, which end a word in Java and are part of it here, and emoji, which are
      dropped here.

    Words are separated at spaces in every language: separate Chinese, Japanese, Thai, Lao, Khmer and Burmese first.

    The COCO evaluation tokenizes a file with one caption per line, and there a last initial keeps its full stop unless
    the next line looks like a new sentence. So a caption's tokens may depend on the caption after it, here too: 3 of
    the 65,469 captions do. `tokenize` reads a caption by itself.

    Args:
        captions: in the order of the images, as the COCO evaluation writes them.

    Returns:
        The tokens of each caption, separated by a space. In a mixed number ("22 3/4", one token) the space is a
        no-break space.

    Raises:
        TypeError: a caption is not a string.

    Source: Chen et al. 2015, *Microsoft COCO Captions: Data Collection and Evaluation Server*, §3.1.

    Example:
        >>> tokenize_all(["A man's dog isn't a black-and-white one.", "It sat at 5th Ave S.", "A sign"])
        ["a man 's dog is n't a black-and-white one", 'it sat at 5th ave s', 'a sign']
    """
    if not captions:
        return []
    for row, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise TypeError(
                f"Caption {row} is {caption!r}, a {type(caption).__name__}. Only text has tokens. Pass strings, and "
                '"" for an image without a caption.'
            )
    text = compose("\n".join([" ".join(caption.split()) for caption in captions]))
    for found, written in _REPLACED.items():
        text = text.replace(found, written)
    tokens = _TOKEN.findall(_SPACED.sub(r" \1\2\3 ", text))
    text = " ".join([token.replace(" ", "\u00a0") for token in tokens])  # 22 3/4 is one token there
    text = regex.sub(r"[()\[\]{}]", lambda bracket: _BRACKETS[bracket[0]], text).lower()
    return [line.strip(" ") for line in text.split("\n")]


def tokenize(caption: str) -> str:
    """The tokens of one caption by itself, see `tokenize_all`.

    Args:
        caption: any text; line breaks count as spaces.

    Raises:
        TypeError: `caption` is not a string.

    Example:
        >>> tokenize("A man's dog isn't a black-and-white one, on St. Mary's Rd.")
        "a man 's dog is n't a black-and-white one on st. mary 's rd."
    """
    return tokenize_all([caption])[0]
