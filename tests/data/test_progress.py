"""What is told while work goes on: the bars, all that they are given, and how far they come."""

from __future__ import annotations

import io
import json
import os

import datasets
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow

from hf_curriculum.data import image_files
from hf_curriculum.data.captions import expand_captions
from hf_curriculum.data.readers import url_lists
from hf_curriculum.data.regions import extract, pack
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore, digest
from hf_curriculum.scoring import per_image
from hf_curriculum.scoring.per_image import add_embeddings


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def bars(monkeypatch):
    """(arguments, options, updates) of every bar."""
    made = []

    def bar(*arguments, **options):
        updates = []
        made.append(([one for one in arguments if isinstance(one, (str, int))], options, updates))

        class Bar:
            def update(self, count=1):
                updates.append(count)

            def __iter__(self):
                return iter(arguments[0])

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

        return Bar()

    for module in (image_files, per_image, url_lists, extract, pack):
        monkeypatch.setattr(module, "tqdm", bar)
    return made


def png(shade):
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8), (shade, 0, 0)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def pictures(count=3):
    rows = {"image": [png(shade) for shade in range(count)], "image_id": [str(row) for row in range(count)]}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "image_id": Value("string")}))


def test_of_images_in_memory_and_in_files(tmp_path, bars):
    data = pictures()
    image_files.derive_image_ids(data.remove_columns("image_id"))
    image_files.drop_unreadable_images({"train": data})
    data.save_to_disk(tmp_path / "saved")
    image_files.stored_files(datasets.load_from_disk(tmp_path / "saved"))[0].digests()
    assert bars == [
        (["Deriving image ids", 3], {"delay": 2, "disable": None}, []),
        (["Checking images"], {"delay": 2, "disable": None}, []),
        (["Reading images", 3], {"delay": 2}, []),
    ]


def test_of_downloads(bars, monkeypatch, tmp_path):
    monkeypatch.setattr(url_lists, "_fetch", lambda address: tmp_path / "a.png")
    rows = {"image": ["http://a", "http://b", "http://a"], "caption": ["a", "b", "c"]}
    assert len(url_lists.download_images(Dataset.from_dict(rows), "x")) == 3
    assert bars == [(["Downloading images", 2], {"delay": 2}, [])]


def test_of_a_column_per_image_and_what_its_loader_is_given(bars, monkeypatch):
    given, loader = [], per_image.DataLoader

    def recorded(found, **options):
        given.append({name: options[name] for name in options if name != "generator"})
        assert isinstance(options["generator"], torch.Generator)
        return loader(found, **{**options, "num_workers": 0})

    monkeypatch.setattr(per_image, "DataLoader", recorded)
    before = torch.get_rng_state()
    data = pictures(5)
    for workers in (0, 1, 9):
        add_embeddings(data, num_proc=workers, part_images=2, load_from_cache_file=False)
    assert torch.equal(torch.get_rng_state(), before)
    wanted = {"batch_sampler": [[0, 1], [2, 3], [4]], "collate_fn": list, "worker_init_fn": per_image._reopen}
    assert given == [{**wanted, "num_workers": workers} for workers in (0, 1, 3)]
    options = {"total": 5, "desc": "Embedding images", "unit": "image", "delay": 2, "disable": None}
    assert bars == [([], options, [2, 2, 1])] * 3


def test_of_regions(tmp_path, bars):
    given = {str(number): Pillow.new("RGB", (32, 32), (number, 0, 0)) for number in range(3)}
    before = torch.get_rng_state()
    for shown in (True, False):
        place = tmp_path / f"{shown}"
        store = extract_regions(given, "scenes_clip", place, grid=1, batch_size=2, progress=shown)
    assert torch.equal(torch.get_rng_state(), before)
    options = {"total": 3, "initial": 0, "desc": "regions", "unit": "image", "delay": 2}
    assert bars == [([], {**options, "disable": off}, [2, 1]) for off in (False, True)]
    ids = digest("0\n1\n2")
    assert store.facts["sources"] == [{"prefix": "", "type": "images", "path": "dict", "images": 3, "ids": ids}]
    bars.clear()
    pack_regions([store], tmp_path / "packed")
    assert bars == [([], {"desc": "regions", "unit": "image", "initial": 0, "delay": 2, "disable": False}, [1, 1, 1])]


class Waits(Exception):
    """Another process would have to go on."""


def test_processes_share_the_images_and_the_first_joins_them(tmp_path, monkeypatch, bars):
    """Of four processes the first has no image, as there are three."""
    given = {str(number): Pillow.new("RGB", (32, 32), (80 * number, 0, 0)) for number in range(3)}
    processor = RegionProcessor("scenes_clip", grid=2)
    whole = extract_regions(given, processor, tmp_path / "whole", progress=False)
    bars.clear()
    slept = []

    def run(rank):
        monkeypatch.setenv("RANK", str(rank))
        return extract_regions(given, processor, tmp_path / "shared")

    def sleep(seconds):
        rank = os.environ["RANK"]
        slept.append((rank, seconds))
        if rank != "0":
            raise Waits
        for other in (1, 2, 3):
            with pytest.raises(Waits):
                run(other)

    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(extract.time, "sleep", sleep)
    joined = run(0)
    assert slept == [("0", 0.5), ("1", 0.5), ("2", 0.5), ("3", 0.5)]
    assert list(joined) == list(whole)
    assert joined.facts["made_by"] == whole.facts["made_by"]
    assert [one["path"] for one in joined.facts["sources"]] == ["1-of-4", "2-of-4", "3-of-4"]
    assert joined.facts["counts"] == [1, 1, 1]
    for name in given:
        torch.testing.assert_close(joined.features(name), whole.features(name), atol=1e-3, rtol=0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["shared", "whole"]
    assert (tmp_path / "shared" / "preprocessor_config.json").is_file()
    assert [(options["total"], options["disable"]) for _, options, _ in bars if "total" in options] == [(1, True)] * 3
    extract._join(tmp_path / "shared", tmp_path / "gone", 4, 1, {})  # there is nothing to wait for
    assert len(slept) == 4
    assert isinstance(run(2), RegionStore)


def test_of_captions_and_how_rows_are_mapped(monkeypatch):
    given, mapped = [], Dataset.map

    def recorded(self, function, **options):
        given.append((function.keywords, options))
        return mapped(self, function, **options)

    monkeypatch.setattr(Dataset, "map", recorded)
    data = Dataset.from_dict({"texts": [["a"], ["b", "c"]]})
    expand_captions(data, "texts")
    features = Features({"caption": Value("string")})
    options = {"batched": True, "batch_size": 100, "features": features, "desc": "One row per caption"}
    assert given == [({"columns": ["texts"], "kinds": {"texts": data.features["texts"]}}, options)]


def test_of_scores_and_how_rows_are_mapped(monkeypatch, tmp_path):
    from hf_curriculum import CaptionLength, add_scores

    given, mapped = [], Dataset.map

    def recorded(self, function, **options):
        given.append(dict(options))
        return mapped(self, function, **options)

    monkeypatch.setattr(Dataset, "map", recorded)
    data = Dataset.from_dict({"caption": ["a", "b b", "c"]})
    add_scores(data, CaptionLength(), batch_size=2, resume_every=2, cache_dir=tmp_path, load_from_cache_file=False)
    add_scores(data, CaptionLength(), batch_size=2)
    shared = {"batched": True, "with_rank": True, "remove_columns": ["caption"], "batch_size": 2, "num_proc": None}
    features = [options.pop("features") for options in given]
    assert [list(one) for one in features] == [["caption_length"]] * 3
    assert json.loads(features[0]["caption_length"].id)["scorer"] == "CaptionLength"
    keys = [options.pop("new_fingerprint", None) for options in given]
    assert (keys[0] != keys[1], keys[2]) == (True, None)
    part = {**shared, "keep_in_memory": True, "load_from_cache_file": False}
    assert given == [
        {**part, "desc": "Scoring caption_length (part 1 of 2)"},
        {**part, "desc": "Scoring caption_length (part 2 of 2)"},
        {**shared, "desc": "Scoring caption_length", "cache_file_name": None, "load_from_cache_file": None},
    ]
