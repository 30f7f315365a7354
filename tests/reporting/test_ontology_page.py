"""The page to review an ontology by."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from ten_sentences import induce, make_pairs

from hf_curriculum import make_scenes
from hf_curriculum.tasks.alignment.figures import ontology_sizes
from hf_curriculum.tasks.alignment.ontology import review as module
from hf_curriculum.tasks.alignment.ontology.ontology import Ontology
from hf_curriculum.tasks.alignment.ontology.review import ontology_report


@pytest.fixture
def plain_figure(monkeypatch):
    """A figure that takes no time to draw."""
    monkeypatch.setattr(module, "ontology_sizes", lambda ontology, theme: Figure(figsize=(1, 1)))


def text_of(page):
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())


def test_the_page_of_scenes_shows_images_of_doubtful_nouns(tmp_path, plain_figure):
    pairs = make_scenes(120, image_size=48)["train"]
    ontology = Ontology.induce(pairs, min_pairs=4, min_instances=4)
    doubtful = [found for found in ontology.review() if found.doubtful]
    assert doubtful
    page = ontology_report(ontology, pairs, "Scenes", nouns=2).write(tmp_path)
    text = text_of(page)
    assert f"entity {ontology.counts['triplets']:,} →" in text
    assert f"{doubtful[0].noun} → {doubtful[0].node}:" in text
    pictures = page.read_text(encoding="utf-8").count("data:image/jpeg")
    assert pictures == 3 * min(2, len(doubtful))
    assert (tmp_path / "figures" / "ontology_sizes.png").is_file()
    # The examples are the same whatever the order of the rows.
    again = ontology_report(ontology, pairs.shuffle(seed=2), "Scenes", nouns=2).write(tmp_path / "again")
    assert again.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_the_page_without_images(tmp_path, plain_figure):
    pairs = make_pairs()
    text = text_of(ontology_report(induce(pairs, min_pairs=2), pairs).write(tmp_path))
    assert "man → frisbee: 2 of 4 pairs; second person; most images show person" in text
    assert "two dogs and a man" in text
    assert "image cannot be read" not in text
    clean = induce(pairs, min_pairs=2, corrections={"man": "person", "puppy": None})
    assert "Doubtful nouns" not in text_of(ontology_report(clean, pairs).write(tmp_path / "clean"))
    blind = Ontology.from_dict({**clean.to_dict(), "objects": None})
    with pytest.raises(ValueError, match="It is not known which objects the images show"):
        ontology_report(blind, pairs)


def test_a_bar_per_class():
    figure = ontology_sizes(induce(min_pairs=2))
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [4, 4]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["dog (dog, puppy)", "frisbee (man, frisbee)"]
    texts = [text.get_text() for text in ontology_sizes(induce(min_pairs=2), most=1).findobj(Text)]
    assert "the largest 1 of 2 classes" in texts
    with pytest.raises(ValueError, match="The ontology has no class"):
        ontology_sizes(Ontology((), {}))


def test_objects_that_are_given_stand_for_those_that_are_not_known(plain_figure):
    pairs = make_pairs()
    clean = induce(pairs, min_pairs=2, corrections={"man": "person", "puppy": None})
    blind = Ontology.from_dict({**clean.to_dict(), "objects": None})
    for ontology, objects in ((blind, None), (clean, False), (blind, False)):
        with pytest.raises(ValueError, match="It is not known which objects the images show"):
            ontology_report(ontology, pairs, objects=objects)
    known, given = ontology_report(clean, pairs), ontology_report(blind, pairs, objects="objects")
    assert given.to_html() == known.to_html()


def test_eight_classes_of_an_image_are_named():
    def shown(count):
        numbers = {"images": np.array([1]), "classes": np.arange(count + 1), "offsets": np.array([0, 1, count + 1])}
        names = [str(at) for at in range(count + 1)]
        return module._shown(SimpleNamespace(names=names, **numbers), 0)

    assert shown(8) == "1, 2, 3, 4, 5, 6, 7, 8"
    assert shown(10) == "1, 2, 3, 4, 5, 6, 7, 8, … 2 more"
