import csv
import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from hf_curriculum.scenes.vocabulary import COLOURS, object_nouns
from hf_curriculum.tasks.babylm import BENCHMARKS, make_miniature_benchmarks
from hf_curriculum.tasks.babylm import miniature as miniature_module
from hf_curriculum.tasks.babylm.glue import GLUE


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_arguments_make_the_same_files(tmp_path):
    first, again, other = (
        digest(make_miniature_benchmarks(tmp_path / str(at), seed=seed, size=4, image_size=32))
        for at, seed in enumerate((0, 0, 1))
    )
    assert first == again
    changed = {name for name, value in first.items() if other.get(name) != value}
    assert "blimp_filtered/determiner_noun_agreement_1.jsonl" in changed
    assert "MINIATURE.txt" not in changed
    (tmp_path / "0" / "blimp_filtered" / "determiner_noun_agreement_1.jsonl").write_text("{}")
    assert digest(make_miniature_benchmarks(tmp_path / "0", seed=0, size=4, image_size=32)) == first


def test_the_files_are_fixed_for_good(tmp_path):
    """Written out: other items would be scored under the name of those that were published."""
    folder = make_miniature_benchmarks(tmp_path, size=4, image_size=16)
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.suffix == ".npy":
            content = np.load(file).round(6).tobytes()
        elif file.suffix in (".png", ".jpg"):
            content = np.asarray(Image.open(file)).tobytes()
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + content)
    assert digest.hexdigest() == "8a6e54db8fba5c382125e6cae6088abe610ede2c3b6f118e7213e898fdef3c17"


def test_a_kill_leaves_no_folder_that_looks_whole(tmp_path, monkeypatch):
    folder = make_miniature_benchmarks(tmp_path / "data", size=4, image_size=32)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def dies(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(miniature_module, "write_devbench", dies)
    with pytest.raises(KeyboardInterrupt):
        make_miniature_benchmarks(folder, seed=1, size=4, image_size=32)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(KeyboardInterrupt):
        make_miniature_benchmarks(tmp_path / "new", size=4, image_size=32)
    assert list((tmp_path / "new").iterdir()) == []


def test_every_benchmark_is_there(miniature):
    assert {path.name for path in miniature.iterdir()} == {
        "MINIATURE.txt",
        *(benchmark.folder for benchmark in BENCHMARKS.values()),
    }
    assert {path.name for path in (miniature / "glue_filtered").iterdir()} == {
        f"{task}.{part}.jsonl" for task in GLUE for part in ("train", "valid")
    }


def test_pairs_differ_and_speak_of_the_scenes(miniature):
    for file in [*(miniature / "blimp_filtered").iterdir(), *(miniature / "supplement_filtered").iterdir()]:
        for line in file.open():
            row = json.loads(line)
            assert row["sentence_good"] != row["sentence_bad"]
            assert object_nouns(row["sentence_good"])


def test_questions_have_seven_distractors_and_a_image(miniature):
    questions = json.loads((miniature / "vqa_filtered" / "vqa_distractors_info.json").read_text())
    for question in questions:
        assert sorted([question["target_ans"], *question["distractors"]]) == sorted(COLOURS)
        file = miniature / "vqa_filtered" / "images" / f"COCO_val2014_{question['image_id']:012d}.jpg"
        assert Image.open(file).size == (32, 32)


def test_peoples_shares_sum_to_one(miniature):
    for task in ("lex-viz_vocab", "gram-trog"):
        with (miniature / "devbench" / "evals" / task / "human.csv").open() as stream:
            for row in csv.DictReader(stream):
                assert sum(float(row[f"image{at}"]) for at in range(1, 5)) == pytest.approx(1, abs=1e-9)


def test_labels_take_turns(miniature):
    for task in GLUE:
        labels = [json.loads(line)["label"] for line in (miniature / "glue_filtered" / f"{task}.train.jsonl").open()]
        counts = [labels.count(label) for label in sorted(set(labels))]
        assert max(counts) - min(counts) <= 1
        assert len(counts) == (3 if task.startswith("mnli") else 2)


@pytest.mark.parametrize("options", [{"size": 3}, {"size": 5}, {"size": 2}, {"seed": -1}])
def test_arguments_that_make_no_benchmark(options, tmp_path):
    with pytest.raises(ValueError, match="Items come in pairs"):
        make_miniature_benchmarks(tmp_path, **options)
