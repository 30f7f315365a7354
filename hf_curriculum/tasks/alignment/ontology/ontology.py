"""An ontology: which nouns of captions mean which class of objects, and how many examples each class has."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_curriculum.files import read_sealed, resolved, write_sealed
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.ontology.induce import ENTITY, Corrections, NounClass, induced
from hf_curriculum.tasks.alignment.ontology.nouns import Lemmas, Mentions, Tagging, find_nouns
from hf_curriculum.tasks.alignment.ontology.triplets import make_triplets

_FORMAT = 1
_WIDTH = 119


@dataclass(frozen=True)
class Ontology:
    """TOnICS's ontology: classes of objects, and the nouns that mean them, below one root. `induce` makes one.

    Args:
        nouns: every noun that was given a class or that a correction names, by noun.
        sizes: class → |X(class)|: triplets whose image shows the class and whose noun means it.
        dropped: classes with fewer than the minimum → their triplets; their nouns are out.
        parents: node → the node above it, where there are levels between the classes and the root.
        counts: of the data it was induced from: `pairs`, `images`, `pairs_with_objects`, `images_with_objects`,
            `pairs_without_noun`, `triplets`.
        settings: the arguments of `induce`: `min_pairs`, `min_instances`, `min_confidence`, `tagger`, `lemmas`.
        corrections: noun → class or None, for corrections that changed something.
        objects: where the classes of images are, as given to `induce`; files keep a path or a column's name.
        tagger: finds nouns; None: one of the user's own, which a file does not hold.
        lemmas: maps nouns to one form; None and files as for `tagger`.

    Raises:
        ValueError: (of `load`) the file is no ontology, or of a later version.

    Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §3 and Appendix A.

    Example:
        >>> from datasets import Dataset
        >>> pairs = Dataset.from_dict({
        ...     "image_id": ["1", "2", "3", "4"], "caption": ["a dog", "two puppies", "a red ball", "a dog"],
        ...     "objects": [[{"name": "dog"}], [{"name": "dog"}], [{"name": "ball"}], [{"name": "dog"}]]})
        >>> ontology = Ontology.induce(pairs, min_pairs=1, min_instances=1)
        >>> print(ontology.tree())
        entity 4 → dog 3 (dog, puppy) · ball 1 (ball)
        >>> ontology.triplets(pairs)[1]["noun"]
        'puppy'
    """

    nouns: tuple[NounClass, ...]
    sizes: Mapping[str, int]
    dropped: Mapping[str, int] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    corrections: Mapping[str, str | None] = field(default_factory=dict)
    objects: Any = field(default=None, compare=False, repr=False)
    tagger: Tagging | None = field(default="pattern", compare=False, repr=False)
    lemmas: Lemmas | None = field(default="spelling", compare=False, repr=False)

    @classmethod
    @validate_arguments
    def induce(
        cls,
        pairs: Dataset,
        objects: Any = "objects",
        *,
        min_pairs: int = 20,
        min_instances: int = 5000,
        corrections: Corrections | None = None,
        tagger: Tagging = "pattern",
        lemmas: Lemmas = "spelling",
        parents: Mapping[str, str] | None = None,
        min_confidence: float = 0.0,
        num_proc: int | None = None,
    ) -> Ontology:
        """Maps each noun of the captions to the object class with which it has the highest PMI.

        PMI(n, o) = log p(n, o) / (p(n) p(o)), over the pairs whose image shows any object. A pair counts once for a
        noun of its caption and a class that its image shows. Equal PMI goes to the class with more pairs, then to the
        first by name. The result depends neither on the order of the rows nor on the number of processes.

        Args:
            pairs: one row per image-caption pair, with `image_id` and `caption`.
            objects: the classes that images show: a column of the pairs (lists of objects with `name`), a
                `RegionStore` or a file of regions. Or a mapping of image id → `Regions` or names, or a list of these
                as one source.
            min_pairs: a noun is mapped only to a class that it has this many pairs with.
            min_instances: classes with fewer triplets are left out, and counted.
            corrections: noun → class, or None to leave the noun out; a mapping, or a YAML or JSON file of one.
            tagger: finds nouns, see `NounCount`.
            lemmas: "spelling", "wordnet" or a function of one word.
            parents: node → the node above it, for levels between the classes and the root. A node above others has the
                examples of all of them.
            min_confidence: regions and objects with a lower `confidence` do not count.
            num_proc: processes that tag captions.

        Returns:
            The ontology.

        Raises:
            ValueError: an argument is out of range; no image has an object, no caption a noun, no noun is mapped. Or
                no class has `min_instances`, corrections name classes that no image shows, or `parents` form a circle.

        Source: Srinivasan, Ren & Thomason 2023 (TOnICS), Appendix A: 827 nouns to 653 classes, of which 244 with 5,000
        instances have 406 nouns. The minimum of joint pairs is ours.

        Example:
            >>> ontology = Ontology.induce(pairs, store, corrections={"man": "person"})  # doctest: +SKIP
        """
        for name, value in (("min_pairs", min_pairs), ("min_instances", min_instances)):
            if value < 1:
                raise ValueError(f"`{name}` is {value}. It is a number of examples, at least 1.")
        fields = induced(
            pairs, objects, min_pairs, min_instances, corrections, tagger, lemmas, parents, min_confidence, num_proc
        )
        settings = {
            "min_pairs": min_pairs,
            "min_instances": min_instances,
            "min_confidence": min_confidence,
            "tagger": _name(tagger),
            "lemmas": _name(lemmas),
        }
        return cls(**fields, settings=settings, objects=objects, tagger=tagger, lemmas=lemmas)

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """Class → the nouns that mean it, w(o) in the paper; the largest class first."""
        found: dict[str, list[str]] = {name: [] for name in self.sizes}
        for noun in sorted(self.nouns, key=lambda noun: (-noun.pairs, noun.noun)):
            if noun.node in found:
                found[noun.node].append(noun.noun)
        return {name: tuple(found[name]) for name in sorted(found, key=lambda name: (-self.sizes[name], name))}

    @property
    def nodes(self) -> dict[str, str]:
        """Noun → class, of the nouns that are selected."""
        return {noun.noun: noun.node for noun in self.nouns if noun.node in self.sizes}

    def path(self, name: str) -> tuple[str, ...]:
        """A class and the nodes above it, without the root."""
        found = [name]
        while found[-1] in self.parents:
            found.append(self.parents[found[-1]])
        return tuple(found)

    @property
    def masses(self) -> dict[str, int]:
        """Node → |X(node)|, of classes and of the nodes above them, whose examples are those of all below."""
        found = dict(self.sizes)
        for name, size in self.sizes.items():
            for above in self.path(name)[1:]:
                found[above] = found.get(above, 0) + size
        return found

    def tree(self, most: int | None = None) -> str:
        """The nodes as text, the largest first, with |X| and the nouns of each class.

        Args:
            most: children of a node that are written, the others counted; None: all.
        """
        masses, words = self.masses, self.words
        children: dict[str | None, list[str]] = {}  # None: the root, whose name a class may have too
        for name in masses:
            children.setdefault(self.parents.get(name), []).append(name)

        def lines(name: str | None, size: int, depth: int) -> list[str]:
            own = sorted(children.get(name, []), key=lambda child: (-masses[child], child))
            shown, inner = own[:most], [child for child in own[:most] if child in children]
            texts = [f"{child} {masses[child]:,}" + _listed(words.get(child, ())) for child in shown]
            texts += [f"… {len(own) - len(shown):,} more"] if len(shown) < len(own) else []
            wrapped = textwrap.wrap(
                f"{name or ENTITY} {size:,} → {' · '.join(text.replace(' ', _NO_BREAK) for text in texts)}",
                _WIDTH,
                initial_indent="  " * depth,
                subsequent_indent="  " * (depth + 1),
                break_long_words=False,
                break_on_hyphens=False,
            )
            below = [line for child in inner for line in lines(child, masses[child], depth + 1)]
            return [*(line.replace(_NO_BREAK, " ") for line in wrapped), *below]

        return "\n".join(lines(None, self.counts.get("triplets", sum(self.sizes.values())), 0))

    def review(self) -> tuple[NounClass, ...]:
        """The nouns as a reader should go through them: the doubtful first, then by share and number of pairs."""
        return tuple(sorted(self.nouns, key=lambda noun: (-noun.doubt, noun.noun)))

    @validate_arguments
    def triplets(self, pairs: Dataset, objects: Any = None, *, num_proc: int | None = None) -> Dataset:
        """One row per pair and selected noun of its caption, for `NodeSampling("node")` or any other curriculum.

        The rows are views of the pairs: only the new columns are written. `noun` is the lemma; `noun_start` and
        `noun_end` are the characters of the caption where it stands first. `node` is the noun's class where the image
        shows it, and null where it does not: such a row comes in random batches only. In an ontology of several levels
        `node` is a list: the class and the nodes above it. Pairs whose image shows no object, and captions without a
        selected noun, have no row; both are counted.

        Args:
            pairs: one row per image-caption pair, with `image_id` and `caption`.
            objects: the classes that images show, as in `induce`; by default the same. False: images are ignored (to
                evaluate on pairs without detections), and `node` is the noun's class.
            num_proc: processes that tag captions.

        Returns:
            The triplets, in the order of the pairs, the nouns of a caption as they stand in it.

        Raises:
            ValueError: it is not known where objects are; no caption has a selected noun; or no image shows one of the
                classes, as with an ontology of other data.

        Source: Srinivasan, Ren & Thomason 2023 (TOnICS), §4.1 and Appendix A: 5.8M triplets of 2.84M pairs.
        """
        objects = self.objects if objects is None else objects
        if objects is None:
            raise ValueError(
                "It is not known which objects the images show: the ontology was read from a file that does not say. "
                "Pass `objects=`, the store or column, or False to do without."
            )
        paths = {name: self.path(name) for name in self.sizes}
        least = self.settings.get("min_confidence", 0.0)
        return make_triplets(pairs, self.mentions(pairs, num_proc=num_proc), objects, self.nodes, paths, least)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping."""
        plain = {name: dict(getattr(self, name)) for name in _MAPPINGS}
        return {
            "format": _FORMAT,
            "nouns": [asdict(noun) for noun in self.nouns],
            **plain,
            "objects": _kept(self.objects),
            "tagger": self.tagger if isinstance(self.tagger, str) else None,
            "lemmas": self.lemmas if isinstance(self.lemmas, str) else None,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Ontology:
        """Reads a mapping of `to_dict`, without a tagger or lemmas of the user's own: see `load`.

        Raises:
            ValueError: no such mapping, a damaged one, or one of a later version.
        """
        if not isinstance(content, Mapping) or not {"format", "nouns", "sizes"} <= set(content):
            raise ValueError(f"This is no ontology: {str(content)[:80]!r}. `Ontology.save` writes one.")
        if content["format"] != _FORMAT:
            raise ValueError(
                f"The ontology is of format {content['format']}, and this version of hf_curriculum reads format "
                f"{_FORMAT}. Update hf_curriculum, or induce it again."
            )
        try:
            nouns = tuple(NounClass(**noun) for noun in content["nouns"])
        except TypeError as error:
            raise ValueError(
                f"The ontology's nouns cannot be read ({error}). `Ontology.save` writes them: induce it again."
            ) from error
        return cls(
            nouns,
            **{name: content.get(name, {}) for name in _MAPPINGS},
            objects=content.get("objects"),
            tagger=content.get("tagger"),
            lemmas=content.get("lemmas"),
        )

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        write_sealed(resolved(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path, *, tagger: Tagging | None = None, lemmas: Lemmas | None = None) -> Ontology:
        """Reads what `save` wrote.

        Args:
            path: the file.
            tagger: finds nouns; needed if it was the user's own, which the file does not hold.
            lemmas: maps nouns to one form; None and files as for `tagger`.

        Raises:
            FileNotFoundError: no such file.
            ValueError: it is no ontology, or was changed after it was written.
        """
        found = cls.from_dict(read_sealed(path, "`Ontology.save` writes one: induce it again."))
        return replace(found, tagger=tagger or found.tagger, lemmas=lemmas or found.lemmas)

    @validate_arguments
    def mentions(
        self, captions: Dataset, *, only: Collection[str] | None = None, num_proc: int | None = None
    ) -> Mentions:
        """The selected nouns of each caption, and their positions: see `find_nouns`.

        Args:
            captions: with a column `caption`.
            only: nouns to look for; by default those that are selected.
            num_proc: processes that tag captions.

        Raises:
            ValueError: the tagger or the lemmas were the user's own, and the ontology was read from a file, which
                lacks them.
        """
        if self.tagger is None or self.lemmas is None:
            name = "tagger" if self.tagger is None else "lemmas"
            raise ValueError(
                f"Its nouns were found with {name} {self.settings.get(name)!r}, which a file does not hold: others "
                f"would find other nouns. Pass it again: `Ontology.load(path, {name}=...)`."
            )
        return find_nouns(
            captions, self.tagger, self.lemmas, only=self.nodes if only is None else only, num_proc=num_proc
        )

    def __hash__(self) -> int:
        return hash((self.nouns, tuple(sorted(self.sizes.items()))))


_MAPPINGS = ("sizes", "dropped", "parents", "counts", "settings", "corrections")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def _listed(nouns: tuple[str, ...]) -> str:
    return f" ({', '.join(nouns)})" if nouns else ""


def _kept(objects: Any) -> Any:
    """What a file can say of where objects are: a column, a path, the path of a store; None for anything else."""
    if isinstance(objects, (list, tuple)):
        kept = [_kept(one) for one in objects]
        return None if None in kept else kept
    path = getattr(objects, "path", objects)
    return str(path) if isinstance(path, (str, Path)) else None


def _name(given: Any) -> str:
    """What a tagger or lemmas are called in the settings."""
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)
