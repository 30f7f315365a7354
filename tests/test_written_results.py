"""Results that belong together: written all or none, through no link, and compared when they are read back."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from PIL import Image

from hf_curriculum import (
    IID,
    CaptionLength,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Study,
    add_scores,
    make_plan,
    save_bucketed,
    save_scored,
    save_scores,
    summarise,
)
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.tokenizer import train_wordpiece
from hf_curriculum.files import DamagedFileError, staged_folder, verify_together, write_together
from hf_curriculum.hub.space import write_space
from hf_curriculum.reporting.report import Report
from hf_curriculum.scenes.captions import write_scene_text
from hf_curriculum.studies.tables import StudyTable
from hf_curriculum.tasks.alignment import RetrievalSuite
from hf_curriculum.tasks.alignment.ontology.ontology import NounClass, Ontology
from hf_curriculum.tasks.alignment.ontology.review import write_review
from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
from hf_curriculum.tasks.alignment.retrieval.suite import read_ranks
from hf_curriculum.tasks.babylm.run import TaskResult, read_kept, write_kept
from hf_curriculum.tasks.babylm.suite import write_results
from hf_curriculum.tasks.captioning.suite import CaptionSuite, read_captions, write_captions
from tests.helpers.failing_files import failing_files, interrupted

PAIRS = Dataset.from_dict({"image_id": ["1", "2", "1", "2"], "caption": ["a dog runs", "a cat", "a red dog", "cats"]})
DOG = NounClass(
    "dog", "dog", "dog", pairs=3, joint=3, pmi=1.0, share=1.0, runner_up=None, commonest="dog", namesake="dog"
)
ONTOLOGY = Ontology((DOG,), {"dog": 3})


def scored(images):
    rows = {"caption": [f"a dog{' and a cat' * number}" for number in range(images)]}
    rows["image"] = [Image.new("RGB", (8, 8), (9 * number, 0, 0)) for number in range(images)]
    return add_scores(Dataset.from_dict({**rows, "image_id": list(map(str, range(images)))}), CaptionLength())


def report(folder, number):
    figure = Figure()
    figure.add_subplot().plot([0, number])
    Report(f"Title {number}").add_figure("Figure", figure, name="line").write(folder)


def study(folder, number):
    runs = Study(lambda given: {"eval_loss": given["rate"]}, {"a": {"rate": number}}, [0], folder.parent / "runs").runs
    runs[0].status, runs[0].result = "finished", {"eval_loss": float(number)}
    summarise(runs, ["eval_loss"]).write(folder)


def captions(folder, number):
    CaptionSuite(PAIRS, ["rouge"], name="ours")(["a dog runs", f"a cat {number}"]).write(folder)


def ranks(folder, number):
    scores = np.random.default_rng(number).standard_normal((4, 2))
    RetrievalSuite(PAIRS, name="ours", resamples=10)(ScoreMatrix(scores)).write(folder)


def benchmarks(folder, number):
    result = TaskResult("blimp", {"x": {"accuracy": number}}, {"accuracy": number}, {"x": {}}, {"x": 1})
    write_results(folder, {"blimp": result}, {}, {"suite": "babylm"}, f"a table {number}")


def space(folder, number):
    write_space(scored(3 + number), folder, title=f"Title {number}")


WRITERS = {each.__name__: each for each in (report, study, captions, ranks, benchmarks, space)}
MANIFESTS = {"study": "study.json", "captions": "results.json", "ranks": "results.json", "benchmarks": "results.json"}


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """Figures whose drawing takes no time."""
    monkeypatch.setattr(StudyTable, "figure", lambda table, metric, **_: table.rows[0].mean.value)
    monkeypatch.setattr("hf_curriculum.studies.tables.to_png", lambda value: f"a figure of {value}".encode())


def content(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_fails_leaves_the_former_results(name, tmp_path):
    write, folder = WRITERS[name], tmp_path / "out"
    write(tmp_path / "wanted", 2)
    wanted = content(tmp_path / "wanted")
    write(folder, 1)
    former = content(folder)
    with failing_files() as done:
        write(folder, 2)
    assert content(folder) == wanted != former
    for at in range(len(done)):
        if done[at] == "unlink":
            continue
        write(folder, 1)
        ended = interrupted(lambda: write(folder, 2), at, end=False)
        assert not ended or done[at] in ("link", "mkdir")  # a copy takes its place; the folder is there
        left = content(folder)
        if name == "space":  # thumbnails are called by what they hold; those of both may lie there
            left = {path: data for path, data in left.items() if path in former or ended}
        assert left == (wanted if ended else former), done[at]
        write(folder, 2)
        assert content(folder) == wanted


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_is_killed_leaves_results_that_are_whole_or_known_not_to_fit(name, tmp_path):
    write, folder = WRITERS[name], tmp_path / "out"
    write(folder, 1)
    former = content(folder)
    with failing_files() as done:
        write(folder, 2)
    wanted = content(folder)
    for at in (at for at, operation in enumerate(done) if operation == "replace"):
        write(folder, 1)
        assert not interrupted(lambda: write(folder, 2), at, end=True)
        left = {path: data for path, data in content(folder).items() if not path.rpartition("/")[2].startswith(".")}
        if name in MANIFESTS and left not in (former, wanted):
            with pytest.raises(DamagedFileError, match="holds something else than was written"):
                verify_together(folder / MANIFESTS[name], "Write it again.")
        if name == "space":
            shown = [image for score in json.loads(left["data.json"])["scores"] for *_, image in score["examples"]]
            assert {f"thumbnails/{image}" for image in shown} <= left.keys()
        write(folder, 2)
        assert content(folder) == wanted


def test_a_first_space_that_is_killed_is_finished_by_the_same_call(tmp_path):
    with failing_files() as done:
        space(tmp_path / "out", 1)
    wanted = content(tmp_path / "out")
    for at in (at for at, operation in enumerate(done) if operation == "replace"):
        folder = tmp_path / f"out{at}"
        assert not interrupted(lambda folder=folder: space(folder, 1), at, end=True)
        space(folder, 1)
        assert content(folder) == wanted


@pytest.mark.parametrize("name", WRITERS)
def test_links_that_others_plant_are_replaced_or_refused_and_those_of_the_user_are_followed(name, tmp_path):
    write, target = WRITERS[name], tmp_path / "elsewhere"
    write(tmp_path / "wanted", 1)
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    for path in content(tmp_path / "wanted"):
        (tmp_path / "scratch" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "scratch" / path).symlink_to(target / "thesis.txt")
    write(tmp_path / "out", 1)
    assert content(tmp_path / "out") == content(tmp_path / "wanted")
    assert not any(path.is_symlink() for path in (tmp_path / "scratch").rglob("*"))
    for folder in (path for path in (tmp_path / "wanted").iterdir() if path.is_dir()):
        planted = tmp_path / f"planted-{folder.name}"
        planted.mkdir()
        (planted / folder.name).symlink_to(target)
        with pytest.raises(ValueError, match=rf"{folder.name} is a link to .*elsewhere"):
            write(planted, 1)
    assert content(target) == {"thesis.txt": b"years of work"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_damage_of_results_is_found(name, tmp_path):
    WRITERS[name](tmp_path / "out", 1)
    manifest = tmp_path / "out" / MANIFESTS[name]
    verify_together(manifest, "")
    for path, whole in content(tmp_path / "out").items():
        file = tmp_path / "out" / path
        for damaged in (whole[:-3], bytes([*whole[:-5], whole[-5] ^ 1, *whole[-4:]])):
            file.write_bytes(damaged)
            with pytest.raises(DamagedFileError, match=rf"{file.name} .*Evaluate again\."):
                verify_together(manifest, "Evaluate again.")
        file.write_bytes(whole)
    verify_together(manifest, "")


@pytest.mark.parametrize(("write", "read", "name"), [(captions, read_captions, "captions.json"),
                                                     (ranks, read_ranks, "ranks.csv")])  # fmt: skip
def test_what_a_comparison_reads_is_what_the_evaluation_wrote(write, read, name, tmp_path):
    for number in (1, 4):
        write(tmp_path / str(number), number)
    first, other = tmp_path / "1" / name, tmp_path / "4" / name
    before, content = read(tmp_path / "1"), first.read_bytes()
    first.write_bytes(other.read_bytes())  # of another system
    for path in (first, first.parent):
        with pytest.raises(DamagedFileError, match=rf"{name} holds something else .* Evaluate the model again\."):
            read(path)
    first.write_bytes(content)
    results = first.parent / "results.json"
    results.write_text(results.read_text().replace("ours", "mine"))
    with pytest.raises(DamagedFileError, match=r"results\.json was damaged, or changed after it was written"):
        read(first)
    for text in ('{"CIDEr": 0.9}', "[]", "no JSON", None):  # another program's, which says nothing of our files
        results.unlink() if text is None else results.write_text(text)
        assert str(read(first)) == str(before)


def test_sets_of_difficulty_are_read_from_values_that_the_evaluation_wrote(tmp_path):
    CaptionSuite(PAIRS, ["bleu"], name="vanilla")(["a dog runs", "a cat"]).write(tmp_path / "vanilla")
    file = tmp_path / "vanilla" / "per_image.csv"
    file.write_text(file.read_text().replace("2,", "2,0", 1))
    with pytest.raises(DamagedFileError, match=r"per_image\.csv holds something else"):
        CaptionSuite(PAIRS, ["rouge"], difficulty=tmp_path / "vanilla")


def test_scores_of_a_benchmark_that_were_changed_are_made_again(tmp_path, caplog):
    file = tmp_path / "scores" / "blimp" / "x.json"
    write_kept(file, "a", {"0": [0.5]})
    assert read_kept(file, "a") == {"0": [0.5]}
    file.write_text(file.read_text().replace("0.5", "0.9"))
    assert read_kept(file, "a") is None
    assert "x.json is damaged: it is made again" in caplog.text
    (tmp_path / "scores").rename(tmp_path / "moved")
    (tmp_path / "scores").symlink_to(tmp_path / "moved")
    with pytest.raises(ValueError, match="scores is a link to"):
        write_kept(file, "a", {"0": [0.5]})


@pytest.mark.parametrize("write", [lambda file: write_captions(file, ["1"], ["a dog"]), ONTOLOGY.save,
                                   lambda file: write_review(ONTOLOGY, file)])  # fmt: skip
def test_files_that_the_user_names_may_lie_behind_links(write, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    write(tmp_path / "out" / "file.json")
    whole = (tmp_path / "scratch" / "file.json").read_bytes()
    (tmp_path / "scratch" / "file.json").unlink()
    (tmp_path / "mine").symlink_to(tmp_path / "scratch" / "file.json")
    write(tmp_path / "mine")
    assert (tmp_path / "mine").is_symlink()
    assert content(tmp_path / "scratch") == {"file.json": whole}


@pytest.mark.parametrize(
    "write",
    [
        lambda place: save_scored(scored(2), place),
        lambda place: save_scores(scored(2), place / "s.parquet"),
        lambda place: save_bucketed(scored(2), place, 2, score_column="caption_length"),
        lambda place: make_plan(IID(), scored(2), global_batch_size=1).export(place / "order.npy"),
        lambda place: report(place, 1),
        lambda place: write_space(scored(2), place, title="A title"),
        lambda place: write_captions(place, ["1"], ["a dog"]),
    ],
)
def test_links_that_lead_back_to_themselves_are_told(write, tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(ValueError, match=r"leads to the link .*, which leads back to itself"):
        write(tmp_path / "one")


def test_runs_are_written_behind_a_link_to_where_nothing_is_yet(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "scratch" / "runs")
    Study(lambda given: {"loss": 1.0}, {"a": {"rate": 1}}, [0], tmp_path / "runs").run()
    assert content(tmp_path / "scratch" / "runs").keys() >= {"a-seed0/result.json"}
    (tmp_path / "run").symlink_to(tmp_path / "scratch" / "run")
    CurriculumTrainer(torch.nn.Linear(1, 1), CurriculumTrainingArguments(str(tmp_path / "run"), report_to=[]))
    assert (tmp_path / "scratch" / "run").is_dir()


def test_text_of_scenes_is_written_through_no_link_and_only_where_it_differs(tmp_path):
    folder = write_scene_text(tmp_path / "text", 5)
    stamp, before = (folder / "scenes.dev").stat().st_mtime_ns, content(folder)
    (tmp_path / "thesis.txt").write_text("years of work")
    (folder / "scenes.train").unlink()
    (folder / "scenes.train").symlink_to(tmp_path / "thesis.txt")
    write_scene_text(folder, 5)
    assert (content(folder), (folder / "scenes.dev").stat().st_mtime_ns) == (before, stamp)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


# ---- Files of other libraries ----


def test_a_processor_is_saved_through_no_link_and_beside_what_lies_there(tmp_path):
    processor = CaptionProcessor(None, train_wordpiece(["a dog runs", "a cat"], layout="compact"))
    processor.save_pretrained(tmp_path / "wanted")
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("the model's")
    for path in content(tmp_path / "wanted"):
        (tmp_path / "model" / path).symlink_to(tmp_path / "thesis.txt")
    processor.save_pretrained(tmp_path / "model")
    assert content(tmp_path / "model") == {**content(tmp_path / "wanted"), "config.json": b"the model's"}
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_staged_folder_that_fails_or_is_killed_leaves_what_was_there(tmp_path):
    folder = tmp_path / "out"

    def write(text):
        with staged_folder(folder) as staging:
            (staging / "sub").mkdir()
            (staging / "sub" / "b").write_text(text)
            (staging / "a").write_text(text)

    write("former")
    (folder / "notes").write_text("mine")
    with failing_files() as done:
        write("new")
    assert content(folder) == {"a": b"new", "notes": b"mine", "sub/b": b"new"}
    for at in (at for at, operation in enumerate(done) if operation not in ("unlink", "rmdir")):
        write("former")
        text = b"new" if interrupted(lambda: write("new"), at, end=False) else b"former"
        assert content(folder) == {"a": text, "notes": b"mine", "sub/b": text}, done[at]
    write("former")
    child = os.fork()
    if child == 0:
        with staged_folder(folder) as staging:
            (staging / "a").write_text("half")
            os._exit(9)
    os.waitpid(child, 0)
    assert content(folder)["a"] == b"former"
    write("new")
    assert content(folder) == {"a": b"new", "notes": b"mine", "sub/b": b"new"}


def test_a_manifest_names_files_that_are_there(tmp_path):
    write_together(tmp_path, {"a.txt": "a", "figures/b.png": b"b"}, "facts.json", {"n": 1})
    assert verify_together(tmp_path / "facts.json", "")["n"] == 1
    (tmp_path / "figures" / "b.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"does not exist\. Write it again\..*b\.png"):
        verify_together(tmp_path / "facts.json", "Write it again.")
