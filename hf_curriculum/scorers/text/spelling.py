"""Nouns in one form: the singular by spelling rules, or the lemma that WordNet has."""

from __future__ import annotations

from collections.abc import Callable

_PLURALS = """
calves/calf canvases/canvas children/child feet/foot geese/goose halves/half hooves/hoof knives/knife leaves/leaf
lenses/lens lives/life loaves/loaf men/man mice/mouse people/person scarves/scarf shelves/shelf teeth/tooth
thieves/thief wives/wife wolves/wolf women/woman
"""
_IRREGULAR = dict(pair.split("/") for pair in _PLURALS.split())
_COMPOUNDS = ("shelves", "wolves", "knives", "wives", "children", "women")
"""Plurals that others end in, as `bookshelves`."""
_NO_PLURALS = """
adidas atlas canvas christmas dallas gas kansas lens mercedes news pajamas pants pyjamas series species starbucks texas
thames vegas
"""
_KEPT = frozenset(_NO_PLURALS.split())
_PLURALS_IN_S = """
aches avalanches axes backaches brownies caches calories canoes cookies does foes genies headaches hippies hoes hoodies
horseshoes magpies movies mustaches neckties niches oboes pickaxes pixies prairies quiches rookies selfies shoes
smoothies snowshoes stomachaches tiptoes toes toothaches veggies zombies
alibis bikinis corgis emojis ferraris jacuzzis khakis kiwis martinis minis paninis rabbis safaris skis taxis tsunamis
yetis zucchinis
"""
_LOSE_S = frozenset(_PLURALS_IN_S.split())
"""Plurals that lose their -s alone where the rules below would take more, or nothing."""
_IN_USE = frozenset(("excuses", "fuses", "muses", "recluses", "ruses", "uses"))
"""Plurals in -uses whose singular is in -use; others are in -us, but for -auses and -ouses."""


def singular(word: str) -> str:
    """The singular of an English noun by spelling rules, to be passed as `normalise`.

    Args:
        word: one lower-case word.

    Example:
        >>> [singular(word) for word in ("dogs", "benches", "horses", "puppies", "glass", "children", "headaches")]
        ['dog', 'bench', 'horse', 'puppy', 'glass', 'child', 'headache']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _KEPT:
        return word
    if word in _LOSE_S:
        return word[:-1]
    if plural := next(filter(word.endswith, _COMPOUNDS), None):
        return word.removesuffix(plural) + _IRREGULAR[plural]
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("uses") and not word.endswith(("auses", "ouses")) and word not in _IN_USE:
        return word[:-2]
    if word.endswith(("sses", "xes", "ches", "shes", "oes")):
        return word[:-2]
    return word[:-1]


def wordnet_lemma(word: str) -> str:
    """The lemma of an English noun by NLTK's WordNet; a word that it lacks stays as it is.

    Args:
        word: one lower-case word.

    Raises:
        ImportError, LookupError: NLTK or its data is missing.

    Source: Srinivasan et al. 2023 (TOnICS), Appendix A: "lemmatized using NLTK".
    """
    try:
        from nltk.stem import WordNetLemmatizer
    except ImportError as error:
        raise ImportError(
            "Lemmas by WordNet need NLTK, which is not installed. Run `pip install 'hf-curriculum[text]'`, or leave "
            'them out: `lemmas="spelling"` needs nothing more.'
        ) from error
    try:
        return WordNetLemmatizer().lemmatize(word, "n")
    except LookupError as error:
        raise LookupError(
            "Lemmas by WordNet need its data, and NLTK's `wordnet` is not in its search path. Run "
            "`python -c \"import nltk; nltk.download('wordnet')\"` once, or set NLTK_DATA to a folder that has it; "
            '`lemmas="spelling"` needs no data.'
        ) from error


LEMMAS: dict[str, Callable[[str], str]] = {"spelling": singular, "wordnet": wordnet_lemma}
"""Ways to bring nouns into one form, by name."""
