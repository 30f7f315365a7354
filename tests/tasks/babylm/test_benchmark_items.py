import pytest

from hf_curriculum.tasks.babylm.run import _fill
from hf_curriculum.tasks.babylm.scorer import Item, accuracy, chosen, file_key


def test_the_first_of_equal_scores_is_chosen():
    assert chosen([-2.0, -1.0, -1.0]) == 1
    assert chosen([-1.0, -1.0]) == 0
    assert accuracy([[-1.0, -1.0], [-1.0, -1.0]], [0, 1]) == 0.5


def test_a_nan_is_never_the_best():
    with pytest.raises(ValueError, match="NaN cannot be compared"):
        chosen([float("nan"), -1.0])


@pytest.mark.parametrize(
    ("scores", "answers", "message"),
    [([], [], "scores of 0 items and 0 answers"), ([[0.0, 1.0]], [0, 0], "scores of 1 items and 2 answers")],
)
def test_accuracy_needs_an_answer_per_item(scores, answers, message):
    with pytest.raises(ValueError, match=message):
        accuracy(scores, answers)


@pytest.mark.parametrize(
    ("choices", "answer", "message"),
    [
        (("a dog",), 0, "compares at least two"),
        (("a dog", " \t"), 0, "Choice 1 of .* is empty"),
        (("a dog", "a cat"), 2, "answer=2 is none of the 2 choices"),
        (("a dog", "a cat"), -1, "answer=-1 is none of the 2 choices"),
    ],
)
def test_items_that_cannot_be_scored_are_refused(choices, answer, message):
    with pytest.raises(ValueError, match=message):
        Item(choices, answer=answer)


def test_the_first_and_the_last_choice_may_be_right():
    assert [Item(("a dog", "a cat", "a cow"), answer=right).answer for right in (0, 2)] == [0, 2]


def test_an_item_is_told_by_its_texts_and_its_images_file(tmp_path):
    picture = tmp_path / "y.png"
    picture.write_bytes(b"1234")
    assert Item(("a", "b"), "c", picture).key() == ["c", "a", "b", "y.png, 4 bytes"]
    assert Item(("a", "b"), image=lambda: None).key() == ["", "a", "b", None]
    assert file_key(str(picture)) == "y.png, 4 bytes"


def test_batches_are_filled_in_order_up_to_their_size():
    assert _fill([(4, 3), (1, 2), (2, 4), (0, 9), (3, 1)], 5) == [[4, 1], [2], [0], [3]]
    assert _fill([(0, 2), (1, 2), (2, 1)], 5) == [[0, 1, 2]]
    assert _fill([], 5) == []
