"""A crawl scored by Ray: the same files as by `score_shards`, machines that die, and work that goes on elsewhere."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress

import pytest
from crawl import contents, crawl

from hf_curriculum import CaptionLength, WordRarity, load_scored, score_on_ray, score_shards

PATIENT = """
import os, time
from pathlib import Path
import numpy as np
from hf_curriculum import Scorer

class Patient(Scorer):
    columns, name, easy = ("caption",), "patient", "low"

    def score(self, batch, rank):
        if not hasattr(self, "_model"):  # `self.loaded(rank)` would do the same, and import torch
            with open(os.environ["LOADS"], "a") as file:
                file.write(f"{os.getpid()}\\n")
            self._model = len
        out = Path(os.environ["OUT"])
        while len(list(out.glob("scores/*.parquet"))) >= 2 and not (out.parent / "goes on").exists():
            time.sleep(0.05)
        return np.array([self._model(text) for text in batch["caption"]])
"""


def test_mistakes(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray.data", None)
        with pytest.raises(ImportError, match=r"Ray is not installed. Run `pip install 'hf-curriculum\[ray\]'`"):
            score_on_ray("x.tar", CaptionLength(), tmp_path)
    pytest.importorskip("ray.data")
    for wrong in ({"actors": 0}, {"batch_size": 0}, {"num_cpus": 0}, {"num_gpus": -1}):
        with pytest.raises(ValueError, match=r"were given. The first two are at least 1, and an actor has a share of"):
            score_on_ray("x.tar", CaptionLength(), tmp_path, **wrong)


@pytest.fixture
def nothing_left(monkeypatch):
    """Ray gives all handlers its own format, and asks a Prometheus every ten seconds as long as the process lives."""
    formats = {handler: handler.formatter for handler in logging.root.handlers}
    with suppress(ImportError):  # earlier versions ask nobody
        from ray.data._internal.usage.poller import ClusterMetricsPoller

        monkeypatch.setattr(ClusterMetricsPoller, "_start_thread_if_not_running", lambda self: None)
    yield
    for handler, before in formats.items():
        handler.setFormatter(before)
    assert "data-usage-metrics-poller" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def two_machines(tmp_path, monkeypatch, nothing_left):
    """A cluster of two raylets with a CPU each, and the function that kills the second."""
    ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python, or is not installed")
    pytest.importorskip("ray.data")
    from ray.cluster_utils import Cluster

    (tmp_path / "patient_scorer.py").write_text(PATIENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("LOADS", str(tmp_path / "loads"))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    second = cluster.add_node(**size)
    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    yield lambda: cluster.remove_node(second, allow_graceful=False)
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_a_machine_dies_and_the_files_are_the_same(two_machines, tmp_path):
    from patient_scorer import Patient

    source, out = tmp_path / "crawl", tmp_path / "out"
    crawl(source, 10, 3)
    scorers, options = [CaptionLength(), WordRarity(), Patient()], {"keep": ["url"], "batch_size": 2, "lease": 2}
    score_shards(source, scorers, tmp_path / "expected", **options)
    expected = contents(tmp_path / "expected/scores")
    assert len(expected) == 10
    with pytest.raises(ValueError, match=r"An actor was to have .*'GPU': 1.*none would ever start"):
        score_on_ray(source, scorers, out, num_gpus=1)
    claim = {"name": "00004.tar", "host": "elsewhere", "pid": 1, "owner": "process 1 on elsewhere", "begun": "before"}
    (out / ".claims").mkdir(parents=True)
    (out / ".claims" / "00004.tar.claim").write_text(json.dumps(claim))  # of a machine that died a moment ago
    (tmp_path / "loads").unlink()
    whole, at = (source / "00009.tar").read_bytes(), []

    def damage_and_kill():
        while len(at) < 2:  # then the scorers wait
            at[:] = out.glob("scores/*.parquet")
            time.sleep(0.05)
        (source / "00009.tar").write_bytes(whole[:700])
        two_machines()
        (tmp_path / "goes on").touch()

    threading.Thread(target=damage_and_kill, daemon=True).start()
    with pytest.raises(ValueError, match=r"1 of 10 shards cannot be read, and the others are scored\. 00009: "):
        score_on_ray(source, [CaptionLength(), WordRarity(), Patient()], out, **options)
    assert 2 <= len(at) < 9  # so many were done when it died
    loads = (tmp_path / "loads").read_text().split()
    assert len(set(loads)) == len(loads) <= 3  # once per actor, and by the one that was started again
    assert not list(out.glob(".claims/*"))
    found = contents(out / "scores")
    assert found == {name: content for name, content in expected.items() if name != "00009.parquet"}
    (source / "00009.tar").write_bytes(whole)
    for name in list(found)[:4]:
        (out / "scores" / name).unlink()
    assert score_shards(source, [CaptionLength(), WordRarity(), Patient()], out, **options).done == 10  # without Ray
    assert contents(out / "scores") == expected
    again = score_on_ray(source, [CaptionLength(), WordRarity(), Patient()], out, **options)
    assert again.pairs == 30  # nothing is left
    assert load_scored(out).column_names == ["shard", "key", "url", "caption_length", "word_rarity", "patient"]
