"""What another program, or this package in another way, has put where results go: it stays, and the call says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from crawl import contents, crawl
from datasets import Dataset, DatasetDict, load_from_disk

from hf_curriculum import (
    CaptionLength,
    Phases,
    add_scores,
    load_scored,
    make_plan,
    save_bucketed,
    save_scored,
    score_shards,
)
from hf_curriculum.files import write_together
from hf_curriculum.hub.space import write_space
from hf_curriculum.verify import verify

pytestmark = pytest.mark.usefixtures("datasets_cache")

MINE = json.dumps({"mine": 1})


@pytest.fixture(scope="module")
def scored():
    return add_scores(Dataset.from_dict({"caption": ["a", "a b", "a b c", "a b c d"]}), CaptionLength())


@pytest.fixture
def results(tmp_path, scored):
    """A folder of each kind, and a crawl that is not scored yet."""
    save_scored(scored, tmp_path / "set")
    save_scored(DatasetDict(train=scored), tmp_path / "splits")
    save_bucketed(scored, tmp_path / "buckets", 2, score_column="caption_length")
    crawl(tmp_path / "crawl", 2, 3)
    score_shards(tmp_path / "crawl", CaptionLength(), tmp_path / "shards")
    return tmp_path


@pytest.mark.parametrize("name", ["scores.json", "state.json", "dataset_dict.json", "dataset_info.json"])
@pytest.mark.parametrize("content", [MINE, "[1]", "1"])
def test_json_of_another_program_is_not_replaced_by_a_scored_set(tmp_path, scored, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileExistsError, match=rf"{name} is there, and this package did not write it"):
        save_scored(scored, tmp_path)
    assert contents(tmp_path) == {name: content.encode()}


@pytest.mark.parametrize("damage", [b"", b"\0" * 400, b'{"format": 1, "spl'], ids=["empty", "zeros", "cut"])
def test_damaged_records_of_a_scored_set_are_replaced(results, scored, damage):
    for name in ("scores.json", "state.json", "dataset_info.json"):
        (results / "set" / name).write_bytes(damage)
    save_scored(scored, results / "set")
    assert load_scored(results / "set")["caption_length"][:] == [1, 2, 3, 4]


def test_a_set_that_datasets_saved_is_replaced(tmp_path, scored):
    Dataset.from_dict({"caption": ["x"]}).save_to_disk(tmp_path / "set")
    save_scored(scored, tmp_path / "set")
    assert load_from_disk(tmp_path / "set")["caption_length"][:] == [1, 2, 3, 4]


@pytest.mark.parametrize("link", [False, True])
def test_a_file_is_not_replaced_by_a_folder(tmp_path, scored, link):
    (tmp_path / "thesis").write_text("mine")
    place = tmp_path / "thesis"
    if link:
        (place := tmp_path / "link").symlink_to("thesis")
    for write in (
        lambda: save_scored(scored, place),
        lambda: score_shards(crawl_of(tmp_path), CaptionLength(), place),
    ):
        with pytest.raises(FileExistsError, match=r"thesis is a file, and a folder is written"):
            write()
    assert (tmp_path / "thesis").read_text() == "mine"


def crawl_of(tmp_path: Path) -> Path:
    if not (tmp_path / "crawl").is_dir():
        crawl(tmp_path / "crawl", 2, 3)
    return tmp_path / "crawl"


def test_another_file_of_the_name_of_scores_is_not_replaced(tmp_path):
    (tmp_path / "out/scores").mkdir(parents=True)
    for content in (b"mine", b"PAR1 and so on PAR1"):
        (tmp_path / "out/scores/00001.parquet").write_bytes(content)
        with pytest.raises(FileExistsError, match=r"00001\.parquet is there and is no side file of scores"):
            score_shards(crawl_of(tmp_path), CaptionLength(), tmp_path / "out")
        assert contents(tmp_path / "out") == {"scores/00001.parquet": content}
    (tmp_path / "out/scores/00001.parquet").unlink()
    (tmp_path / "out/shards.json").write_text(MINE)
    with pytest.raises(FileExistsError, match=r"shards\.json is there, and this package did not write it"):
        score_shards(crawl_of(tmp_path), CaptionLength(), tmp_path / "out")
    assert contents(tmp_path / "out") == {"shards.json": MINE.encode()}


def test_scores_without_their_manifest_are_compared_and_stay(results):
    before = contents(results / "shards")
    (results / "shards/shards.json").unlink()
    (results / "shards/scores/00001.parquet").write_bytes(b"PAR1 cut")
    score_shards(results / "crawl", CaptionLength(), results / "shards")
    assert contents(results / "shards") == before


@pytest.mark.parametrize("name", ["order.npy", "order.txt", "order.parquet"])
def test_json_beside_an_order_that_does_not_describe_it_is_not_replaced(tmp_path, scored, name):
    plan = make_plan(Phases(2), scored, score_column="caption_length", global_batch_size=2)
    for there in ([f"{name}.json"], [name, f"{name}.json"]):
        for one in there:
            (tmp_path / one).write_text(MINE)
        with pytest.raises(FileExistsError, match=rf"{name}\.json is there, and this package did not write it"):
            plan.export(tmp_path / name)
        assert contents(tmp_path) == dict.fromkeys(sorted(there), MINE.encode())
    (tmp_path / f"{name}.json").write_text('{"format": "hf_curri')  # cut short
    plan.export(tmp_path / name)
    assert verify(tmp_path / name)[0].error is None


def test_a_manifest_and_a_space_of_another_program_are_not_replaced(tmp_path, scored):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/results.json").write_text(MINE)
    with pytest.raises(FileExistsError, match=r"results\.json is there, and this package did not write it"):
        write_together(tmp_path / "results", {"captions.json": "[]"}, "results.json")
    assert contents(tmp_path / "results") == {"results.json": MINE.encode()}
    (tmp_path / "space").mkdir()
    for name in ("README.md", "data.json", "index.html"):
        (tmp_path / "space" / name).write_text(MINE)
    with pytest.raises(FileExistsError, match=r"data\.json is there, and this package did not write it"):
        write_space(scored, tmp_path / "space", title="Captions")
    assert set(contents(tmp_path / "space").values()) == {MINE.encode()}
    shutil.rmtree(tmp_path / "space")
    for _ in range(2):
        write_space(scored, tmp_path / "space", title="Captions")


@pytest.mark.parametrize(
    ("there", "held"),
    [
        ("set", "a scored data set"),
        ("splits", "a scored data set"),
        ("buckets", "buckets"),
        ("shards", "scores of shards"),
    ],
)
def test_a_folder_holds_one_kind_of_results(results, scored, there, held):
    before = contents(results / there)
    if held != "a scored data set":
        with pytest.raises(FileExistsError, match=rf"{there} holds {held}, and a scored data set in the same folder"):
            save_scored(scored, results / there)
    if held != "scores of shards":
        with pytest.raises(FileExistsError, match=rf"{there} holds {held}, and scores of shards in the same folder"):
            score_shards(results / "crawl", CaptionLength(), results / there)
    assert contents(results / there) == before
    assert [each.error for each in verify(results / there)][:1] == [None]


def test_what_lies_below_a_scored_set_is_verified_too(results, scored):
    order = results / "set" / "orders" / "order.npy"
    order.parent.mkdir()
    make_plan(Phases(2), scored, score_column="caption_length", global_batch_size=2).export(order)
    np.save(order, np.arange(4))
    assert [(each.kind, each.error is None) for each in verify(results / "set")] == [
        ("scored data set", True),
        ("exported order", False),
    ]
