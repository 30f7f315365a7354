"""A damaged file is told in one sentence that names it, or read as what was written."""

import base64
import json
import os
import traceback
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import Dataset

import hf_curriculum
from hf_curriculum import BucketedStream, Phases, SelfPaced, load_scored, make_plan, save_bucketed, save_scored
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import FACTS, FORMAT, RegionStore, read_facts
from hf_curriculum.files import write_sealed
from hf_curriculum.parts import PartFolder
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.streaming.index import BucketIndex, verify_bucketed
from hf_curriculum.studies.study import RESULT_FILE, StudyRun
from hf_curriculum.training.checkpoints import read_curriculum, read_training_losses, resume_plan, write_curriculum

OURS = str(Path(hf_curriculum.__file__).parent)


def readers(folder):
    """Each JSON file, and what reads it."""
    data = Dataset.from_dict({"text": ["a", "b"], "score": [0.0, 1.0]})
    data = attach_provenance(data, {"score": ScoreProvenance("score", "CaptionLength", {}, easy="low")})
    save_scored(data, folder / "set")
    save_bucketed(data, folder / "buckets", 2, score_column="score")
    PartFolder(folder / "parts", {"scorer": "x"}, rows=2, step=1)
    write_sealed(folder / FACTS, {"format": FORMAT})
    run = StudyRun("a", 0, {}, "key", folder)
    run.write()
    return {
        folder / "set" / "scores.json": lambda: load_scored(folder / "set"),
        folder / "buckets" / "buckets.json": lambda: BucketIndex.read(folder / "buckets"),
        folder / "parts" / "run.json": lambda: PartFolder(folder / "parts", {"scorer": "x"}, rows=2, step=1),
        folder / FACTS: lambda: read_facts(folder),
        folder / RESULT_FILE: run.read,
    }


def test_json_files_cut_off_or_of_another_kind(tmp_path):
    for file, read in readers(tmp_path).items():
        whole = file.read_bytes()
        read()
        for damaged in (b"", whole[: len(whole) // 2], b"\xff" + whole[1:], b"[]", b"[" * 100_000):
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{file.name} is (damaged \(|not a)"):
                read()
        file.write_bytes(whole)


def test_keys_that_a_json_file_lacks(tmp_path):
    found = readers(tmp_path)
    for name, key in (("buckets.json", "buckets"), (FACTS, "seal"), (RESULT_FILE, "key")):
        file = next(file for file in found if file.name == name)
        content = json.loads(file.read_text())
        del content[key]
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"{name} is damaged \(KeyError: '{key}'\)"):
            found[file]()


@pytest.mark.slow
def test_flipped_bits_of_json_files(tmp_path):
    random = np.random.default_rng(8)
    for file, read in readers(tmp_path).items():
        whole = bytearray(file.read_bytes())
        for place in random.integers(8 * len(whole), size=200):
            damaged = whole.copy()
            damaged[place // 8] ^= 1 << (place % 8)
            file.write_bytes(damaged)
            error = None
            try:
                read()
            except (ValueError, OSError) as raised:
                error = raised
            assert not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)), (file.name, place, error)
        file.write_bytes(whole)


def make_store(folder):
    (folder / "sources").mkdir()
    for number, name in enumerate("abc"):
        features = np.random.default_rng(number).normal(size=(3, 4)).astype(np.float32)
        np.savez(
            folder / "sources" / f"{name}.npz", feat=features, boxes=np.tile([0, 0, 9, 9], (3, 1)), width=20, height=20
        )
    return pack_regions(folder / "sources", folder / "store", standardise=True, dtype="float32", progress=False)


def test_a_store_that_holds_something_else_than_was_written_is_told(tmp_path):
    make_store(tmp_path).verify()
    for name, change in (
        ("features", lambda values: values + 1),
        ("boxes", lambda values: values + 1),
        ("ids", lambda values: values ^ 1),
        ("sizes", lambda values: values + 1),
        ("flags", lambda values: values ^ 1),
        ("digests", lambda values: values + 1),
        ("standardise", lambda values: values + 1),
        ("rows", lambda values: values[::-1]),
        ("keys", lambda values: values[::-1]),
        ("offsets", lambda values: values + 1),
    ):
        file = tmp_path / "store" / f"{name}.npy"
        whole = file.read_bytes()
        np.save(file, change(np.load(file)))
        with pytest.raises(ValueError, match=rf"{name}\.npy holds something else than was written"):
            RegionStore(tmp_path / "store").verify()
        file.write_bytes(whole)


def test_damaged_data_beside_its_scores_is_told(tmp_path):
    readers(tmp_path)
    file = next((tmp_path / "set").glob("*.arrow"))
    for content in (file.read_bytes()[:-600], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file.name} is (damaged|missing).*Copy the folder again"):
            load_scored(tmp_path / "set")


def test_damaged_shards_are_told_while_they_are_read(tmp_path):
    data = Dataset.from_dict({"text": [f"a dog {n}" for n in range(40)], "score": np.arange(40.0)})
    data = attach_provenance(data, {"score": ScoreProvenance("score", "CaptionLength", {}, easy="low")})
    save_bucketed(data, tmp_path / "out", 1, score_column="score")
    file = next((tmp_path / "out").glob("bucket_0/*.parquet"))
    whole = file.read_bytes()
    text = whole.index(b"a dog ") + 3  # which another letter makes another text
    for place, partly in (
        (text, r"is damaged \(\w+: "),
        (len(whole) - 1, "ends with another footer than was written"),
    ):
        damaged = bytearray(whole)
        damaged[place] ^= 1  # in a page, of which its checksum tells where some columns are read, and at the end
        file.write_bytes(damaged)
        for columns, what in ((None, "holds something else than was written"), (["text"], partly)):
            with pytest.raises(ValueError, match=rf"{file.name} {what}.*run `save_bucketed` again"):
                list(BucketedStream(tmp_path / "out", Phases(1), global_batch_size=4, columns=columns))
    file.unlink()
    with pytest.raises(FileNotFoundError):
        list(BucketedStream(tmp_path / "out", Phases(1), global_batch_size=4))


def test_arrays_of_a_checkpoint_are_those_that_were_written(tmp_path):
    plan = make_plan(Phases(2, easy="low"), np.arange(8.0), global_batch_size=2)
    write_curriculum(tmp_path, plan, 1.0, step=0, training_losses=np.arange(8))
    file = tmp_path / "curriculum_training_losses.npy"
    read_curriculum(tmp_path)
    np.save(file, np.arange(8)[::-1])
    with pytest.raises(ValueError, match=r"training_losses\.npy holds something else than was written"):
        read_training_losses(tmp_path)


# ---- Any byte of any file, in processes of their own, because a damaged memory map may end one ----

WITHOUT_CHECKSUM = {"sources": ".npz", "h5": ".h5", "tsv": ".tsv"}
"""Kind → ending of files in which another library keeps something without a digest, so that another bit is another
content: the values of an HDF5 or base64 file, and the names in an archive's directory, such as that of an
optional array."""
SEED, COUNT = (int(part) for part in os.environ.get("HF_CURRICULUM_DAMAGE", "8:20").split(":"))
"""Which damages, and how many of each kind of file."""


def kinds(folder):
    """Kind of file → what reads its folder, and gives all that is in it."""
    rng = np.random.default_rng(0)
    data = Dataset.from_dict({"text": [f"a dog {n} é" for n in range(40)], "score": rng.normal(size=40).round(3)})
    data = attach_provenance(data, {"score": ScoreProvenance("score", "CaptionLength", {}, easy="low")})
    save_scored(data, folder / "set")
    for format in ("parquet", "webdataset"):
        save_bucketed(data, folder / format, 2, score_column="score", format=format)
    make_store(folder)
    boxes, features = np.tile(np.float32([0, 0, 9, 9]), (3, 1)), rng.normal(size=(3, 16)).astype(np.float32)
    (folder / "h5").mkdir()
    with h5py.File(folder / "h5" / "x.h5", "w") as file:
        for name in "abc":
            file[f"{name}/boxes"], file[f"{name}/features"] = boxes, features
    (folder / "tsv").mkdir()
    encoded = "\t".join(base64.b64encode(values.tobytes()).decode() for values in (boxes, features))
    (folder / "tsv" / "x.tsv").write_text("".join(f"{name}\t20\t20\t3\t{encoded}\n" for name in "123"))
    parts = PartFolder(folder / "parts", {"scorer": "x"}, rows=40, step=20)
    for part in range(2):
        parts.write(part, {"score": np.arange(20.0)})
    plan = make_plan(SelfPaced(epochs=3, warmup_epochs=0), rng.normal(size=30), global_batch_size=4)
    plan = plan.decided(Observed(0, {}, rng.random(30).astype(np.float32)))
    write_curriculum(folder / "checkpoint", plan, 1.0, step=0, training_losses=np.arange(30))

    def checkpoint():
        saved = read_curriculum(folder / "checkpoint")
        again = resume_plan(saved, plan.with_log(()), folder / "checkpoint")
        return again.rows(0, again.known_samples).tolist(), read_training_losses(folder / "checkpoint").tolist()

    def streamed(name):
        verify_bucketed(folder / name)
        return list(BucketedStream(folder / name, Phases(2), global_batch_size=4))

    def regions(opened):
        return [(name, {key: np.asarray(value).tolist() for key, value in vars(opened[name]).items()})
                for name in sorted(opened)]  # fmt: skip

    return {
        "set": lambda: load_scored(folder / "set").to_dict(),
        "parquet": lambda: streamed("parquet"),
        "webdataset": lambda: streamed("webdataset"),
        "sources": lambda: regions(open_regions(folder / "sources")),
        "h5": lambda: regions(open_regions(folder / "h5" / "x.h5")),
        "tsv": lambda: regions(open_regions(folder / "tsv" / "x.tsv")),
        "store": lambda: regions(RegionStore(folder / "store")),
        "parts": lambda: PartFolder(folder / "parts", {"scorer": "x"}, rows=40, step=20).read_all(1).to_pydict(),
        "checkpoint": checkpoint,
    }


def damaged(content, rng):
    """The content with a bit flipped, a byte replaced, or its end lost."""
    place, kind = rng.integers(len(content)), rng.integers(4)
    if kind == 0:
        return content[:place]
    changed = bytearray(content)
    changed[place] = changed[place] ^ (1 << rng.integers(8)) if kind < 3 else rng.integers(256)
    return bytes(changed)


def outcome(read, wanted):
    """What comes of reading, in a process of its own: "equal", "told", or what went wrong."""
    there, told = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(there)
        try:
            found = "equal" if repr(read()) == wanted else "ANOTHER RESULT"
        except (ValueError, OSError) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            found = "told" if OURS in frame.filename and len(str(error)) > 40 else f"RAW {error!r} in {frame.filename}"
        except BaseException as error:
            found = f"RAW {error!r}"
        os.write(told, found[:300].encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(there, "rb") as pipe:
        found = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return found or f"CRASH {status}"


@pytest.mark.slow
def test_any_damage_of_any_file_is_told_or_changes_nothing(tmp_path):
    counts, wrong = Counter(), []
    for number, (kind, read) in enumerate(kinds(tmp_path).items()):
        rng = np.random.default_rng([SEED, number])
        wanted = repr(read())
        files = sorted(file for file in (tmp_path / kind).rglob("*") if file.is_file() and file.stat().st_size)
        for turn in range(COUNT):
            file = files[turn % len(files)]
            whole = file.read_bytes()
            file.write_bytes(damaged(whole, rng))
            found = outcome(read, wanted)
            file.write_bytes(whole)
            right = ("equal", "told", *(["ANOTHER RESULT"] if file.suffix == WITHOUT_CHECKSUM.get(kind) else []))
            counts[kind, found if found in right else "wrong"] += 1
            if found not in right:
                wrong.append((kind, file.name, turn, found))
    print(dict(counts))
    assert not wrong, "\n".join(map(str, wrong))
