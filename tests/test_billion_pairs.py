"""The commands of the page "A billion pairs", one after the other, on a small crawl and an S3 on loopback."""

from __future__ import annotations

import io
import os
import re
import shlex
from pathlib import Path

import pages as PAGES
import pytest
from crawl import pairs, write_tar
from PIL import Image
from s3_server import s3_server
from typer.testing import CliRunner

from hf_curriculum.cli import app

pytest.importorskip("moto.server", reason="moto[server] is not installed")
s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
pytestmark = pytest.mark.slow
PAGE = PAGES.ROOT / "docs/guides/a_billion_pairs.md"


@pytest.fixture
def store():
    """An S3 with a bucket `crawls`, where `s3://` leads."""
    with s3_server():
        files = s3fs.S3FileSystem(skip_instance_cache=True)
        files.mkdir("crawls")
        yield files


def download(folder: Path) -> None:
    """What `img2dataset` leaves."""
    content = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 10, 10)).save(content, "jpeg")
    for shard in range(4):
        rows = [{**row, "image": content.getvalue()} for row in pairs(shard, 40)]
        write_tar(folder / f"{shard:05d}.tar", rows)
        (folder / f"{shard:05d}_stats.json").write_text('{"count": 40, "successes": 40}')


def run(words: list[str], environment: dict[str, str] | None = None) -> str:
    """A command of ours."""
    assert words[0] == "hf-curriculum"
    words = ["caption_length" if word == "clip_similarity" else word for word in words[1:]]
    made = CliRunner().invoke(app, words, env=environment)
    assert made.exit_code == 0, (words, made.output)
    return made.output


def test_the_twelve_commands(tmp_path, monkeypatch, store, launch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    block = next(content for language, _, content in PAGES.blocks(PAGE.read_text()) if language == "sh")
    commands = [shlex.split(line) for line in block.splitlines() if line]
    assert len(commands) == 12
    said = []
    for words in commands:
        if words[0] == "pip":
            continue
        if words[0] == "img2dataset":
            download(tmp_path / words[words.index("--output_folder") + 1])
        elif words[0] == "sbatch":
            array = {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "63", "SLURM_ARRAY_TASK_COUNT": "64"}
            said.append(run(shlex.split(words[-1]), {**array, "SLURM_ARRAY_TASK_ID": "5"}))
        elif words[0] == "aws":
            store.put(words[3], words[4].removeprefix("s3://"), recursive=True)
        elif words[0] == "accelerate":
            small = [*("--small", "--use_cpu", "--report_to", "none", "--per_device_train_batch_size", "8")]
            made = launch(PAGES.ROOT / words[2], *words[3:], *small, cwd=tmp_path, env=dict(os.environ))
            said.append(made.stdout)
        elif words[1] == "push":
            said.append(run([*words, "--dry-run"]))
        elif "--num-proc" in words:
            said.append(run([word for word in words if word not in ("--num-proc", "8")]))
        else:
            said.append(run(words))
    told = "\n".join(said)
    assert told.count("4 of 4 shards are scored: 160 pairs.") == 3
    assert re.search(r"caption_length +CaptionLength +low +160", told)
    assert told.count("Phases() by caption_length (low = easy): 160 examples") == 2  # of the plan, and of the run
    assert "80 of 160 examples (50 %) are never shown" in told
    assert "160 pairs by rank of caption_length (low = easy) in buckets" in told
    assert re.search(r"'examples': 400, .*'train_loss'|'train_loss'.*'examples': 400", told)
    assert "nothing was sent; this would be:" in told
    assert "columns: url (string), caption_length (float32)" in told
    assert (tmp_path / "run/model.safetensors").is_file()
