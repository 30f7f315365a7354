from __future__ import annotations

import pickle
import types

import numpy as np
import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher

from hf_curriculum import Scorer, add_scores
from hf_curriculum.scorers.base import installed_versions


class Letters(Scorer):
    columns, name, easy = ("caption",), "letters", "low"

    def __init__(self, factor: float = 1.0, name: str = "letters") -> None:
        self.factor, self.name = factor, name

    def score(self, batch, rank):
        return [self.factor * len(text) for text in batch["caption"]]


class Two(Letters):
    @property
    def outputs(self):
        return {"letters": "low", "spaces": "high"}

    def score(self, batch, rank):
        texts = batch["caption"]
        return {"letters": [len(text) for text in texts], "spaces": [text.count(" ") for text in texts]}


class AboveMean(Letters):
    fitted_attributes = ("mean_",)

    def fit(self, dataset):
        self.mean_ = float(np.mean([len(text) for text in dataset["caption"]]))
        return self

    def score(self, batch, rank):
        return [len(text) - self.mean_ for text in batch["caption"]]


class WithModel(Letters):
    def load(self, device):
        self.loads = getattr(self, "loads", 0) + 1
        return lambda text: len(text)

    def score(self, batch, rank):
        return [self.loaded(rank)(text) for text in batch["caption"]]


class Broken(Letters):
    def score(self, batch, rank):
        return self.factor


BATCH = {"caption": ["ab", "abc d"]}


def test_one_float32_per_row():
    scores = Letters(2)(BATCH)
    assert list(scores) == ["letters"]
    assert scores["letters"].dtype == np.float32
    assert scores["letters"].tolist() == [4.0, 10.0]
    assert Letters()({"caption": []})["letters"].shape == (0,)


def test_none_in_the_scores_is_nan():
    class Half(Letters):
        def score(self, batch, rank):
            return [None, 1]

    np.testing.assert_array_equal(Half()(BATCH)["letters"], np.float32([np.nan, 1]))


def test_a_scorer_of_several_columns():
    scores = Two()(BATCH)
    assert {name: values.tolist() for name, values in scores.items()} == {"letters": [2, 5], "spaces": [0, 1]}
    assert Two().describe("spaces").easy == "high"
    assert Two().describe("letters").easy == "low"


def test_it_is_a_map_transform():
    data = Dataset.from_dict(BATCH)
    assert data.map(Letters(), batched=True)["letters"][:] == [2.0, 5.0]
    assert [row["letters"] for row in data.to_iterable_dataset().map(Letters(), batched=True)] == [2.0, 5.0]


@pytest.mark.parametrize("fmt", ["numpy", "torch"])
def test_formatted_batches_are_read_too(fmt):
    data = Dataset.from_dict(BATCH).with_format(fmt)
    scored = data.map(Letters(), batched=True).with_format(None)
    assert scored["letters"][:] == [2.0, 5.0]


def test_a_single_row_is_an_error_and_no_score_of_its_characters():
    with pytest.raises(TypeError, match="given a single row: `caption` is a str"):
        Dataset.from_dict(BATCH).map(Letters())
    with pytest.raises(TypeError, match="given a single row: `caption` is a NoneType"):
        Letters()({"caption": None})


def test_other_wrong_batches():
    with pytest.raises(TypeError, match="Letters was given a list"):
        Letters()(["ab"])
    with pytest.raises(ValueError, match=r"`caption` is not in the data.*Letters reads `caption`"):
        Letters()({"text": ["ab"]})


@pytest.mark.parametrize("returned", [[1.0], [[1.0], [2.0]], 1.0, {"other": [1.0, 2.0]}])
def test_anything_but_one_number_per_row_is_an_error(returned):
    with pytest.raises(ValueError, match=r"Broken returned .* for 2 rows"):
        Broken(returned)(BATCH)


def test_unfitted_use_is_an_error_and_fitted_state_travels():
    scorer = AboveMean()
    with pytest.raises(RuntimeError, match="AboveMean was used before `fit`: it has no mean_"):
        scorer(BATCH)
    before = Hasher.hash(scorer)
    assert "fitted" not in scorer.arguments()
    scorer.fit(Dataset.from_dict(BATCH))
    assert pickle.loads(pickle.dumps(scorer))(BATCH)["letters"].tolist() == [-1.5, 1.5]
    assert Hasher.hash(scorer) != before  # other scores, so another cache key
    assert scorer.arguments()["fitted"] == AboveMean().fit(Dataset.from_dict(BATCH)).arguments()["fitted"]
    assert Letters().fit(Dataset.from_dict(BATCH)).factor == 1.0  # nothing to learn


def test_a_loaded_model_is_kept_but_neither_pickled_nor_hashed():
    scorer = WithModel()
    key = Hasher.hash(scorer)
    loads = []
    scorer.load = types.MethodType(lambda self, device: loads.append(device) or len, scorer)
    scorer(BATCH)
    scorer(BATCH)
    del scorer.load
    assert len(loads) == 1
    assert "_loaded" not in scorer.__getstate__()
    assert Hasher.hash(scorer) == key


def test_devices_are_dealt_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert [Letters().device(rank).index for rank in (None, 0, 1, 2)] == [0, 0, 1, 0]
    monkeypatch.setenv("LOCAL_RANK", "1")  # processes of a launcher, one device each
    assert Letters().device(0).index == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # each of them with workers of its own
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    dealt = []
    for place in "01":
        monkeypatch.setenv("LOCAL_RANK", place)
        dealt += [Letters().device(rank).index for rank in (0, 1)]
    assert dealt == [0, 2, 1, 3]


def test_what_a_subclass_leaves_out_is_named():
    class Bare(Scorer):
        columns, name = ("caption",), "bare"

    with pytest.raises(NotImplementedError, match="Bare does not define `score`"):
        Bare()(BATCH)
    with pytest.raises(NotImplementedError, match="Bare has no model to load"):
        Bare().loaded()


def test_describe_and_repr():
    made = Letters(2.0, name="n").describe()
    assert (made.column, made.easy, made.arguments) == ("n", "low", {"factor": 2.0})
    assert made.scorer.endswith("test_scorer_base.Letters")  # a scorer of the user's is named with its module
    assert repr(Letters(2.0)) == "Letters(factor=2.0, name='letters')"


def test_a_constructor_that_keeps_nothing_is_named():
    class Forgetful(Letters):
        def __init__(self, factor):
            pass

    with pytest.raises(TypeError, match="Forgetful does not keep its parameter `factor`"):
        Forgetful(2).describe()


def test_a_package_without_metadata_is_left_out_of_the_versions():
    versions = installed_versions(("numpy", "a-package-that-nobody-has"))
    assert versions == {"numpy": np.__version__}


def test_columns_given_as_one_text_are_named():
    class Text(Letters):
        columns = "caption"

    for call in (lambda: Text()(BATCH), lambda: add_scores(Dataset.from_dict(BATCH), Text())):
        with pytest.raises(TypeError, match=r"Text\.columns is a string, not a tuple"):
            call()

    class Later(Letters):
        def __init__(self):
            super().__init__()
            self.decode_false = "caption"

    with pytest.raises(TypeError, match=r"Later\.decode_false is a string"):
        Later()(BATCH)


def test_a_score_without_the_workers_number_is_named():
    with pytest.raises(TypeError, match=r"Short\.score\(self, batch\) does not take a batch and the worker's number"):

        class Short(Scorer):
            columns, name = ("caption",), "short"

            def score(self, batch):
                return [1.0]

    class Optional(Scorer):
        columns, name = ("caption",), "optional"

        def score(self, batch, rank=None, *further):
            return [1.0] * len(batch["caption"])

    assert Optional()(BATCH)["optional"].tolist() == [1.0] * len(BATCH["caption"])


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], requires_grad=True),
        torch.tensor([1.5, -2.0], dtype=torch.float64),
        [torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(-2.0, requires_grad=True)],
        [1.5, np.float64(-2.0)],
    ],
    ids=["bfloat16", "with history", "float64", "a list of tensors", "a list of numbers"],
)
def test_tensors_of_any_type_are_scores(values):
    class Given(Scorer):
        columns, name = ("caption",), "given"

        def score(self, batch, rank):
            return values

    found = Given()({"caption": ["a", "b"]})["given"]
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "values", [np.array([2**25, 2**25 + 1]), [2**25, 2**25 + 1], torch.tensor([2**25, 2**25 + 1])], ids=type
)
def test_integers_that_float32_cannot_hold_are_said_once(values, caplog):
    class Time(Scorer):
        columns, name = ("caption",), "time"

        def score(self, batch, rank):
            return values

    scorer = Time()
    for _ in range(2):
        assert len(set(scorer(BATCH)["time"].tolist())) == 1
    (record,) = caplog.records
    assert "Time returned integers above 16,777,216" in record.message
    caplog.clear()
    values = [2**24, 2**24 - 1]
    assert len(set(Time()(BATCH)["time"].tolist())) == 2
    assert not caplog.records


class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2


def test_the_source_of_a_compiled_model_is_the_models(monkeypatch):
    def digest_with(net):
        scorer = Letters()
        scorer.net = net
        return scorer.source_digest()

    before = digest_with(Net())
    assert before == digest_with(torch.compile(Net()))
    monkeypatch.setattr("inspect.getsource", lambda module: f"{module} edited")
    assert before != digest_with(Net()) == digest_with(torch.compile(Net()))
