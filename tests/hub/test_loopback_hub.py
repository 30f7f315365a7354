"""What the loopback Hub itself promises to the tests that use it, asked by hand."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json

import pytest

WRITER = "hf_writerTOKENwriter"


class Caller:
    def __init__(self, hub):
        self.hub = hub

    def __call__(self, method, path, body=None, token=WRITER, host="127.0.0.1", headers=None):
        connection = http.client.HTTPConnection(host, self.hub.port, timeout=10)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, content, {**sent, **({"Authorization": f"Bearer {token}"} if token else {})})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content, dict(answer.getheaders())


@pytest.fixture
def ask(hub):
    return Caller(hub)


def commit(ask, name, *operations, parent=None):
    lines = [{"key": "header", "value": {"summary": "x", **({"parentCommit": parent} if parent else {})}}, *operations]
    return ask("POST", f"/api/datasets/{name}/commit/main", "\n".join(map(json.dumps, lines)).encode())


def test_files_go_up_and_come_back(hub, ask):
    assert ask("POST", "/api/repos/create", {"name": "by-hand", "type": "dataset"})[0] == 200
    assert ask("POST", "/api/repos/create", {"name": "by-hand", "type": "dataset"})[0] == 409
    content = b"0123456789"
    sha = hashlib.sha256(content).hexdigest()
    batch = "/datasets/me/by-hand.git/info/lfs/objects/batch"
    wanted = {"operation": "upload", "objects": [{"oid": sha, "size": 10}]}
    actions = json.loads(ask("POST", batch, wanted)[1])["objects"][0]["actions"]
    assert actions["upload"]["href"].startswith(hub.storage)
    large = {"key": "lfsFile", "value": {"path": "a.parquet", "algo": "sha256", "oid": sha, "size": 10}}
    assert commit(ask, "me/by-hand", large)[0] == 400  # its content is not there
    assert ask("PUT", f"/storage/{sha}", b"other", token=None)[0] == 400
    assert ask("PUT", f"/storage/{sha}", content, token=None, host="localhost")[0] == 200
    assert "actions" not in json.loads(ask("POST", batch, wanted)[1])["objects"][0]
    small = {"key": "file", "value": {"path": "b/c.txt", "content": base64.b64encode(b"hello").decode()}}
    assert commit(ask, "me/by-hand", large, small)[0] == 200
    assert hub.files("dataset", "me/by-hand") | {".gitattributes": b""} == {
        "a.parquet": content, "b/c.txt": b"hello", ".gitattributes": b"",
    }  # fmt: skip
    status, body, headers = ask("GET", "/datasets/me/by-hand/resolve/main/b/c.txt")
    assert (status, body) == (200, b"hello")
    assert headers["X-Repo-Commit"] == hub.repos["dataset", "me/by-hand"].branches["main"]
    status, _, headers = ask("HEAD", "/datasets/me/by-hand/resolve/main/a.parquet")
    assert status == 302
    assert headers["X-Linked-ETag"] == f'"{sha}"'
    for wanted, found in (("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-2", b"89"), ("bytes=5-99", b"56789")):
        status, body, _ = ask("GET", f"/storage/{sha}", token=None, headers={"Range": wanted})
        assert (status, body) == (206, found)
    assert ask("GET", f"/storage/{sha}", token=None, headers={"Range": "bytes=10-"})[0] == 416
    assert commit(ask, "me/by-hand", {"key": "deletedFolder", "value": {"path": "b/"}})[0] == 200
    assert "b/c.txt" not in hub.files("dataset", "me/by-hand")
    assert commit(ask, "me/by-hand", parent="0" * 40)[0] == 412
    assert hub.uploads[sha] == 1
    assert ask("DELETE", "/api/repos/delete", {"name": "by-hand", "organization": "me", "type": "dataset"})[0] == 200
    assert ("dataset", "me/by-hand") not in hub.repos


def test_who_may_do_what(hub, ask):
    hub.create("model", "me/locked", private=True)
    hub.create("model", "me/open")
    stranger, reader = "hf_strangerTOKENstranger", "hf_readerTOKENreader"
    tokens = (WRITER, reader, stranger, None, "x")
    seen = {token: ask("GET", "/api/models/me/locked", token=token)[0] for token in tokens}
    assert seen == {WRITER: 200, reader: 200, stranger: 404, None: 401, "x": 401}
    may = {token: ask("POST", "/api/models/me/open/preupload/main", {"files": []}, token=token)[0] for token in tokens}
    assert may == {WRITER: 200, reader: 403, stranger: 403, None: 401, "x": 401}
    assert ask("GET", "/api/models/me/none")[2]["X-Error-Code"] == "RepoNotFound"
    assert ask("GET", "/api/models/me/open/revision/none")[2]["X-Error-Code"] == "RevisionNotFound"
    assert ask("GET", "/me/open/resolve/main/none")[2]["X-Error-Code"] == "EntryNotFound"
    del hub.repos["model", "me/locked"], hub.repos["model", "me/open"]


def test_it_fails_when_told(hub, ask):
    hub.fail("whoami", 429, times=1, headers={"Retry-After": "3"})
    status, _, headers = ask("GET", "/api/whoami-v2")
    assert (status, headers["Retry-After"]) == (429, "3")
    assert ask("GET", "/api/whoami-v2")[0] == 200
    hub.fail("whoami", cut="before", times=1)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask("GET", "/api/whoami-v2")
    hub.fail("whoami", cut="within", times=1)
    with pytest.raises(http.client.IncompleteRead):
        ask("GET", "/api/whoami-v2")
    hub.fail("whoami", 500, path="elsewhere")
    assert ask("GET", "/api/whoami-v2")[0] == 200
    assert hub.requests[-1] == ("GET", "whoami", "/api/whoami-v2", 200)


def test_a_token_at_the_storage_is_noted(hub, ask):
    sha = hub.store(b"x", True).sha256
    assert ask("GET", f"/storage/{sha}", token="hf_x", host="localhost")[0] == 200
    assert hub.leaks == [f"/storage/{sha}"]
    hub.leaks.clear()
