"""BLEU, CIDEr and ROUGE-L of captions, by `pycocoevalcap`, without Java."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from hf_curriculum.evaluation.nouns import noun_recall

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

METRICS = ("bleu", "cider", "rouge")
"""What `caption_metrics` can compute."""

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
    \w[\w.]*@\w[\w.]*\w | @\w+ | \#[A-Za-z]\w* | </?[A-Za-z][^<>]*>    # addresses, #names, tags
    | \d+[ ]\d+/\d+ | \d+:\d\d(?=[ap]m\b)                              # 22 3/4, 5:54 of 5:54pm
    | n't | '(?:s|m|d|re|ve|ll|em|cause|til)\b | 'n\b'? | '\d\ds?\b    # 's of dog's, 'em, 'n', '80s
    | \b(?:can(?=not\b)|(?:gon|wan)(?=na\b)|got(?=ta\b)|(?:lem|gim)(?=me\b)|y'(?=all\b)) | 't(?=is\b|was\b)
    | \b(?:(?:{_ABBREVIATIONS})\.|(?-i:{_CAPITAL_ABBREVIATIONS})\.|ph\.d\.|no\.(?=\s*\d))(?!\w(?<!\d))
    | \b(?:[A-Za-z]\.){{2,}}(?![A-Za-z]) | \b[A-Za-z]\.(?![A-Za-z]|\s(?-i:{_SENTENCE_STARTS})\b)    # t.v., b.
    | [^\W_]+\.(?=,)                                                  # any word before a full stop and a comma
    | [^\W_]+(?:(?:(?<=\d)[,:.](?=\d)|(?<=[^\W\d_])[.'?!](?=[^\W\d_])|[-/_])[^\W_]+)*
    | (?<!\w)[-+.]\d[\d,.]*(?<=\d) | (?<=\w)[+.]\d+                    # -5, +1, .5
    | [:;]-?[()] | [()\[\]{{}}] | [*]+ | [#]+ | [_]+ | [&$%=~^<>|\\/+@°•™®©]
    """,
    re.VERBOSE | re.IGNORECASE,
)
_REPLACED = {"’": "'", "‘": "'", "&amp;": "&", "½": "1/2", "¼": "1/4", "¾": "3/4", "£": "#", "€": "$"}
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


def tokenize(caption: str) -> str:
    """Words in lower case without punctuation, "dog's" as "dog 's": what the scores are computed on.

    Tokens of the Penn Treebank tokenizer (Stanford CoreNLP 3.4.1), which the COCO evaluation runs in Java, punctuation
    marks dropped as there; brackets stay, as "-lrb-". On the 65,469 captions of COCO val2017 and Flickr8k the two
    differ three times: there the next caption of the file decides whether a last "K." keeps its full stop, here it
    always does. They also differ on web addresses, telephone numbers and some contractions ("who'da").

    Example:
        >>> tokenize("A man's dog isn't a black-and-white one, on St. Mary's Rd.")
        "a man 's dog is n't a black-and-white one on st. mary 's rd."
    """
    for found, written in _REPLACED.items():
        caption = caption.replace(found, written)
    tokens = _TOKEN.findall(_SPACED.sub(r" \1\2\3 ", caption))
    text = " ".join(token.replace(" ", "\u00a0") for token in tokens)  # 22 3/4 is one token there
    return re.sub(r"[()\[\]{}]", lambda bracket: _BRACKETS[bracket[0]], text).lower()


def caption_metrics(
    generated: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Corpus scores of generated captions against reference captions.

    Args:
        generated: one caption per image.
        references: the captions of each image, in the same order, any number of them.
        metrics: any of `METRICS`. `"bleu"` gives `bleu_1` to `bleu_4` (closest reference length), `"cider"` gives
            CIDEr-D (document frequencies from `references`, 0 to about 10), `"rouge"` gives `rouge_l` (beta = 1.2).

    Raises:
        ImportError: `pycocoevalcap` is not installed.
        ValueError: an unknown metric; no image; not one list of references per caption; an image without any word
            in its references.

    Warns:
        UserWarning: CIDEr over a single image, which is 0 by its definition: log(number of images) weighs it.

    Source: Papineni et al. (2002); Vedantam et al. (2015); Lin (2004), as in the COCO caption evaluation.

    Example:
        >>> caption_metrics(["a dog", "a cat"], [["a dog"], ["one cat"]], metrics=["rouge"])
        {'rouge_l': 0.75}
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ValueError(f"{unknown} in `metrics` is not known. There are {', '.join(METRICS)}; drop the others.")
    if len(generated) != len(references) or not len(generated):
        raise ValueError(
            f"There are {len(generated):,} captions and references for {len(references):,} images. The two are "
            "compared row by row. Pass one caption and a list of references for each image, in the same order."
        )
    hypotheses = {row: [tokenize(caption)] for row, caption in enumerate(generated)}
    truths = {row: [text for text in map(tokenize, given) if text] for row, given in enumerate(references)}
    bare = [row for row, texts in truths.items() if not texts]
    if bare:
        raise ValueError(
            f"{len(bare):,} of {len(truths):,} images have no word in their references (the first is row {bare[0]}). "
            "Nothing can be compared with them. Leave these images out."
        )
    if "cider" in metrics and len(truths) == 1:
        warnings.warn(
            "CIDEr over a single image is 0 by definition (words are weighed by log of the number of images over "
            "those that have them). Evaluate on more images, or leave `cider` out.",
            UserWarning,
            stacklevel=2,
        )
    scores: dict[str, float] = {}
    for name in metrics:
        scores |= _corpus_scores(name, truths, hypotheses)
    return scores


def caption_compute_metrics(
    tokenizer: PreTrainedTokenizerBase,
    *,
    references: Sequence[Sequence[str]] | None = None,
    gold_nouns: Sequence[Set[str]] | None = None,
    metrics: Sequence[str] = METRICS,
    normalise: Callable[[str], str] | None = None,
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for a trainer that generates while it evaluates (`predict_with_generate=True`).

    Args:
        tokenizer: turns ids into captions; -100 counts as padding.
        references: the captions of each evaluated row, in its order. By default each row's own labels are its only
            reference.
        gold_nouns: the nouns of each evaluated row; adds `noun_recall` (rows without nouns are left out).
        metrics: any of `METRICS`, or `()` for noun recall alone, which needs no further package.
        normalise: of `noun_recall`.

    Returns:
        A function from `EvalPrediction(predictions=ids [n, length], label_ids=ids [n, length])` to named scores.

    Raises:
        ValueError: nothing to compute; by the function, when `references` or `gold_nouns` are not one per row.

    Example:
        >>> compute = caption_compute_metrics(tokenizer, metrics=["cider"])  # doctest: +SKIP
    """
    if not metrics and gold_nouns is None:
        raise ValueError("`metrics` is empty and there are no `gold_nouns`: nothing would be computed. Pass either.")

    def decode(ids: np.ndarray) -> list[str]:
        kept = [row[row >= 0].tolist() for row in np.asarray(ids)]
        return tokenizer.batch_decode(kept, skip_special_tokens=True)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        generated = decode(prediction.predictions)
        scores: dict[str, float] = {}
        if metrics:
            truths = [[text] for text in decode(prediction.label_ids)] if references is None else references
            scores |= caption_metrics(generated, truths, metrics)
        if gold_nouns is not None:
            recalls = noun_recall(generated, gold_nouns, normalise=normalise)
            scores["noun_recall"] = float(np.nanmean(recalls)) if np.isfinite(recalls).any() else float("nan")
        return scores

    return compute


def _corpus_scores(metric: str, truths: dict[int, list[str]], hypotheses: dict[int, list[str]]) -> dict[str, float]:
    """What one metric of `pycocoevalcap` gives for all captions together."""
    try:
        if metric == "bleu":
            from pycocoevalcap.bleu.bleu import Bleu

            found, _ = Bleu(4).compute_score(truths, hypotheses, verbose=0)
            return {f"bleu_{n}": float(score) for n, score in enumerate(found, start=1)}
        if metric == "cider":
            from pycocoevalcap.cider.cider import Cider

            return {"cider": float(Cider().compute_score(truths, hypotheses)[0])}
        from pycocoevalcap.rouge.rouge import Rouge

        return {"rouge_l": float(Rouge().compute_score(truths, hypotheses)[0])}
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pycocoevalcap":
            raise
        raise ImportError(
            "BLEU, CIDEr and ROUGE-L are computed by `pycocoevalcap`, which is not installed. "
            'Run `pip install "hf-curriculum[captioning]"`, or ask for noun recall alone with `metrics=()`.'
        ) from error
