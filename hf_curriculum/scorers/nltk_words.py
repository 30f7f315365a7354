"""NLTK's tokens, several times faster where a sentence is plain."""

from __future__ import annotations

from typing import Any

# what NLTK cuts in two although it holds no sign: "can not", "gon na"
_CUT = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")


class NltkWords:
    """Splits lower-case text as `nltk.word_tokenize` does.

    That function finds sentences first, with a list of abbreviations that has to be downloaded, then cuts each into
    words. Here the same sentence splitter runs without that list, so that of an abbreviation before more text ("mr.
    smith") the dot becomes a token of its own; any other token is the same. Most captions need neither step: with
    nothing but letters, digits, hyphens, commas and a last dot, white space and signs alone decide.

    Raises:
        ImportError: NLTK is not installed.

    Example:
        >>> NltkWords().tokens("a man's dog, and a hot-dog.")
        ['a', 'man', "'s", 'dog', ',', 'and', 'a', 'hot-dog', '.']
    """

    def __init__(self) -> None:
        try:
            from nltk.tokenize import NLTKWordTokenizer
            from nltk.tokenize.punkt import PunktSentenceTokenizer
        except ImportError as error:
            raise ImportError(
                "Words as NLTK cuts them need NLTK, which is not installed. Run `pip install 'hf-curriculum[text]'`."
            ) from error
        self._sentences: Any = PunktSentenceTokenizer()
        self._words: Any = NLTKWordTokenizer()

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text in lower case."""
        plain = plain_tokens(text)
        return self.all_tokens(text) if plain is None else plain

    def all_tokens(self, text: str) -> list[str]:
        """The same by NLTK alone, for any text."""
        return [word for sentence in self._sentences.tokenize(text) for word in self._words.tokenize(sentence)]


def plain_tokens(text: str) -> list[str] | None:
    """NLTK's tokens of a plain text in lower case; None for one that NLTK itself has to look at.

    Example:
        >>> plain_tokens("a dog, a cat ."), plain_tokens("a dog's cat")
        (['a', 'dog', ',', 'a', 'cat', '.'], None)
    """
    body = text.rstrip(" ")
    ends = body.endswith(".")
    if ends:
        body = body[:-1]
    letters = body.replace(" ", "")
    if not letters.isalnum():
        letters = body.replace(", ", "").replace(" ", "").replace("-", "")
        if not letters.isalnum() or "--" in body:
            return None
        body = body.replace(", ", " , ")
    if not letters.isascii() or any(word in letters for word in _CUT):
        return None
    tokens = body.split()
    if ends:
        tokens.append(".")
    return tokens
