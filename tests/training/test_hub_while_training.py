"""What a trainer asks of the Hub and hears from it; the Hub itself is `tests/hub/test_loopback_models.py`."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import httpx
from transformers import Trainer

from hf_curriculum import IID, Phases
from hf_curriculum.hub.errors import HubError
from hf_curriculum.training import publishing
from hf_curriculum.training.checkpoints import checkpoint_from_hub

TOKEN = "hf_abcdefghijklmnop"


def refused(status):
    request = httpx.Request("POST", "https://hub.example/api")
    return HfHubHTTPError(f"refused {TOKEN}", response=httpx.Response(status, request=request))


@pytest.fixture
def pushing(make_trainer, monkeypatch):
    """A trainer with one push in the background already, and what `Trainer` pushed: each adds a job."""
    trainer = make_trainer(Phases(2, easy="low"), hub_token=TOKEN)
    trainer.push_in_progress, pushed = SimpleNamespace(jobs=[Future()]), []

    def push(self, folder):
        pushed.append(folder)
        self.push_in_progress.jobs.append(Future())

    monkeypatch.setattr(Trainer, "_push_from_checkpoint", push)
    return trainer, pushed


def test_a_push_that_fails_while_training_is_reported_once(pushing, caplog):
    trainer, pushed = pushing
    trainer._push_from_checkpoint("checkpoint-4")
    assert pushed == ["checkpoint-4"]
    assert (
        json.loads(Path(trainer.args.output_dir, "curriculum.json").read_text())["plan"]["curriculum"]["num_phases"]
        == 2
    )
    before, new = trainer.push_in_progress.jobs
    before.set_exception(refused(500))
    assert not caplog.records  # the push that was there before has its own report
    new.set_exception(refused(403))
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("A push while training failed: the Hub answered 403")
    assert "permission to write" in text
    assert f"Nothing is lost: the model and its checkpoints are in {trainer.args.output_dir}" in text
    assert TOKEN not in text


def test_pushes_that_succeed_are_cancelled_or_fail_otherwise(pushing, caplog):
    trainer, _ = pushing
    for _ in range(3):
        trainer._push_from_checkpoint("checkpoint-4")
    _, done, cancelled, broken = trainer.push_in_progress.jobs
    done.set_result(None)
    cancelled.cancel()
    assert not caplog.records
    broken.set_exception(KeyError(TOKEN))
    assert [record.getMessage() for record in caplog.records] == ["A push while training failed: KeyError."]


def test_the_first_push_has_no_jobs_before_it(pushing, caplog):
    trainer, _ = pushing
    del trainer.push_in_progress
    assert trainer._jobs() == []
    trainer.push_in_progress = SimpleNamespace(jobs=[])
    trainer._push_from_checkpoint("checkpoint-4")
    trainer.push_in_progress.jobs[0].set_exception(refused(429))
    assert "Wait a few minutes" in caplog.records[0].getMessage()


@pytest.mark.parametrize("reason", ["another process", "at the end alone"])
def test_what_is_not_pushed_is_not_written(pushing, monkeypatch, reason):
    trainer, pushed = pushing
    if reason == "another process":
        monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    else:
        trainer.args.hub_strategy = "end"
    trainer._push_from_checkpoint("checkpoint-4")
    assert not pushed
    assert not Path(trainer.args.output_dir, "curriculum.json").exists()


def test_what_the_hub_answers_a_push_is_explained(make_trainer, monkeypatch):
    trainer = make_trainer(Phases(2, easy="low"))
    asked = []

    def refuse(self, *args, **kwargs):
        asked.append((args, kwargs))
        raise refused(401)

    for name in ("push_to_hub", "init_hf_repo"):
        monkeypatch.setattr(Trainer, name, refuse)
    with pytest.raises(
        HubError, match=r"Pushing the model to the Hub failed.*hf auth login.*Nothing is lost"
    ) as caught:
        trainer.push_to_hub("done", False, TOKEN, "branch", True, license="mit")
    assert TOKEN not in str(caught.value)
    with pytest.raises(HubError, match="Making the model's repository on the Hub failed"):
        trainer.init_hf_repo(TOKEN, private=True)
    assert asked == [(("done", False, TOKEN, "branch", True), {"license": "mit"}), ((TOKEN, True), {})]
    assert Path(trainer.args.output_dir, "curriculum.json").is_file()
    for ask in (trainer.push_to_hub, trainer.init_hf_repo):
        with pytest.raises(ValueError, match="The token given is empty, or has a space"):
            ask(token="hf_a b")
    assert len(asked) == 2


def test_without_training_data_the_card_is_that_of_trainer(make_trainer, monkeypatch):
    trainer, asked = make_trainer(score_column=None, trainer={"train_dataset": None}), []
    monkeypatch.setattr(Trainer, "create_model_card", lambda self, *args, **kwargs: asked.append((args, kwargs)))
    trainer.create_model_card("en", "mit", tags="mine", dataset_tags="me/data", dataset="data", finetuned_from="a/b")
    given = {"language": "en", "license": "mit", "tags": "mine", "dataset_tags": "me/data", "dataset": "data"}
    assert asked == [((), given | {"finetuned_from": "a/b"})]


@pytest.fixture
def hub(make_trainer, monkeypatch, tmp_path):
    """A repository with the checkpoints of a run of 12 steps, and what was asked of it."""
    make_trainer(Phases(2, 1, easy="low"), save_strategy="steps", save_steps=3).train()
    repo, asked = tmp_path / "repo", []
    shutil.copytree(tmp_path / "out", repo)

    class Api:
        def __init__(self, **given):
            asked.append(given)

        def model_info(self, repo_id, *, revision):
            files = [path.relative_to(repo).as_posix() for path in sorted(repo.rglob("*")) if path.is_file()]
            return SimpleNamespace(
                sha="c0ffee42", siblings=[SimpleNamespace(rfilename=name) for name in files] or None
            )

        def hf_hub_download(self, repo_id, name, *, revision, cache_dir):
            asked.append((name, revision, cache_dir))
            return str(repo / name)

        def snapshot_download(self, repo_id, *, revision, allow_patterns, cache_dir, max_workers):
            asked.append((repo_id, revision, allow_patterns, cache_dir))
            return str(repo)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return repo, asked


def test_the_latest_checkpoint_on_the_hub_or_that_of_a_step(hub):
    repo, asked = hub
    assert checkpoint_from_hub("me/model", token=TOKEN, cache_dir="cache") == str(repo / "checkpoint-9")
    assert asked == [
        {"token": TOKEN, "library_name": "hf_curriculum"},
        ("me/model", "c0ffee42", ["checkpoint-9/*"], "cache"),
    ]
    assert checkpoint_from_hub("me/model", step=3) == str(repo / "checkpoint-3")
    with pytest.raises(ValueError, match=r"me/model holds no checkpoint of step 4; it holds those of \[3, 6, 9\]"):
        checkpoint_from_hub("me/model", step=4)


def test_the_last_checkpoint_on_the_hub_has_its_step_in_its_state(hub):
    repo, asked = hub
    shutil.move(repo / "checkpoint-9", repo / "last-checkpoint")
    assert checkpoint_from_hub("me/model", cache_dir="cache") == str(repo / "last-checkpoint")
    assert ("last-checkpoint/trainer_state.json", "c0ffee42", "cache") in asked
    assert checkpoint_from_hub("me/model", step=9) == str(repo / "last-checkpoint")
    assert checkpoint_from_hub("me/model", step=6) == str(repo / "checkpoint-6")


def test_checkpoints_on_the_hub_that_cannot_be_resumed(hub):
    repo, _ = hub
    (repo / "checkpoint-9" / "curriculum.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-9 has no curriculum\.json, .* or its run ended while it was"):
        checkpoint_from_hub("me/model")
    shutil.rmtree(repo)
    with pytest.raises(ValueError, match=r"me/model holds no checkpoint at c0ffee4, so no run can be resumed"):
        checkpoint_from_hub("me/model")
    with pytest.raises(ValueError, match="The token given is empty"):
        checkpoint_from_hub("me/model", token=" ")


def test_all_processes_resume_from_the_commit_that_the_first_found(make_trainer, monkeypatch, tmp_path):
    trainer, asked = make_trainer(IID(epochs=1), hub_token=TOKEN), []

    def download(repo_id, **given):
        asked.append((repo_id, given))
        return str(tmp_path / (given["revision"] if given["revision"] == "first" else "moved") / "last-checkpoint")

    monkeypatch.setattr(publishing, "checkpoint_from_hub", download)
    monkeypatch.setattr(publishing, "broadcast_object_list", lambda found: found)
    monkeypatch.setattr(publishing, "whole_checkpoint", lambda args, folder: folder)
    assert trainer.local_checkpoint("me/model@main") == str(tmp_path / "moved" / "last-checkpoint")
    assert asked == [("me/model", {"revision": "main", "token": TOKEN})]
    monkeypatch.setattr(publishing, "broadcast_object_list", lambda found: ["first"])
    assert trainer.local_checkpoint("me/model") == str(tmp_path / "first" / "last-checkpoint")
    assert asked[1:] == [
        ("me/model", {"revision": None, "token": TOKEN}),
        ("me/model", {"revision": "first", "token": TOKEN}),
    ]
