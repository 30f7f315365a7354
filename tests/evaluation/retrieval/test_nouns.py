"""Which nouns of a caption are asked for, and the classes it is ranked within."""

from datasets import Dataset

from hf_curriculum import Ontology
from hf_curriculum.evaluation.retrieval import caption_classes, noun_spans

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
    # Without objects the noun alone decides.
    assert caption_classes(pairs.remove_columns("objects"), ontology)[0] == ["dog", "ball"]


def test_all_nouns_without_an_ontology():
    found = noun_spans(["A dog's ball, a dog", "it is red"])
    assert found == [[(2, 5), (8, 12)], []]
