"""Names of files outside of a folder: in the rows, the own files and the cards of data."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from crafted import name_files
from datasets import Dataset, DatasetDict, Features, Image, List
from PIL import Image as PILImage

from hf_curriculum.data.readers.outside_files import files_in, load_saved, local_path, validate_files, validate_inside

REFUSED = "names files outside of"


def test_paths_that_are_given_back_as_they_are_or_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "s3:data"):
        Path(name).touch()
    same = ["a.png", Path("a.png"), "s3:nowhere", "https://a/b", None, False, 7]
    assert list(map(local_path, same)) == same
    assert local_path("s3:data") == str(tmp_path / "s3:data")
    assert local_path(Path("s3:data")) == tmp_path / "s3:data"


@pytest.mark.parametrize(
    ("kind", "cells", "named"),
    [
        (pa.string(), ["a.png", None, "b.png"], ["a.png", "b.png"]),
        (pa.large_string(), ["a.png"], ["a.png"]),
        (pa.binary(), [b"a.png"], []),
        (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), [{"bytes": None, "path": "a.png"}], ["a.png"]),
    ],
)
def test_the_files_that_are_named_in_each_storage_of_images(kind, cells, named):
    assert list(files_in(pa.table({"image": pa.array(cells, kind)}), Features(image=Image()))) == named
    lists = pa.table({"image": pa.array([cells, []], pa.list_(kind))})
    assert list(files_in(lists, Features(image=List(Image())))) == named


@pytest.fixture
def saved(tmp_path):
    """Two splits, the second of which holds what lies in a file."""
    PILImage.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    parts = {"train": Dataset.from_dict({"a": ["x"]}), "test": Dataset.from_dict({"a": ["y"]})}
    DatasetDict(parts).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def values(loaded):
    parts = loaded if isinstance(loaded, DatasetDict) else {"all": loaded}
    return {split: part["a"][:] for split, part in parts.items()}


@pytest.mark.parametrize("which", ["file", "split", "link", "further link", "row"])
def test_saved_data_that_lead_elsewhere_are_read_where_that_is_allowed(saved, tmp_path, which):
    both = {"train": ["x"], "test": ["y"]}
    assert values(load_saved(saved)) == both
    if which == "file":
        state = saved / "test" / "state.json"
        content = json.loads(state.read_text())
        (file,) = content["_data_files"]
        (saved / "test" / file["filename"]).rename(tmp_path / "0.arrow")
        file["filename"] = "../../0.arrow"
        state.write_text(json.dumps(content))
    elif which == "split":
        (saved / "test").rename(tmp_path / "other")
        (saved / "dataset_dict.json").write_text('{"splits": ["train", "../other"]}')
        both = {"train": ["x"], "../other": ["y"]}
    elif which == "link":
        (saved / "test").rename(tmp_path / "other")
        (saved / "test").symlink_to(tmp_path / "other")
    elif which == "further link":
        (saved / "notes.txt").symlink_to(tmp_path / "secret.png")
    else:
        images = [{"bytes": b"y", "path": None}] * 2
        rows = Dataset.from_dict({"image": images}, features=Features(image=Image())).add_column("a", ["y", "y"])
        rows.save_to_disk(saved / "test")
        name_files(saved / "test", "image", str(tmp_path / "secret.png"))
        both = {"train": ["x"], "test": ["y", "y"]}
    with pytest.raises(ValueError, match=REFUSED):
        load_saved(saved)
    assert values(load_saved(saved, allow_outside=True)) == both


def test_what_is_no_saved_data_is_not_called_damaged(tmp_path, saved):
    with pytest.raises(FileNotFoundError):
        load_saved(tmp_path / "nowhere")
    (saved / "test" / "dataset_info.json").write_text("[]")
    with pytest.raises(ValueError, match=r"test cannot be read \(.*it is damaged, or a later version"):
        load_saved(saved / "test")


def test_a_card_that_is_not_utf8_is_read_for_its_names(tmp_path):
    Dataset.from_dict({"a": ["x"]}).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "README.md").write_bytes(b"---\nconfigs:\n- data_files: ../x.csv\n---\nW\xf6lfe\n")
    with pytest.raises(ValueError, match=rf"{REFUSED} .*saved/\.\./x\.csv"):
        load_saved(tmp_path / "saved")


@pytest.mark.parametrize(("names", "refused"), [([], False), (["gone.png"], False), (["out.png"], True)])
def test_names_of_rows_that_lead_nowhere_are_no_danger(tmp_path, names, refused):
    (tmp_path / "in").mkdir()
    (tmp_path / "out.png").touch()
    paths = [str(tmp_path / name) for name in names]
    if refused:
        with pytest.raises(ValueError, match=REFUSED):
            validate_files(paths, [tmp_path / "in"], "x")
    else:
        validate_files(paths, [tmp_path / "in"], "x")
    with pytest.raises(ValueError, match=f"{REFUSED} .*https://a"):
        validate_files([*paths, "https://a"], [tmp_path], "x")


@pytest.mark.parametrize(("count", "shown"), [(3, r": /0, /1, /2\. They"), (4, r"/2 and 1 more\. They")])
def test_three_files_outside_are_shown(tmp_path, count, shown):
    with pytest.raises(ValueError, match=shown):
        validate_inside([f"/{number}" for number in range(count)], [tmp_path], "x")


@pytest.mark.parametrize(("folder", "fine"), [("snapshots", True), ("other", False)])
def test_blobs_beside_snapshots_alone_belong_to_a_folder(tmp_path, folder, fine):
    root = tmp_path / folder / "0a1b"
    root.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").touch()
    (root / "a.png").symlink_to(tmp_path / "blobs" / "1")
    if fine:
        validate_inside([str(root / "a.png")], [root], "x")
        return
    with pytest.raises(ValueError, match=r"a\.png \(a link leads to .*blobs/1\)"):
        validate_inside([str(root / "a.png")], [root], "x")
