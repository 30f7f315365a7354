"""The filter: exactly the threshold stays, what goes is listed with its reason, and nothing is emptied unnoticed."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum import CaptionLength, CLIPSimilarity
from hf_curriculum.provenance import append_columns, read_provenance
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.tasks.long_tail import filter_spectrum

# a row: level, class, score
ROWS = [(0.1, 0, 0.30), (0.1, 0, 0.2999999), (0.1, 1, 0.45), (0.5, 0, 0.31), (0.5, 1, float("nan")), (0.5, 1, 0.1)]


class Grey(Scorer):
    """Reads a score that the image's eight pixels hold as the bytes of a float64; and remembers the texts."""

    columns, name, easy = ("image", "caption"), "similarity", "high"
    image_column, caption_column = "image", "caption"
    texts: tuple[str, ...] = ()
    batches = 0

    def score(self, batch, rank):
        Grey.texts += tuple(batch["caption"])
        Grey.batches += 1
        return np.array([np.frombuffer(np.asarray(image)[0, :, 0].tobytes())[0] for image in batch["image"]])


def holding(score):
    """An image of 8 × 1 grey pixels that holds a number."""
    content = np.frombuffer(np.float64(score).tobytes(), np.uint8)
    return Image.fromarray(np.repeat(content[None, :, None], 3, axis=2))


def spectrum(rows=ROWS):
    features = Features(
        {
            "image": ImageFeature(),
            "label": ClassLabel(names=["owl", "fox"]),
            "image_id": Value("string"),
            "guidance": Value("float32"),
            "hard": Value("bool"),
            "source_id": Value("string"),
            "seed": Value("int64"),
            "prompt": Value("string"),
        }
    )
    columns = {
        "image": [holding(score) for _, _, score in rows],
        "label": [label for _, label, _ in rows],
        "image_id": [f"image {number}" for number in range(len(rows))],
        "guidance": [level for level, _, _ in rows],
        "hard": [True] * len(rows),
        "source_id": [f"source {number % 2}" for number in range(len(rows))],
        "seed": list(range(len(rows))),
        "prompt": [f"prompt {number}" for number in range(len(rows))],
    }
    return Dataset.from_dict(columns, features=features)


def test_damaged_scores_are_made_again_from_their_parts(tmp_path):
    kept = filter_spectrum(spectrum(), Grey(), at_least=0.30, folder=tmp_path)["similarity"][:]
    (file,) = tmp_path.glob("scores-*.npy")
    whole, batches = file.read_bytes(), Grey.batches
    for place in (0, 130, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        assert filter_spectrum(spectrum(), Grey(), at_least=0.30, folder=tmp_path)["similarity"][:] == kept
        assert file.read_bytes() == whole
    assert Grey.batches == batches


def test_exactly_the_threshold_is_kept_and_the_rest_is_listed(tmp_path, caplog):
    Grey.texts = ()
    with caplog.at_level(logging.INFO, "hf_curriculum.tasks.long_tail.generation"):
        kept = filter_spectrum(spectrum(), Grey(), at_least=0.30, folder=tmp_path)
    assert kept["seed"][:] == [0, 2, 3]
    assert kept["similarity"][:] == [np.float32(0.30), np.float32(0.45), np.float32(0.31)]
    assert read_provenance(kept)["similarity"].scorer.endswith("Grey")
    assert set(Grey.texts) == {f"prompt {number}" for number in range(6)}
    assert caplog.messages[-1].splitlines() == [
        *("| of | kept | dropped |", "| --- | --- | --- |", "| level 0.1 | 2 | 1 |", "| level 0.5 | 1 | 2 |"),
        *("| fox | 1 | 2 |", "| owl | 2 | 1 |", "| all | 3 | 3 |"),
    ]
    dropped = pyarrow.parquet.read_table(tmp_path / "dropped.parquet")
    assert "image" not in dropped.column_names
    found = [(row["seed"], row["reason"]) for row in dropped.to_pylist()]
    assert found == [(1, "below 0.3"), (4, "no score"), (5, "below 0.3")]
    assert dropped["similarity"].to_pylist()[::2] == [np.float32(0.2999999), np.float32(0.1)]


def test_the_prompt_of_the_filter_may_be_another(tmp_path):
    Grey.texts = ()
    filter_spectrum(spectrum(), Grey(), at_least=0.3, prompt="a photo of {label}", folder=tmp_path)
    assert set(Grey.texts) == {"a photo of owl", "a photo of fox"}


def test_scores_are_kept_and_made_again_when_the_images_change(tmp_path):
    Grey.batches = 0
    options = {"at_least": 0.2, "folder": tmp_path, "part_rows": 2}
    filter_spectrum(spectrum(), Grey(), **options)
    assert Grey.batches == 3
    assert len(filter_spectrum(spectrum(), Grey(), **{**options, "at_least": 0.3})) == 3
    assert Grey.batches == 3
    next(tmp_path.glob("scores-*.npy")).unlink()  # a run that was killed before its end
    next(tmp_path.glob("parts-*/all/*/part-00001*")).unlink()
    filter_spectrum(spectrum(), Grey(), **options)
    assert Grey.batches == 4
    filter_spectrum(spectrum(), Grey(), **options, prompt="a photo of {label}")
    assert Grey.batches == 7


def test_another_process_reads_the_scores_and_writes_no_table(tmp_path, monkeypatch, caplog):
    filter_spectrum(spectrum(), Grey(), at_least=0.3, folder=tmp_path)
    (tmp_path / "dropped.parquet").unlink()
    caplog.clear()  # the first process's lines, where a test before has left the level so
    monkeypatch.setattr("hf_curriculum.tasks.long_tail.generation.filter.launched", lambda: (1, 2))
    with caplog.at_level(logging.INFO):
        again = filter_spectrum(spectrum(), Grey(), at_least=0.3, folder=tmp_path)
    assert again["seed"][:] == [0, 2, 3]
    assert not (tmp_path / "dropped.parquet").exists()
    assert not [
        record for record in caplog.records if record.name == "hf_curriculum.tasks.long_tail.generation.filter"
    ]


def test_scores_are_made_in_parts_and_batches_that_fit_them(tmp_path, monkeypatch):
    given = []

    def scored(data, scorer, folder, **options):
        given.append(options)
        return data.add_column(scorer.name, np.float32([0.5] * len(data)))

    def appended(*columns, **options):
        given.append(options)
        return append_columns(*columns, **options)

    monkeypatch.setattr("hf_curriculum.tasks.long_tail.generation.filter.add_scores_sharded", scored)
    monkeypatch.setattr("hf_curriculum.tasks.long_tail.generation.filter.append_columns", appended)
    for folder, options in (("few", {"part_rows": 2}), ("many", {})):
        kept = filter_spectrum(spectrum(), Grey(), at_least=0.5, folder=tmp_path / folder, **options)
        assert len(kept) == 6
        assert pyarrow.parquet.read_table(tmp_path / folder / "dropped.parquet").shape == (0, 9)
    texts, made = {"features": {"caption": Value("string")}}, {"read": {"similarity": ["prompt"]}, "overwrite": True}
    few, many = {"part_rows": 2, "batch_size": 2}, {"part_rows": 1000, "batch_size": 250}
    assert given == [texts, few, made, texts, many, made]
    again = filter_spectrum(kept, Grey(), at_least=0.4, folder=tmp_path / "again")
    assert again.column_names == kept.column_names


def test_another_scorer_does_not_read_the_scores_of_the_first(tmp_path):
    class Darker(Grey):
        def score(self, batch, rank):
            return super().score(batch, rank) - 0.1

    assert filter_spectrum(spectrum(), Grey(), at_least=0.3, folder=tmp_path)["seed"][:] == [0, 2, 3]
    kept = filter_spectrum(spectrum(), Darker(), at_least=0.3, folder=tmp_path, allow_empty=True)
    assert kept["seed"][:] == [2]


def test_clip_judges_images_as_it_does_elsewhere(tmp_path):
    from spectrum_data import labelled_scenes

    scenes = labelled_scenes(6, 6, size=32)
    data = scenes.add_column("guidance", [0.5] * 6).add_column("source_id", scenes["image_id"][:])
    data = data.add_column("seed", [0] * 6).add_column("prompt", [f"a {name}" for name in scenes["name"][:]])
    kept = filter_spectrum(data, CLIPSimilarity(), at_least=-1, folder=tmp_path)
    wanted = CLIPSimilarity()({"image": data["image"][:], "caption": data["prompt"][:]})["clip_similarity"]
    np.testing.assert_allclose(kept["clip_similarity"][:], wanted, atol=1e-5)


def test_what_is_emptied_is_named(tmp_path, caplog):
    with pytest.raises(ValueError, match=r"No image is left of class 'fox': .* highest is 0\.5 of all 2"):
        filter_spectrum(spectrum([(0.1, 0, 0.5), (0.1, 1, 0.4)]), Grey(), at_least=0.46, folder=tmp_path / "class")
    rows = [(0.1, 0, 0.5), (0.5, 0, 0.4)]
    with pytest.raises(ValueError, match=r"No image is left of level 0\.5.*to a recipe .*--allow_empty true"):
        filter_spectrum(spectrum(rows), Grey(), at_least=0.46, folder=tmp_path / "level")
    kept = filter_spectrum(spectrum(rows), Grey(), at_least=0.46, folder=tmp_path / "level", allow_empty=True)
    assert len(kept) == 1
    assert caplog.messages[-1] == "No image is left of level 0.5."
    rows += [(0.9, 1, 0.1), (0.1, 1, 0.1)]
    with pytest.raises(ValueError, match=r"^No image is left of level 0\.5 nor of level 0\.9 nor of class 'fox': "):
        filter_spectrum(spectrum(rows), Grey(), at_least=0.46, folder=tmp_path / "several")
    with pytest.raises(ValueError, match=r"the highest is no number of all 2 images"):
        filter_spectrum(spectrum([(0.1, 0, np.nan)] * 2), Grey(), at_least=0.46, folder=tmp_path / "nan")
    with pytest.raises(ValueError, match=r"No image is left of any level: .*allow_empty=True"):
        filter_spectrum(spectrum(), Grey(), at_least=0.9, folder=tmp_path / "all", allow_empty=True)
    assert pyarrow.parquet.read_table(tmp_path / "all" / "dropped.parquet").num_rows == 6


def test_what_cannot_be_filtered(tmp_path):
    with pytest.raises(ValueError, match=r"CaptionLength.* was given to compare"):
        filter_spectrum(spectrum(), CaptionLength(), at_least=1, folder=tmp_path)
    with pytest.raises(ValueError, match=r"`prompt` is not in the data.*generate_spectrum"):
        filter_spectrum(spectrum().remove_columns("prompt"), Grey(), at_least=1, folder=tmp_path)
    with pytest.raises(ValueError, match=r"1 rows are real images"):
        filter_spectrum(spectrum([(1.0, 0, 0.5), (0.5, 0, 0.5)]), Grey(), at_least=0, folder=tmp_path)
    with pytest.raises(ValueError, match=r"in memory alone.*Pass `folder=`"):
        filter_spectrum(spectrum(), Grey(), at_least=0)


def test_beside_the_spectrums_own_files_by_default(tmp_path):
    spectrum().save_to_disk(str(tmp_path / "spectrum"))
    from datasets import load_from_disk

    loaded = load_from_disk(str(tmp_path / "spectrum"))
    assert len(filter_spectrum(loaded, Grey(), at_least=0.3)) == 3
    assert (tmp_path / "spectrum" / "filter" / "dropped.parquet").exists()
    shutil.rmtree(tmp_path / "spectrum")


def test_a_process_waits_for_the_one_that_writes_the_scores(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_curriculum.tasks.long_tail.generation.filter.launched", lambda: (1, 2))
    with pytest.raises(TimeoutError, match=r"1 of 1 files are missing in .*the first of them scores-"):
        filter_spectrum(spectrum(), Grey(), at_least=0.3, folder=tmp_path, timeout=0.1)


PROGRAM = """
import os, signal, sys
sys.path[:0] = {helpers!r}
import numpy as np
from test_filter import Grey, spectrum
from hf_curriculum.tasks.long_tail import filter_spectrum

after, calls = int(sys.argv[2]), []
class Killed(Grey):
    def score(self, batch, rank):
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score(batch, rank)
Killed.__name__ = "Grey"
kept = filter_spectrum(spectrum(), Killed(), at_least=0.3, folder=sys.argv[1], part_rows=2, timeout=60)
print(len(calls), *kept["seed"][:])
"""


@pytest.mark.slow
def test_killed_and_ended_by_two_processes_the_same_rows(launch, tmp_path):
    from pathlib import Path

    file = tmp_path / "judge.py"
    file.write_text(PROGRAM.format(helpers=[str(Path(__file__).parent)]))
    assert launch(file, tmp_path / "killed", 2, check=False).returncode == -9
    both = launch(file, tmp_path / "killed", -1, processes=2).stdout.splitlines()
    assert sorted(line.split()[1:] for line in both) == [["0", "2", "3"]] * 2
    assert sum(int(line.split()[0]) for line in both) == 2
