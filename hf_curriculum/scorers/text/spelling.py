"""Nouns in one form: the singular by spelling rules, or the lemma that WordNet has."""

from __future__ import annotations

from collections.abc import Callable

_PLURALS = """
buses/bus calves/calf canoes/canoe children/child cookies/cookie feet/foot geese/goose halves/half hooves/hoof
knives/knife leaves/leaf lives/life loaves/loaf men/man mice/mouse movies/movie people/person scarves/scarf
shelves/shelf shoes/shoe teeth/tooth thieves/thief toes/toe wives/wife wolves/wolf women/woman
"""
_IRREGULAR = dict(pair.split("/") for pair in _PLURALS.split())


def singular(word: str) -> str:
    """The singular of an English noun by spelling rules, to be passed as `normalise`.

    Args:
        word: one lower-case word.

    Example:
        >>> [singular(word) for word in ("dogs", "benches", "horses", "puppies", "glass", "children")]
        ['dog', 'bench', 'horse', 'puppy', 'glass', 'child']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
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
