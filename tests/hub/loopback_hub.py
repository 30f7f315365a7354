"""A Hub on this machine: the part of its HTTP API that `huggingface_hub`, `datasets` and `transformers` use.

It answers on two names: the API on `127.0.0.1`, the storage of large files on `localhost`. To a client these are two
hosts, as the Hub and its storage are: a token that is sent to the second one has leaked, and is noted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = {".arrow", ".bin", ".jpg", ".npy", ".parquet", ".png", ".pt", ".pth", ".safetensors", ".tar"}
"""Endings of files that go to the storage of large files, as in the `.gitattributes` of a new repository."""
DATE = "2026-01-01T00:00:00.000Z"


@dataclass
class Fault:
    """What a route does instead of answering: an error, a connection cut before or within the answer, a pause."""

    route: str
    times: int
    status: int | None = None
    message: str = "injected"
    cut: str | None = None
    seconds: float = 0.0
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """One file of a commit: the SHA-256 of its content, its size and whether the large storage holds it."""

    sha256: str
    size: int
    large: bool
    git_oid: str


@dataclass
class Repo:
    """A repository: its branches by name, its commits by id, each a mapping of paths to files."""

    kind: str
    name: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, File], title: str) -> str:
        """Adds a commit to a branch."""
        text = repr((self.name, len(self.commits), sorted(files.items())))
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        self.titles.append(title)
        return oid

    def find(self, revision: str) -> str | None:
        """The commit of a branch or of an id, None where there is none."""
        revision = revision.removeprefix("refs/heads/")
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class LoopbackHub:
    """The state of the Hub, and how a test looks at it and makes it fail.

    Attributes:
        users: token -> (user, "write" or "read").
        repos: (kind, name) -> repository; kinds are "model" and "dataset".
        blobs: SHA-256 -> content.
        uploads: SHA-256 -> how often that content was sent.
        requests: (method, route, path, status) of every request, in order.
        leaks: paths at which the storage was sent a token.
    """

    def __init__(self) -> None:
        self.users = {"hf_writerTOKENwriter": ("me", "write"), "hf_readerTOKENreader": ("me", "read")}
        self.users["hf_strangerTOKENstranger"] = ("somebody", "write")
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.uploads: Counter[str] = Counter()
        self.requests: list[tuple[str, str, str, int]] = []
        self.leaks: list[str] = []
        self.lock = threading.RLock()
        self._faults: list[Fault] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Address of the API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> str:
        """Address of the large files."""
        return f"http://localhost:{self.port}"

    def fail(self, route: str, status: int | None = None, *, times: int = 10**6, **how: object) -> None:
        """Makes a route fail `times` times: a `status`, a `cut` "before" or "within" the answer, `seconds` of wait."""
        with self.lock:
            self._faults.append(Fault(route, times, status, **how))

    def heal(self) -> None:
        """Ends all failures."""
        with self.lock:
            self._faults.clear()

    def fault(self, route: str, path: str) -> Fault | None:
        """The failure that a request meets, counted."""
        with self.lock:
            for fault in self._faults:
                if fault.route == route and fault.times > 0 and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def files(self, kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
        """Path -> content of a repository."""
        repo = self.repos[kind, name]
        return {path: self.blobs[file.sha256] for path, file in repo.commits[repo.find(revision)].items()}

    def count(self, route: str) -> int:
        """Requests of a route so far."""
        return sum(entry[1] == route for entry in self.requests)

    def store(self, content: bytes, large: bool) -> File:
        """Keeps a content that was sent."""
        sha = hashlib.sha256(content).hexdigest()
        with self.lock:
            self.blobs[sha] = content
            self.uploads[sha] += 1
        return self.describe(sha, large)

    def describe(self, sha: str, large: bool) -> File:
        """The entry of a stored content in a commit."""
        content = self.blobs[sha]
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {len(content)}\n".encode()
        text = pointer if large else content
        return File(sha, len(content), large, hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest())

    def create(self, kind: str, name: str, private: bool = False) -> Repo:
        """A new repository with the first commit the Hub makes."""
        repo = self.repos[kind, name] = Repo(kind, name, private)
        repo.commit("main", {".gitattributes": self.store(b"*.parquet filter=lfs\n", False)}, "initial commit")
        return repo


class Refusal(Exception):
    """An answer that is an error, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: object) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


class Handler(BaseHTTPRequestHandler):
    """Reads a request, finds its route, meets a fault or answers."""

    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def log_message(self, *args: object) -> None:
        """Nothing on the terminal."""

    def _serve(self) -> None:
        address = urlsplit(self.path)
        self.query = parse_qs(address.query)
        self.where = address.path
        self.body = self._read_body()
        route, answer, parts = next(
            (name, answer, found.groupdict())
            for method, pattern, name, answer in ROUTES
            if method in (self.command, "*") and (found := re.fullmatch(pattern, self.where))
        )
        self.parts = {key: value and unquote(value) for key, value in parts.items()}
        self.route, self.cut = route, None
        fault = self.hub.fault(route, unquote(self.where))
        try:
            if fault is not None:
                time.sleep(fault.seconds)
                self.cut = fault.cut
                if fault.cut == "before":
                    raise BrokenPipeError
                if fault.status is not None:
                    self._send(fault.status, json.dumps({"error": fault.message}).encode(), fault.headers)
                    return
            with self.hub.lock:
                send = answer(self)
            send()
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self._send(refusal.status, json.dumps({"error": refusal.message, **refusal.body}).encode(), headers)
        except BrokenPipeError:
            self._note(0)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _note(self, status: int) -> None:
        with self.hub.lock:
            self.hub.requests.append((self.command, self.route, unquote(self.where), status))

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self._note(status)
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.cut == "within":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(content)

    def json(self, body: object, status: int = 200) -> Callable[[], None]:
        """An answer in JSON."""
        return lambda: self._send(status, json.dumps(body).encode())

    # ---- Who asks, and for what ----

    @property
    def user(self) -> tuple[str, str] | None:
        """(user, right) of the token; None without one."""
        given = self.headers.get("Authorization", "")
        if not given:
            return None
        user = self.hub.users.get(given.removeprefix("Bearer "))
        if user is None:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return user

    def repo(self, write: bool = False) -> Repo:
        """The repository of the address, if whoever asks may see it and, for `write`, change it."""
        kind = (self.parts.get("kind") or "models").rstrip("s")
        repo, user = self.hub.repos.get((kind, self.parts["name"])), self.user
        owner = self.parts["name"].partition("/")[0]
        if repo is None or (repo.private and (user is None or user[0] != owner)):
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.check_right(owner)
        return repo

    def check_right(self, owner: str) -> None:
        """Refuses whoever may not write to a namespace."""
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        if self.user != (owner, "write"):
            raise Refusal(403, f"You don't have the rights to write to the namespace {owner}")

    def commit_id(self, repo: Repo) -> str:
        """The commit that the address names."""
        oid = repo.find(self.parts.get("revision") or "main")
        if oid is None:
            raise Refusal(404, "Revision not found", "RevisionNotFound")
        return oid


# ---- Repositories ----


def whoami(ask: Handler) -> Callable[[], None]:
    if ask.user is None:
        raise Refusal(401, "Invalid username or password.")
    name, role = ask.user
    token = {"displayName": "test", "role": role}
    return ask.json({"type": "user", "id": name, "name": name, "orgs": [], "auth": {"accessToken": token}})


def create(ask: Handler) -> Callable[[], None]:
    told = json.loads(ask.body)
    kind = told.get("type") or "model"
    user = ask.user
    owner = told.get("organization") or (user[0] if user else "nobody")
    ask.check_right(owner)
    name = f"{owner}/{told['name']}"
    answer = {"url": f"{ask.hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}", "name": name}
    if (kind, name) in ask.hub.repos:
        raise Refusal(409, f"You already created this {kind} repo", None, **answer)
    ask.hub.create(kind, name, told.get("visibility") == "private" or bool(told.get("private")))
    return ask.json(answer)


def delete(ask: Handler) -> Callable[[], None]:
    told = json.loads(ask.body)
    ask.parts = {
        "kind": told.get("type", "model"),
        "name": f"{told.get('organization') or ask.user[0]}/{told['name']}",
    }
    repo = ask.repo(write=True)
    del ask.hub.repos[repo.kind, repo.name]
    return ask.json({})


def validate_yaml(ask: Handler) -> Callable[[], None]:
    import yaml

    text = json.loads(ask.body)["content"]
    found = re.match(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))", text)
    try:
        if found and not isinstance(yaml.safe_load(found[2]), dict):
            raise yaml.YAMLError("not a mapping")
    except yaml.YAMLError as error:
        return ask.json({"errors": [{"message": str(error)}], "warnings": []}, 400)
    return ask.json({"errors": [], "warnings": []})


def info(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    oid = ask.commit_id(repo)
    siblings = [{"rfilename": path} for path in sorted(repo.commits[oid])]
    about = {"id": repo.name, "_id": "0", "author": repo.name.partition("/")[0], "sha": oid, "private": repo.private}
    return ask.json({**about, "lastModified": DATE, "tags": [], "siblings": siblings, "gated": False})


def refs(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": oid} for n, oid in repo.branches.items()]
    return ask.json({"branches": branches, "converts": [], "tags": [], "pullRequests": []})


def commits(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    listed = zip(repo.commits, repo.titles, strict=True)
    return ask.json([{"id": o, "title": t, "message": "", "authors": [], "date": DATE} for o, t in listed][::-1])


def branch(ask: Handler) -> Callable[[], None]:
    repo = ask.repo(write=True)
    if ask.parts["branch"] in repo.branches:
        raise Refusal(409, "Reference already exists")
    repo.branches[ask.parts["branch"]] = repo.branches["main"]
    return ask.json({})


def entry(path: str, file: File) -> dict[str, object]:
    told = {"type": "file", "path": path, "size": file.size, "oid": file.git_oid}
    return {**told, **({"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 130}} if file.large else {})}


def folder(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


def tree(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    files = repo.commits[ask.commit_id(repo)]
    root = PurePosixPath(ask.parts.get("path") or ".")
    inside = {path: file for path, file in sorted(files.items()) if root in PurePosixPath(path).parents}
    if not inside and str(root) != ".":
        raise Refusal(404, f"{root} does not exist on the branch", "EntryNotFound")
    every = ask.query.get("recursive", ["false"])[0].lower() in ("true", "1")
    folders = {str(up) for path in inside for up in PurePosixPath(path).parents if root in up.parents}
    listed = [*map(folder, sorted(folders)), *(entry(path, file) for path, file in inside.items())]
    return ask.json([told for told in listed if every or PurePosixPath(told["path"]).parent == root])


def paths_info(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    files = repo.commits[ask.commit_id(repo)]
    typed = ask.headers.get("Content-Type", "").startswith("application/json")
    wanted = json.loads(ask.body)["paths"] if typed else parse_qs(ask.body.decode())["paths"]
    found = [entry(path, files[path]) for path in wanted if path in files]
    found += [folder(path) for path in wanted if any(path in map(str, PurePosixPath(f).parents) for f in files)]
    return ask.json(found)


# ---- Uploading ----


def preupload(ask: Handler) -> Callable[[], None]:
    repo = ask.repo(write=True)
    present = repo.commits[ask.commit_id(repo)]
    told = []
    for file in json.loads(ask.body)["files"]:
        path, known = file["path"], present.get(file["path"])
        mode = "lfs" if PurePosixPath(path).suffix in LARGE or file["size"] > 10 << 20 else "regular"
        oid = None if known is None else known.sha256 if known.large else known.git_oid
        told.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **({"oid": oid} if oid else {})})
    return ask.json({"files": told})


def lfs_batch(ask: Handler) -> Callable[[], None]:
    ask.repo(write=True)
    objects = []
    for item in json.loads(ask.body)["objects"]:
        told = {"oid": item["oid"], "size": item["size"]}
        if item["oid"] not in ask.hub.blobs:
            actions = {"upload": {"href": f"{ask.hub.storage}/storage/{item['oid']}?signed=1"}}
            actions["verify"] = {"href": ask.hub.endpoint + ask.where.replace("objects/batch", "verify")}
            told["actions"] = actions
        objects.append(told)
    return ask.json({"transfer": "basic", "objects": objects})


def lfs_upload(ask: Handler) -> Callable[[], None]:
    note_leak(ask)
    if hashlib.sha256(ask.body).hexdigest() != ask.parts["sha"]:
        raise Refusal(400, "The content is not what its checksum says")
    ask.hub.store(ask.body, True)
    return ask.json({})


def lfs_verify(ask: Handler) -> Callable[[], None]:
    if json.loads(ask.body)["oid"] not in ask.hub.blobs:
        raise Refusal(404, "Object does not exist")
    return ask.json({})


def commit(ask: Handler) -> Callable[[], None]:
    repo, title = ask.repo(write=True), ""
    parent = ask.commit_id(repo)
    files = dict(repo.commits[parent])
    for line in ask.body.splitlines():
        key, value = (told := json.loads(line))["key"], told["value"]
        if key == "header":
            title = value["summary"]
            if value.get("parentCommit") not in (None, parent):
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        elif key == "file":
            files[value["path"]] = ask.hub.store(base64.b64decode(value["content"]), False)
        elif key == "lfsFile":
            if value["oid"] not in ask.hub.blobs:
                raise Refusal(400, f"The content of {value['path']} was not uploaded")
            files[value["path"]] = ask.hub.describe(value["oid"], True)
        else:
            gone = value["path"].rstrip("/")
            files = {p: f for p, f in files.items() if p != gone and not p.startswith(gone + "/")}
    oid = repo.commit(ask.parts["revision"], files, title)
    address = f"{ask.hub.endpoint}/{repo.kind}s/{repo.name}/commit/{oid}"
    return ask.json({"success": True, "commitOid": oid, "commitUrl": address})


# ---- Downloading ----


def resolve(ask: Handler) -> Callable[[], None]:
    repo = ask.repo()
    oid = ask.commit_id(repo)
    file = repo.commits[oid].get(ask.parts["path"])
    if file is None:
        raise Refusal(404, "Entry not found", "EntryNotFound")
    headers = {"X-Repo-Commit": oid, "ETag": f'"{file.git_oid}"', "Accept-Ranges": "bytes"}
    if file.large:
        name = quote(PurePosixPath(ask.parts["path"]).name)
        headers |= {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
        headers["Location"] = f"{ask.hub.storage}/storage/{file.sha256}?signed=1&name={name}"
        return lambda: ask._send(302, b"", headers)
    return ranged(ask, ask.hub.blobs[file.sha256], headers)


def storage(ask: Handler) -> Callable[[], None]:
    note_leak(ask)
    return ranged(ask, ask.hub.blobs[ask.parts["sha"]], {"Accept-Ranges": "bytes", "ETag": f'"{ask.parts["sha"]}"'})


def ranged(ask: Handler, content: bytes, headers: dict[str, str]) -> Callable[[], None]:
    headers = {"Content-Type": "application/octet-stream", **headers}
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", ask.headers.get("Range", ""))
    if not wanted:
        return lambda: ask._send(200, content, headers)
    first, last = wanted.groups()
    start = int(first) if first else max(0, len(content) - int(last))
    stop = min(int(last) + 1 if first and last else len(content), len(content))
    if start >= stop:
        return lambda: ask._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
    return lambda: ask._send(206, content[start:stop], headers)


def note_leak(ask: Handler) -> None:
    if "Authorization" in ask.headers:
        ask.hub.leaks.append(ask.where)


def unknown(ask: Handler) -> Callable[[], None]:
    raise Refusal(404, f"The loopback Hub has no route {ask.command} {ask.where}")


API = r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)"
PLAIN = r"/(?:(?P<kind>datasets)/)?(?P<name>[^/]+/[^/]+?)"
ROUTES = [
    ("GET", "/api/whoami-v2", "whoami", whoami),
    ("POST", "/api/repos/create", "create", create),
    ("DELETE", "/api/repos/delete", "delete", delete),
    ("POST", "/api/validate-yaml", "validate-yaml", validate_yaml),
    ("GET", API + "(?:/revision/(?P<revision>[^/]+))?", "info", info),
    ("GET", API + "/refs", "refs", refs),
    ("GET", API + "/commits/(?P<revision>[^/]+)", "commits", commits),
    ("POST", API + "/branch/(?P<branch>[^/]+)", "branch", branch),
    ("GET", API + "/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree", tree),
    ("POST", API + "/paths-info/(?P<revision>[^/]+)", "paths-info", paths_info),
    ("POST", API + "/preupload/(?P<revision>[^/]+)", "preupload", preupload),
    ("POST", API + "/commit/(?P<revision>[^/]+)", "commit", commit),
    ("POST", PLAIN + r"\.git/info/lfs/objects/batch", "lfs-batch", lfs_batch),
    ("POST", PLAIN + r"\.git/info/lfs/verify", "lfs-verify", lfs_verify),
    ("PUT", "/storage/(?P<sha>[0-9a-f]{64})", "lfs-upload", lfs_upload),
    ("GET", "/storage/(?P<sha>[0-9a-f]{64})", "storage", storage),
    ("HEAD", "/storage/(?P<sha>[0-9a-f]{64})", "storage", storage),
    ("GET", PLAIN + "/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve", resolve),
    ("HEAD", PLAIN + "/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve", resolve),
    ("*", ".*", "unknown", unknown),
]
"""(method, address, name, answer); the first that fits is taken."""


@contextmanager
def running_hub() -> Iterator[LoopbackHub]:
    """A Hub that runs until the context ends."""
    hub = LoopbackHub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
