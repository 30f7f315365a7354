"""What `faults.py`, `damage.py` and `sharing.py` of `recipes/benchmarks` do to files, and what they say of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "benchmarks"))
import damage
import faults
import sharing
import written


def refuse(kind, text):
    def work():
        raise kind(text)

    return faults.outcome(work)


def test_errors_in_words_name_a_file_and_a_remedy(tmp_path):
    file = tmp_path / "scores.json"
    for kind, text, quality in (
        (ValueError, f"{file} is damaged: it ends too early. Delete it and run `score` again.", "refused"),
        (ValueError, "It is damaged and ends too early. Delete it and run `score` again.", "bare"),
        (OSError, f"[Errno 28] No space left on device: '{file}'", "bare"),
        (KeyError, f"{file} is damaged: it ends too early. Delete it and run `score` again.", "raw"),
        (json.JSONDecodeError, None, "raw"),
        (SystemExit, "1", "bare"),
    ):
        answer = refuse(kind, text) if text else faults.outcome(lambda: json.loads("{"))
        assert answer.quality(tmp_path) == quality, text
    assert faults.Answer(None, "hang").quality(tmp_path) == "raw"


def test_calls_in_a_process_of_their_own():
    assert faults.forked(lambda: 1) == faults.outcome(lambda: 1)
    assert faults.forked(lambda: 1) != faults.forked(lambda: 2)
    assert faults.forked(lambda: 1 / 0).error == "builtins.ZeroDivisionError"
    assert faults.forked(lambda: __import__("os").abort()) == faults.Answer(None, "signal", "-6")
    assert faults.forked(lambda: __import__("time").sleep(60), 0.1).error == "hang"


def test_the_table_counts_the_worst_first():
    trials = [
        {"name": "a", "kind": "kill", "label": label, "where": "", "text": "why"} for label in ("ok", "lost", "ok")
    ]
    assert faults.counted(Counter(["ok", "lost", "ok"]), faults.ORDER) == "1 lost, 2 ok"
    lines = faults.table(trials, ["kill", "read-only"], faults.ORDER).splitlines()
    assert lines[2:] == ["| a | 1 lost, 2 ok | – |", "| **all** | 1 lost, 2 ok | – |"]
    assert faults.details(trials, faults.ORDER, ("ok",)) == "lost ×1 · a · kill ·  · why\n"


def test_damages_change_a_file_and_swaps_exchange_two(tmp_path):
    files = [tmp_path / name for name in ("a.json", "b.json", "c.npy")]
    for file in files:
        file.write_bytes(file.name.encode() * 9)
    drawn = [[*damage.damages(files, 30, np.random.default_rng(seed))] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert Counter(column for column, _, _ in drawn[0])["damages"] > 20
    for column, _, contents in drawn[0]:
        before = sorted(file.read_bytes() for file in contents)
        assert (sorted(contents.values()) == before) == (column == "swaps")
        assert all(file.read_bytes() != content for file, content in contents.items())


@pytest.mark.parametrize("name", sharing.SCHEDULES)
def test_schedules_are_of_the_seed(name):
    made = [sharing.schedule(name, 2.0, np.random.default_rng(seed)) for seed in range(20)]
    assert made == [sharing.schedule(name, 2.0, np.random.default_rng(seed)) for seed in range(20)]
    assert all(2 <= len(processes) <= 3 and processes[0].setting == 0 for processes in made)
    assert {processes[1].setting for processes in made} == {int("other" in name)}
    assert {processes[0].killed is not None for processes in made} == {"killed" in name}
    assert all(process.starts <= 2.05 for processes in made for process in processes)


def judged(tmp_path, results, *, replaces=False, files="A"):
    """What is said of processes that asked for A (0) or B (1), with the file that is there in the end."""
    (tmp_path / "x").mkdir()
    runs = sharing.Runs(tmp_path / "x")
    runs.bench.reset(False)
    (runs.bench.out / "file").write_text(files)
    job = sharing.Job("job", lambda out, v: None, lambda out: (out / "file").read_text(), replaces)
    wanted = [faults.outcome(lambda: "A").value, faults.outcome(lambda: "B").value]
    answers = [
        {"setting": setting, "answer": faults.asdict(error or faults.Answer("done"))} for setting, error in results
    ]
    return runs.judged(job, answers, wanted, None, {"file"})[0]


def test_a_run_is_judged_by_what_each_process_asked_for(tmp_path):
    words = f"Another process writes {tmp_path}/1/x/out: of what two write at once one part is lost. Wait for it."
    refused = faults.Answer(None, "builtins.RuntimeError", words)
    cases = {
        "ok": ([(0, None), (0, None)], {}),
        "refused": ([(0, None), (1, refused)], {}),
        "others'": ([(0, None), (1, None)], {}),
        "mixed": ([(0, None)], {"files": "AB"}),
        "nobody": ([(0, refused), (1, refused)], {}),
        "raw": ([(0, None), (1, faults.Answer(None, "builtins.KeyError", "x"))], {}),
    }
    for number, (label, (results, options)) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        assert judged(tmp_path / str(number), results, **options) == label
    (tmp_path / "last").mkdir()
    assert judged(tmp_path / "last", [(0, None), (1, None)], replaces=True, files="B") == "ok"


def test_a_command_that_fails_raises_its_message(tmp_path):
    with pytest.raises(written.CommandError, match="no folder"):
        written.command("inspect", tmp_path / "none")


@pytest.mark.slow
def test_a_writer_meets_all_faults(tmp_path):
    output = tmp_path / "trials.json"
    command = [sys.executable, faults.__file__, "--only", "^Ontology.save$", "--processes", "1"]
    done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = json.loads(output.read_text())
    assert {trial["kind"] for trial in trials} >= {*faults.KINDS, "read-only", "user's links"}
    assert not {trial["label"] for trial in trials} & {"lost", "mixed", "through", "stuck", "failed"}
    assert "No space left" in next(trial["text"] for trial in trials if trial["kind"] == "full disk")
