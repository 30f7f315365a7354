"""A noun and the class of objects that it was given."""

from __future__ import annotations

from dataclasses import dataclass

ENTITY = "entity"
"""The root: all examples, whatever they show."""


@dataclass(frozen=True)
class NounClass:
    """A noun of the captions, and the class of objects that it was given.

    Args:
        noun: the lemma.
        node: the class, None where a correction took the noun out.
        proposed: the class of highest PMI, None where none had enough pairs (a correction gave it one).
        pairs: pairs with detections whose caption has the noun.
        joint: those of them whose image shows the class.
        pmi: log p(noun, class) / (p(noun) p(class)), in nats; None without a pair.
        share: p(class | noun), `joint / pairs`.
        runner_up: the class of second highest PMI.
        commonest: the class that the images of most of its pairs show.

    `joint`, `pmi` and `share` are of `node`, or of `proposed` where there is no node.
    """

    noun: str
    node: str | None
    proposed: str | None
    pairs: int
    joint: int
    pmi: float | None
    share: float
    runner_up: str | None
    commonest: str | None

    @property
    def corrected(self) -> bool:
        """Whether a correction changed its class."""
        return self.node != self.proposed

    @property
    def shares_word(self) -> bool:
        """Whether noun and proposed class have a word in common, as "bear" and "teddy bear"."""
        words = (self.proposed or "").lower().replace("-", " ").split()
        return self.noun in words or self.noun == "".join(words)

    @property
    def doubt(self) -> float:
        """From 0, the class named in the noun itself, to 1: 1 − p(class | noun), and more if another is commoner."""
        if self.shares_word:
            return 0.0
        return (1 - self.share) * (0.5 if self.commonest in (None, self.proposed) else 1.0)

    @property
    def doubtful(self) -> bool:
        """Whether a reader should look: no common word, and another class is in more of its images, or it in few."""
        return not self.shares_word and (self.share < 0.5 or self.commonest not in (None, self.proposed))
