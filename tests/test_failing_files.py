"""What is written is the same after a failure at any file operation, and is never half there."""

import os
import shutil
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from datasets import Dataset
from spectrum_data import labelled_scenes, tiny_pipeline
from transformers import ViTConfig, ViTModel

from hf_curriculum import (
    CaptionLength,
    Study,
    add_scores_sharded,
    load_scored,
    make_image_processor,
    make_scenes,
    save_bucketed,
    save_scored,
)
from hf_curriculum.data.proposals import SelectiveSearch
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.files import lock_file, recover_folder
from hf_curriculum.models.vision_features import cache_vision_features
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.report import Report
from hf_curriculum.streaming.index import verify_bucketed
from hf_curriculum.tasks.detection import add_proposals
from hf_curriculum.tasks.long_tail import generate_spectrum
from tests.helpers.failing_files import failing_files, interrupted

MADE = ScoreProvenance(scorer="CaptionLength", column="score", easy="low")


def scored(rows):
    data = Dataset.from_dict({"text": [f"row {row}" for row in range(rows)], "score": np.arange(rows, dtype=float)})
    return attach_provenance(data, {"score": MADE})


def content(folder, drafts=False):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and file.name != "state.json"  # its fingerprint is drawn
        and not (drafts and file.name.startswith("."))
    }


def every_point(write, folder, before=None, drafts=False):
    """Folders after each interruption, each with the content that was wanted, and the points.

    With `drafts` a process that was killed may leave the beginning of one file, which has another name.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir()
    if before:
        before()
    with failing_files() as done:
        write()
    wanted = content(folder, drafts)
    faults = [(interrupted, at, end) for end in (False, True) for at in range(len(done))]
    for fault, *where in faults:
        shutil.rmtree(folder.parent)
        folder.parent.mkdir()
        if before:
            before()
        if fault(write, *where):
            assert content(folder, drafts) == wanted, where
        yield where
        write()
        assert content(folder, drafts) == wanted, where
        assert [entry.name for entry in folder.parent.iterdir()] == [folder.name], where


@pytest.mark.slow
def test_packing_goes_on_after_any_failure(tmp_path):
    for name in "ab":
        (tmp_path / "source").mkdir(exist_ok=True)
        np.savez(tmp_path / "source" / f"{name}.npz", feat=np.ones((2, 4), np.float32))
    store = tmp_path / "work" / "store"
    points = list(
        every_point(lambda: pack_regions(tmp_path / "source", store, standardise=True, progress=False), store)
    )
    assert len(points) > 20


@pytest.mark.slow
def test_a_scored_set_is_the_old_one_or_the_new_one(tmp_path):
    folder, old, new = tmp_path / "work" / "set", scored(3), scored(5)

    def before():
        save_scored(old, folder)
        (folder / "notes.txt").write_text("kept")

    for _ in every_point(lambda: save_scored(new, folder), folder, before):
        if folder.exists():  # not between two renames, where the next call puts the old one back
            assert load_scored(folder)["text"][:] in (old["text"][:], new["text"][:])
    assert (folder / "notes.txt").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "webdataset"])
def test_buckets_are_the_old_ones_or_the_new_ones(tmp_path, format):
    folder = tmp_path / "work" / "buckets"

    def write(rows):
        save_bucketed(scored(rows), folder, 2, score_column="score", format=format, overwrite=True)

    for _ in every_point(lambda: write(6), folder, lambda: write(4)):
        if folder.exists():
            assert verify_bucketed(folder).num_rows in (4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scores", "report", "spectrum"])
def test_what_is_begun_is_finished_by_the_next_call(tmp_path, kind):
    folder = tmp_path / "work" / kind
    images, pipeline = labelled_scenes(4, 1), tiny_pipeline()
    data = Dataset.from_dict({"caption": [f"a dog {'and a cat ' * (row % 4)}" for row in range(30)]})
    options = {"prompts": "a {name}", "levels": (0.5,), "seeds": 2, "steps": 2, "part_images": 1}
    write = {
        "scores": lambda: add_scores_sharded(data, CaptionLength(), folder, part_rows=10, batch_size=10),
        "report": lambda: Report("Title").add_image("Image", images[0]["image"], name="image").write(folder),
        "spectrum": lambda: generate_spectrum(images, pipeline, folder=folder, **options),
    }[kind]
    assert len(list(every_point(write, folder, drafts=True))) > 4


def test_an_error_between_two_renames_puts_the_old_folder_back(tmp_path, monkeypatch):
    folder, replace = tmp_path / "set", os.replace
    save_scored(scored(3), folder)

    def refuse(source, target):
        if target == folder and "unfinished" in str(source):
            raise OSError("no space")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        save_scored(scored(5), folder)
    assert len(load_scored(folder)) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]

    def refuse_all(source, target):
        if target == folder:
            raise OSError("no space")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_all)
    with pytest.raises(OSError, match=r"set could not be replaced \(no space\)\. The old one is .*replaced-.*set"):
        save_scored(scored(5), folder)
    monkeypatch.undo()
    recover_folder(folder)
    assert len(load_scored(folder)) == 3


@contextmanager
def held_by_another(lock):
    """Another process has a lock, and is killed in the end."""
    there, told = os.pipe()
    process = os.fork()
    if process == 0:
        with lock_file(lock):
            os.write(told, b"x")
            signal.pause()
        os._exit(0)
    os.read(there, 1)
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def writers(folder):
    """What writes a folder, by the lock that it takes."""
    data, table = scored(4), lambda settings: {"eval_loss": 1.0}
    np.savez(folder / "a.npz", feat=np.ones((2, 4), np.float32))
    (folder / "source").mkdir()
    os.replace(folder / "a.npz", folder / "source" / "a.npz")
    vit = ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16))
    images = make_scenes(4, image_size=32, validation=0, test=0)["train"]
    processor, spectrum = make_image_processor(32), {"prompts": "a {name}", "levels": (0.5,), "seeds": 1, "steps": 2}
    return {
        ".set.lock": lambda: save_scored(data, folder / "set"),
        ".buckets.lock": lambda: save_bucketed(data, folder / "buckets", 2, score_column="score"),
        "store/.lock": lambda: pack_regions(folder / "source", folder / "store", progress=False),
        "features/.lock": lambda: cache_vision_features(vit, images, folder / "features", processor, progress=False),
        "study/_run.lock": lambda: Study(table, {"one": {}}, [0], folder / "study").run(),
        "parts/.0.lock": lambda: add_scores_sharded(images, CaptionLength(), folder / "parts"),
        "proposals/.0.lock": lambda: add_proposals(images, SelectiveSearch(min_size=8), folder=folder / "proposals"),
        "spectrum/.0.lock": lambda: generate_spectrum(
            labelled_scenes(4, 1), tiny_pipeline(), folder=folder / "spectrum", **spectrum
        ),
    }


@pytest.mark.slow
def test_a_second_writer_is_told_and_the_first_ones_death_frees_the_folder(tmp_path):
    for lock, write in writers(tmp_path).items():
        name = lock.split("/")[0].removeprefix(".").removesuffix(".lock")
        told = pytest.raises(
            RuntimeError, match=rf"Another (process writes|run trains into) .*{name} \(process \d+ on"
        )
        with held_by_another(tmp_path / lock), told:
            write()
        assert (tmp_path / lock).exists()
        write()
        assert not (tmp_path / lock).exists(), lock
