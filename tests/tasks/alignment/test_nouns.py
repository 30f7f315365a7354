"""Which nouns of a caption are asked for, and the classes it is ranked within."""

from datasets import Dataset

from hf_curriculum.tasks.alignment import Ontology, caption_classes, noun_spans
from hf_curriculum.tasks.alignment.retrieval.score_captions import class_notes

ROWS = {
    "image_id": ["1", "1", "2", "3"],
    "caption": ["two puppies and a ball", "it barks", "a dog beside a ball", "a red ball"],
    "objects": [[{"name": "dog"}], [{"name": "dog"}], [{"name": "dog"}, {"name": "ball"}], [{"name": "ball"}]],
}


def test_nouns_of_the_ontology_alone():
    pairs = Dataset.from_dict(ROWS)
    ontology = Ontology.induce(pairs, min_pairs=1, min_instances=1, corrections=dict.fromkeys(["puppy", "dog"], "dog"))
    spans = noun_spans(ROWS["caption"], ontology)
    words = [[caption[slice(*span)] for span in own] for caption, own in zip(ROWS["caption"], spans, strict=True)]
    assert words == [["puppies", "ball"], [], ["dog", "ball"], ["ball"]]
    # The first image shows no ball, whatever its caption says.
    assert caption_classes(pairs, ontology) == [["dog"], [], ["dog", "ball"], ["ball"]]
    # Without objects, and where no image is annotated, the noun alone decides, which a note says.
    bare = pairs.remove_columns("objects")
    for unknown in (bare, bare.add_column("objects", [None] * 4, feature=pairs.features["objects"])):
        assert caption_classes(unknown, ontology)[0] == ["dog", "ball"]
        assert "their images may not show them" in class_notes(unknown)[0]
    assert class_notes(pairs) == ()


def test_all_nouns_without_an_ontology():
    found = noun_spans(["A dog's ball, a dog", "it is red"])
    assert found == [[(2, 5), (8, 12)], []]
