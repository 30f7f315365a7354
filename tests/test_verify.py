"""`verify` finds every damage in what was written, and passes over what others wrote."""

from __future__ import annotations

import json
import os
import re
import shutil

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from typer.testing import CliRunner

from hf_curriculum import (
    CaptionLength,
    Phases,
    WordRarity,
    add_scores,
    add_scores_sharded,
    make_plan,
    save_bucketed,
    save_scored,
    save_scores,
    score_shards,
)
from hf_curriculum.cli import app
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.files import write_sealed, write_together
from hf_curriculum.parts import PartFolder
from hf_curriculum.training.checkpoints import _FORMAT as CHECKPOINT_FORMAT
from hf_curriculum.verify import Verified, verify


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with one thing of each kind, and files of other programs."""
    root = tmp_path_factory.mktemp("written")
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), np.uint8)
    features = Features({"caption": Value("string"), "image": Image()})
    data = Dataset.from_dict({"caption": ["a", "a b", "a b c", "a b c d"], "image": list(pixels)}, features)
    scored = add_scores(data, CaptionLength())
    save_scored(scored, root / "scored")
    save_scores(scored, root / "scores.parquet", key="caption")
    save_bucketed(scored, root / "buckets", 2, score_column="caption_length")
    (root / "crawl").mkdir()
    Dataset.from_dict({"caption": ["a", "b"], "key": ["0", "1"]}).to_parquet(root / "crawl" / "0.parquet")
    score_shards(root / "crawl", CaptionLength(), root / "shards")
    make_plan(Phases(2), scored, score_column="caption_length", global_batch_size=2).export(root / "order.npy")
    np.savez(root / "9.npz", feat=np.ones((2, 4), np.float32))
    (root / "source").mkdir()
    (root / "9.npz").rename(root / "source" / "9.npz")
    pack_regions(root / "source", root / "store", progress=False)
    write_together(
        root / "results", {"captions.json": json.dumps([{"caption": "a dog"}])}, "results.json", {"CIDEr": 1.0}
    )
    (root / "notes.json").write_text(json.dumps({"by": "me"}))
    return root


def test_each_kind_is_compared_once(written):
    assert [(each.kind, each.path.relative_to(written).as_posix(), each.error) for each in verify(written)] == [
        ("exported order", "order.npy", None),
        ("side file of scores", "scores.parquet", None),
        ("buckets", "buckets", None),
        ("record", "buckets/scores.json", None),
        ("record", "results/results.json", None),
        ("scored data set", "scored", None),
        ("scores of shards", "shards", None),
        ("region store", "store", None),
    ]


def test_one_changed_byte_of_any_file_is_found(written):
    files = [
        file
        for name in (
            "order.npy",
            "order.npy.json",
            "scores.parquet",
            "buckets",
            "results",
            "scored",
            "shards",
            "store",
        )
        for file in ([written / name] if (written / name).is_file() else sorted((written / name).rglob("*")))
        if file.is_file() and file.name != "README.md"
    ]
    assert len(files) > 20
    for file in files:
        content = file.read_bytes()
        for place in (0, len(content) // 3, len(content) // 2, len(content) - 9):
            changed = bytearray(content)
            changed[place] ^= 1
            file.write_bytes(changed)
            wrong = [each for each in verify(written) if each.error]
            assert len(wrong) == 1, (file, place)
            assert wrong[0].path in {file, *file.parents} or file.parent == wrong[0].path.parent
        file.write_bytes(content)
    assert not any(each.error for each in verify(written))


def test_nothing_to_compare_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        verify(tmp_path / "missing")
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(ValueError, match="holds nothing that this package wrote"):
        verify(tmp_path)


def test_the_command_ends_with_1_where_something_is_damaged(written):
    whole = CliRunner().invoke(app, ["verify", str(written)])
    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, "8 compared, none damaged.")
    file = written / "order.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged = CliRunner().invoke(app, ["verify", str(written), "--json"])
    file.write_bytes(content)
    assert damaged.exit_code == 1
    assert [each["path"] for each in json.loads(damaged.stdout) if each["error"]] == [str(file)]


# ---- What is lost, truncated, or no file at all ----

RECORDS = {
    "run/amendments.json": {"amendments": []},
    "study/a-seed0/result.json": {"key": "k", "arm": "a", "seed": 0, "status": "finished"},
}


@pytest.fixture
def copied(written, tmp_path):
    """A copy of one thing of each kind, with records that lie alone, and checkpoints."""
    root = tmp_path / "copied"
    shutil.copytree(written, root)
    for name, facts in RECORDS.items():
        (root / name).parent.mkdir(parents=True)
        write_sealed(root / name, facts)
    for number in (1, 2):
        (root / "run" / f"checkpoint-{number}").mkdir()
        facts = {name: {} for name in ("versions", "plan", "description", "seconds", "log", "run", "files")}
        sealed = {"version": CHECKPOINT_FORMAT, **facts}
        write_sealed(root / "run" / f"checkpoint-{number}" / "curriculum.json", sealed)
    return root


def found_wrong(root):
    """The errors below a folder, by the path of what they are about."""
    return {each.path.relative_to(root).as_posix(): each.error for each in verify(root) if each.error}


@pytest.mark.parametrize("name", [*RECORDS, "results/results.json", "buckets/scores.json", "order.npy.json"])
def test_a_record_is_ours_whatever_is_left_of_it(copied, name):
    file = copied / name
    content = file.read_text()
    for damaged in ("", content[: len(content) // 2], content.replace('"seal"', '"other"'), content[:-30]):
        file.write_text(damaged)
        assert len(found_wrong(copied)) == 1, damaged


@pytest.mark.parametrize("name", RECORDS)
def test_other_json_in_the_place_of_a_record(copied, name):
    (copied / name).write_text("[1]")
    assert "is damaged" in found_wrong(copied)[name]


def test_records_of_other_programs_are_passed_over(copied):
    (copied / "theirs").mkdir()
    for content in ('{"accuracy": 0.5}', '{"accuracy": 0.5}\n{"accuracy": 0.6}\n'):
        for name in ("result.json", "results.json", "study.json", "manifest.json", "notes.json"):
            (copied / "theirs" / name).write_text(content)
        assert not found_wrong(copied)
    (copied / "theirs" / "half.json").write_text('{"a": ')
    (copied / "theirs" / "image.png.json").write_text("{}")
    (copied / "theirs" / "image.png").write_bytes(b"")
    (copied / "theirs" / "link").symlink_to("nowhere")
    os.mkfifo(copied / "theirs" / "pipe")
    assert not found_wrong(copied)


@pytest.mark.parametrize(
    ("lost", "about", "said"),
    [
        ("shards/scores/0.parquet", "shards", "1 of 1 shards have no scores, 0.parquet for example. Run the same"),
        ("shards/shards.json", "shards/scores/0.parquet", "a part of scores, and shards.json, which says of what"),
        ("buckets/buckets.json", "buckets", "buckets.json does not exist"),
        ("run/checkpoint-2/curriculum.json", "run/checkpoint-2", "its run ended while it was being saved"),
        ("order.npy", "order.npy", "does not exist"),
        ("scored/dataset_info.json", "scored", "is missing"),
    ],
)
def test_a_file_that_is_gone(copied, lost, about, said):
    (copied / lost).unlink()
    assert said in found_wrong(copied)[about]
    (copied / lost).mkdir()
    assert found_wrong(copied)


def test_a_part_of_what_was_written_is_compared_alone(copied):
    assert [each.error for each in verify(copied / "shards" / "scores")] == [None]
    for name in ("order.npy", "order.npy.json"):
        each = Verified("exported order", copied / "order.npy")
        assert verify(copied / name) == [each]


NO_FILES = {
    "dangling": lambda path: path.symlink_to("nowhere"),
    "circle": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize(
    "name",
    [
        *RECORDS,
        *("order.npy", "order.npy.json", "buckets/buckets.json", "buckets/scores.json", "results/results.json"),
        *("shards/shards.json", "shards/scores/0.parquet", "scored/state.json", "scored/dataset_info.json"),
        *("scored/scores.json", "store/region_store.json", "store/keys.npy", "run/checkpoint-1/curriculum.json"),
    ],
)
def test_what_is_no_file_is_an_error_of_its_own(copied, name):
    for kind, make in NO_FILES.items():
        shutil.rmtree(copied / name) if (copied / name).is_dir() else (copied / name).unlink()
        make(copied / name)
        wrong = found_wrong(copied)
        assert all(name.startswith(about) for about in wrong), wrong
        if (name, kind) != ("order.npy.json", "folder"):  # the order lies alone then, as another program's does
            assert wrong, kind


def test_a_side_file_that_is_no_file(copied):
    for kind in ("dangling", "circle", "fifo"):
        (copied / "scores.parquet").unlink()
        NO_FILES[kind](copied / "scores.parquet")
        assert list(found_wrong(copied)) == ["scores.parquet"]


def test_links_are_followed_and_circles_are_not(copied, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "link").symlink_to(copied)
    (copied / "back").symlink_to(outer)
    assert len(verify(outer)) == len(verify(copied))
    (copied / "order.npy").write_bytes(b"")
    assert list(found_wrong(outer)) == ["link/order.npy"]
    for name in ("order.npy", "scores.parquet"):
        (outer / name).symlink_to(copied / name)
        assert [each.path for each in verify(outer / name)] == [copied / name]


def test_what_scorers_have_learnt_is_compared_with_the_parts(tmp_path):
    data = Dataset.from_dict({"caption": ["a dog", "a red cat", "a dog runs"]})
    add_scores_sharded(data, WordRarity(), tmp_path / "parts")
    (file,) = (tmp_path / "parts").rglob("fitted.json")
    assert not found_wrong(tmp_path)
    file.write_bytes(file.read_bytes()[:-30])
    assert any("fitted.json" in error for error in found_wrong(tmp_path).values())


@pytest.mark.parametrize("damage", [("seal", "sebl"), ("seal", "{eal"), ('"a": 1', '"a": 2')])
def test_a_record_of_any_name_is_known_by_its_seal(tmp_path, damage):
    file = tmp_path / "any.json"
    write_sealed(file, {"a": 1})
    file.write_text(file.read_text().replace(*damage))
    (one,) = verify(tmp_path)
    assert one.path == file
    assert re.search("any.json (is|was) damaged", one.error)


def test_a_seal_that_is_no_digest_any_more_is_found(tmp_path):
    file = tmp_path / "any.json"
    write_sealed(file, {"a": 1})
    text = file.read_text()
    file.write_text(text[: text.rindex('"') - 1] + "z" + text[text.rindex('"') :])
    assert re.search("any.json (is|was) damaged", verify(tmp_path)[0].error)


def test_parts_of_another_number_of_rows_are_told(tmp_path):
    for rows, name in ((6, "a"), (9, "b")):
        folder = PartFolder(tmp_path / name, {"of": name}, rows, 3)
        for part in range(folder.count):
            folder.write(part, {"score": np.arange(3.0)})
    shutil.copy(tmp_path / "b/run.json", tmp_path / "a/run.json")
    one, other = verify(tmp_path)
    assert other.error is None
    assert re.search(r"a/part-00000-of-00002\.parquet is no part of the run that run\.json", one.error)


def test_a_record_that_has_lost_its_seal_is_known_by_its_keys(tmp_path):
    (tmp_path / "manifest.json").write_text('{"files": {}}')
    (one,) = verify(tmp_path)
    assert one.path == tmp_path / "manifest.json"
    assert one.error
    (tmp_path / "manifest.json").write_text('{"start_url": "/"}')  # of a web page
    with pytest.raises(ValueError, match="nothing"):
        verify(tmp_path)
