"""`verify` finds every damage in what was written, and passes over what others wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from typer.testing import CliRunner

from hf_curriculum import (
    CaptionLength,
    Phases,
    add_scores,
    make_plan,
    save_bucketed,
    save_scored,
    save_scores,
    score_shards,
)
from hf_curriculum.cli import app
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.files import write_together
from hf_curriculum.verify import verify


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
