import pickle
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from hf_curriculum.data.seeding import (
    COLLATING,
    FETCHING,
    PREPARING,
    IndexedCollator,
    IndexedDataset,
    IndexedExample,
    draw_seed,
    forked_generators,
    seed_generators,
)
from hf_curriculum.rng import PAD_INDEX


def numbers():
    """One number of each generator."""
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def states():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def noisy(batch):
    """A transform of a data set that draws from all three generators."""
    return {"x": batch["x"], "noise": [numbers() for _ in batch["x"]]}


def data(seeded_transform=True, rows=12):
    dataset = Dataset.from_dict({"x": list(range(rows))})
    if seeded_transform:
        dataset.set_transform(noisy)
    return dataset


def as_list(items):
    return items


class Preparing:
    """A collator whose only randomness is per example."""

    def __call__(self, examples):
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example):
        if example["x"] == 99:
            raise ValueError("no caption")
        return {"x": example["x"], "noise": numbers(), "fetched": example.get("noise")}

    def collate(self, prepared):
        return {name: [item[name] for item in prepared] for name in prepared[0]} | {"mask": numbers()}


class TestSeeds:
    def test_they_are_the_same_for_ever(self):
        seeds = [draw_seed(0, 0), draw_seed(0, 1), draw_seed(7, 10**9, PREPARING)]
        assert seeds == [2558736989570252433, 4764156602392020899, 6365700890760037766]

    def test_the_numbers_are_the_same_for_ever(self):
        with forked_generators():
            seed_generators(7, 10**9, PREPARING)
            assert numbers() == (0.4321653273718533, 0.30531041527166947, 0.2451820969581604)

    def test_streams_seeds_and_draws_differ(self):
        seeds = {
            draw_seed(seed, draw, stream)
            for seed in (0, 1)
            for draw in range(500)
            for stream in (FETCHING, PREPARING, COLLATING)
        }
        assert len(seeds) == 3000

    def test_all_three_generators_are_seeded(self):
        with forked_generators():
            seed_generators(3, 5)
            first = numbers()
            numbers()
            seed_generators(3, 5)
            assert numbers() == first
            seed_generators(3, 6)
            assert all(now != before for now, before in zip(numbers(), first, strict=True))

    def test_numbers_of_neighbouring_draws_are_even(self):
        """Seeds one apart must not give numbers that resemble each other."""
        with forked_generators():
            drawn = []
            for draw in range(2000):
                seed_generators(0, draw)
                drawn.append(numbers())
        drawn = np.array(drawn)
        assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.03
        assert np.abs(np.corrcoef(drawn[:-1].T, drawn[1:].T)[:3, 3:]).max() < 0.1
        assert np.abs(np.corrcoef(drawn.T)[np.triu_indices(3, 1)]).max() < 0.1

    def test_the_states_are_put_back_exactly(self):
        torch.randn(1), np.random.randn(), random.gauss(0, 1)  # noqa: NPY002 - each keeps half a pair in its state
        before = states()
        with forked_generators():
            seed_generators(0, 0)
            torch.randn(3), np.random.randn(3), random.gauss(0, 1)  # noqa: NPY002
        assert states() == before

    def test_the_states_are_put_back_after_an_error(self):
        before = states()

        def fail():
            with forked_generators():
                seed_generators(0, 0)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert states() == before


class TestDataset:
    def test_an_example_depends_on_its_draw_alone(self):
        dataset = IndexedDataset(data(), seed=1, seeded=True)
        together = dataset.__getitems__([(3, 100), (3, 101), (5, 102)])
        alone = [dataset[3, 100], dataset[3, 101], dataset[5, 102]]
        assert together == alone
        assert together[0].example["noise"] != together[1].example["noise"]
        assert [(item.index, item.draw) for item in together] == [(3, 100), (3, 101), (5, 102)]

    def test_another_seed_gives_other_numbers(self):
        one, other = (IndexedDataset(data(), seed=seed, seeded=True)[3, 100] for seed in (1, 2))
        assert one.example["noise"] != other.example["noise"]

    def test_generators_are_untouched(self):
        before = states()
        IndexedDataset(data(), seed=1, seeded=True).__getitems__([(0, 0), (1, 1)])
        assert states() == before

    def test_unseeded_batches_are_fetched_in_one_go(self):
        class Counting(list):
            calls = 0

            def __getitems__(self, indices):
                self.calls += 1
                return [self[index] for index in indices]

        counting = Counting("abc")
        assert IndexedDataset(counting, seed=0, seeded=False).__getitems__([(2, 0), (0, 1)]) == [
            IndexedExample("c", 2, 0),
            IndexedExample("a", 0, 1),
        ]
        assert counting.calls == 1

    @pytest.mark.parametrize("rows", [["a", "b"], torch.utils.data.TensorDataset(torch.arange(2))])
    def test_unseeded_without_a_way_to_fetch_batches(self, rows):
        items = IndexedDataset(rows, seed=0, seeded=False).__getitems__([(1, 7)])
        assert (items[0].index, items[0].draw, items[0].example) == (1, 7, rows[1])

    def test_what_fills_a_batch_up_is_no_example(self):
        items = IndexedDataset(data(), seed=0, seeded=True).__getitems__([(PAD_INDEX, 3), (2, 5)])
        assert [(item.index, item.draw) for item in items] == [(2, 5)]

    def test_length(self):
        assert len(IndexedDataset(data(), 0, True)) == 12

    @pytest.mark.parametrize("method", ["__len__", "__getitem__"])
    def test_rows_without_number_or_length(self, method):
        with pytest.raises(TypeError, match="which has no rows by number or no length"):
            IndexedDataset(type("Half", (), {method: lambda self, *_: 1})(), 0, True)

    def test_a_streamed_data_set(self):
        with pytest.raises(TypeError, match="is an IterableDataset, which has no rows by number or no length"):
            IndexedDataset(data(False).to_iterable_dataset(), 0, True)


class TestCollator:
    def drawn(self, pairs):
        return [IndexedExample({"x": index}, index, draw) for index, draw in pairs]

    def test_prepared_examples_do_not_depend_on_the_batch(self):
        collator = IndexedCollator(Preparing(), seed=1, seeded=True)
        first = collator(self.drawn([(3, 10), (4, 11)]))
        second = collator(self.drawn([(9, 2), (4, 11), (3, 10)]))
        assert first["noise"] == [second["noise"][2], second["noise"][1]]
        assert first["noise"][0] != first["noise"][1]
        assert torch.equal(second["example_index"], torch.tensor([9, 4, 3]))
        assert second["example_index"].dtype == torch.int64

    def test_what_is_drawn_for_the_batch_is_keyed_by_its_first_draw(self):
        collator = IndexedCollator(Preparing(), seed=1, seeded=True)
        masks = [collator(self.drawn(pairs))["mask"] for pairs in ([(3, 10), (4, 11)], [(0, 10)], [(3, 11)])]
        assert masks[0] == masks[1] != masks[2]

    def test_a_plain_collator_is_seeded_once_for_the_batch(self):
        def collate(examples):
            return {"noise": [numbers() for _ in examples]}

        collator = IndexedCollator(collate, seed=1, seeded=True)
        one, two = collator(self.drawn([(3, 10), (4, 11)])), collator(self.drawn([(3, 10), (5, 12)]))
        assert one["noise"] == two["noise"]
        assert collator(self.drawn([(3, 11)]))["noise"][0] != one["noise"][0]

    def test_fetching_and_preparing_draw_different_numbers(self):
        dataset = IndexedDataset(data(), seed=1, seeded=True)
        batch = IndexedCollator(Preparing(), seed=1, seeded=True)(dataset.__getitems__([(3, 10)]))
        assert batch["noise"][0] != batch["fetched"][0]

    @pytest.mark.parametrize("collator", [Preparing(), lambda examples: {"noise": numbers()}])
    def test_generators_are_untouched(self, collator):
        before = states()
        IndexedCollator(collator, seed=1, seeded=True)(self.drawn([(3, 10)]))
        assert states() == before

    def test_unseeded_it_draws_from_the_generators_of_the_moment(self):
        collator = IndexedCollator(Preparing(), seed=1, seeded=False)
        assert collator(self.drawn([(3, 10)]))["noise"] != collator(self.drawn([(3, 10)]))["noise"]

    def test_a_batch_that_is_no_mapping_is_left_as_it_is(self):
        assert IndexedCollator(as_list, seed=0, seeded=False)(self.drawn([(3, 10)])) == [{"x": 3}]

    @pytest.mark.parametrize("seeded", [True, False])
    def test_an_error_names_the_row(self, seeded):
        with pytest.raises(ValueError, match="Row 99: no caption"):
            IndexedCollator(Preparing(), seed=0, seeded=seeded)(self.drawn([(1, 0), (99, 1)]))


class TestLoader:
    def batches(self, workers, batch_size=4):
        dataset = IndexedDataset(data(), seed=1, seeded=True)
        pairs = [(index % 12, draw) for draw, index in enumerate(range(5, 21))]
        loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=pairs,
            num_workers=workers,
            collate_fn=IndexedCollator(Preparing(), seed=1, seeded=True),
        )
        return [
            item
            for batch in loader
            for item in zip(batch["example_index"].tolist(), batch["noise"], batch["fetched"], strict=True)
        ]

    def test_workers_and_batches_change_nothing(self):
        alone = self.batches(workers=0)
        assert len(alone) == len({str(item) for item in alone}) == 16
        assert self.batches(workers=2) == alone
        assert self.batches(workers=0, batch_size=5) == alone

    def test_both_can_be_sent_to_a_worker(self):
        dataset = pickle.loads(pickle.dumps(IndexedDataset(["a", "b"], 3, True)))
        assert dataset[1, 5] == IndexedExample("b", 1, 5)
        collator = pickle.loads(pickle.dumps(IndexedCollator(as_list, 3, True)))
        assert (collator.seed, collator.seeded, collator([IndexedExample("a", 0, 0)])) == (3, True, ["a"])
