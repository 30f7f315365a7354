"""Shards and buckets behind a web server, which lists no folder, or lists it without sizes, or fails for a while."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest
from crawl import crawl
from datasets import Dataset

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    add_scores,
    load_scored,
    save_bucketed,
    score_shards,
)
from hf_curriculum.data.readers.source_shards import find_shards
from hf_curriculum.scoring.shards import shard_status
from hf_curriculum.streaming.index import verify_bucketed


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers with the status that `server.status` gives for a path and the number of times that it was asked for."""

    def log_message(self, *args):
        pass

    def answer(self, serve):
        path = self.path.partition("?")[0]
        self.server.asked[path] += 1
        status = self.server.status(path, self.server.asked[path])
        serve() if status is None else self.send_error(status)

    def do_GET(self):
        self.answer(super().do_GET)

    def do_HEAD(self):
        self.answer(super().do_HEAD)


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Serves `tmp_path / "data"`; its `status` may be replaced, and folders are not listed."""
    monkeypatch.setattr("hf_curriculum.remote.BACKOFF", 0.001)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path / "data"))
    server.asked, server.status = Counter(), lambda path, times: 404 if path.endswith("/") else None
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def crawled(web, tmp_path):
    """A crawl of three shards, scored on the disk: its scores by shard."""
    crawl(tmp_path / "data", 3, 4)
    score_shards(tmp_path / "data", CaptionLength(), tmp_path / "local")
    return load_scored(tmp_path / "local")["caption_length"][:]


@pytest.mark.parametrize("listing", [403, 404, None], ids=str)
def test_named_shards_are_read_whether_or_not_their_folder_is_listed(web, crawled, tmp_path, listing):
    web.status = lambda path, times: listing if path.endswith("/") else None
    sizes = [(tmp_path / f"data/0000{number}.tar").stat().st_size for number in range(3)]
    sources = [f"{web.url}/{{00000..00002}}.tar"]
    if listing is None:
        sources += [f"{web.url}/", f"{web.url}/*.tar"]
    for number, source in enumerate(sources):
        shards = find_shards(source)
        assert [(shard.name, shard.bytes) for shard in shards] == [
            (f"0000{each}.tar", size) for each, size in enumerate(sizes)
        ]
        assert all("GMT" in shard.stamp for shard in shards)  # when it was changed
        score_shards(source, CaptionLength(), tmp_path / f"out{number}")
        assert load_scored(tmp_path / f"out{number}")["caption_length"][:] == crawled


def test_a_shard_that_the_server_does_not_have_is_missing(web, crawled, tmp_path):
    source = f"{web.url}/{{00000..00003}}.tar"
    with pytest.raises(FileNotFoundError, match=r"00003\.tar does not exist\. It was named as a shard"):
        find_shards(source)
    score_shards(source, CaptionLength(), tmp_path / "out", bad_shards="drop")
    assert list(shard_status(tmp_path / "out").dropped) == ["00003.tar"]
    assert load_scored(tmp_path / "out")["caption_length"][:] == crawled


def test_a_server_that_fails_for_a_while_is_asked_again_and_one_that_is_away_is_named(web, crawled, tmp_path):
    web.status = lambda path, times: 503 if times < 4 else None
    score_shards(f"{web.url}/{{00000..00002}}.tar", CaptionLength(), tmp_path / "out")
    assert load_scored(tmp_path / "out")["caption_length"][:] == crawled
    web.status = lambda path, times: 503
    with pytest.raises(ConnectionError, match=r"00000\.tar could not be read in 5 attempts \(Client.*: 503"):
        find_shards(f"{web.url}/00000.tar")
    web.status = lambda path, times: 403
    with pytest.raises(PermissionError, match=r"00000\.tar cannot be read: access is denied \(403"):
        find_shards(f"{web.url}/00000.tar")
    for source in ("http://127.0.0.1:9/{0..1}.tar", ["http://127.0.0.1:9/0.tar"], "http://127.0.0.1:9/*.tar"):
        with pytest.raises(ConnectionError, match=r"could not be read in 5 attempts \(ClientConnectorError"):
            find_shards(source)


def test_addresses_with_a_query_are_refused_without_what_signs_them(web):
    with pytest.raises(ValueError, match=r"X-Amz-Signature=<token> has a query, which would be the name of a shard"):
        find_shards(f"{web.url}/{{0..1}}.tar?X-Amz-Signature=secret")
    assert not web.asked


@pytest.mark.parametrize("listing", [403, 404, None], ids=str)
def test_buckets_are_read_whether_or_not_their_folder_is_listed(web, tmp_path, listing):
    web.status = lambda path, times: listing if path.endswith("/") else None
    data = Dataset.from_dict({"caption": ["a " * (1 + row % 7) for row in range(40)]})
    save_bucketed(add_scores(data, CaptionLength()), tmp_path / "data", 2, score_column="caption_length")
    assert len(verify_bucketed(web.url).buckets) == 2
    numbers = [
        [len(row["caption"].split()) for row in BucketedStream(path, IID(epochs=1), global_batch_size=8, seed=3)]
        for path in (web.url, tmp_path / "data")
    ]
    assert numbers[0] == numbers[1]
    assert np.unique(numbers[0]).tolist() == [*range(1, 8)]
    (tmp_path / "data" / "buckets.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"buckets\.json does not exist"):
        verify_bucketed(web.url)


def test_buckets_of_a_server_that_refuses_all_are_no_missing_ones(web):
    web.status = lambda path, times: 403
    with pytest.raises(PermissionError, match=r"buckets\.json cannot be read: access is denied \(403"):
        verify_bucketed(web.url)
