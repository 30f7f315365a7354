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
        namesake: the class that is called like the noun, or ends in it.

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
    namesake: str | None = None

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
    def weak(self) -> bool:
        """Whether class and noun are together less than e times as often as by chance: PMI below 1."""
        return self.pmi is None or self.pmi < 1

    @property
    def doubtful(self) -> bool:
        """Whether a reader should look.

        The class shares no word with the noun; and it is in few of the noun's images, or another class is in more of
        them or has the noun's name, or it is hardly more frequent there than elsewhere.
        """
        if self.shares_word:
            return False
        other = self.commonest != self.proposed or self.namesake not in (None, self.proposed)
        return other or self.share < 0.5 or self.weak

    @property
    def doubt(self) -> float:
        """What the review sorts by: 1 − (joint / (pairs + 2)), so that few pairs say little; + 1 if `doubtful`."""
        return self.doubtful + 1 - self.joint / (self.pairs + 2)
