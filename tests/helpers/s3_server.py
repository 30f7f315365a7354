"""An S3 server on this machine, `moto`'s, behind a proxy that spoils answers by a schedule."""

from __future__ import annotations

import os
import socket
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULTS = ("reset", "503", "", "truncated", "short", "", "flipped", "reset", "")
"""A connection that breaks, a server that is busy, a body that breaks off, half of one, one that differs."""


class S3Proxy(ThreadingHTTPServer):
    """Hands requests to a server; each path has faults of its own, whoever asks for which first.

    Attributes:
        faults: of successive GETs of a path, again and again, from the first, fourth or seventh on; "" for none.
        gets: path → how often it was asked for.
        page: how many files a list has.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.faults: tuple[str, ...] = ("",)
        self.gets: Counter[str] = Counter()
        self.page = 1000
        self.closing = threading.Event()
        self._lock = threading.Lock()

    def next_fault(self, path: str) -> str:
        """The fault of a GET."""
        path = path.partition("?")[0]
        with self._lock:
            turn = zlib.crc32(path.encode()) % 3 * 3 + self.gets[path]
            self.gets[path] += 1
        return self.faults[turn % len(self.faults)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error of the proxy's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def _hand_over(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.next_fault(self.path) if self.command == "GET" else ""
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "503":
            self._answer(503, {}, b"<Error><Code>ServiceUnavailable</Code><Message>no</Message></Error>")
            return
        if fault in ("403", "404"):
            code = {"403": "AccessDenied", "404": "NoSuchKey"}[fault]
            self._answer(int(fault), {}, f"<Error><Code>{code}</Code><Message>not yours</Message></Error>".encode())
            return
        upstream = HTTPConnection("127.0.0.1", self.server.port)
        path = f"{self.path}&max-keys={self.server.page}" if "list-type" in self.path else self.path
        upstream.request(self.command, path, content, dict(self.headers))
        answer = upstream.getresponse()
        body = answer.read()
        upstream.close()
        if fault == "short":
            body = body[: len(body) // 2]
        if fault == "flipped" and ("/bucket_" in self.path or self.path.endswith(".tar")):
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        self._answer(answer.status, dict(answer.headers), body, half=fault in ("truncated", "stalled"))
        if fault == "stalled":
            self.server.closing.wait()

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes, half: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            # Not every store has checksums, and with them the client would notice by itself.
            if not name.lower().startswith(("content-length", "transfer-encoding", "connection", "x-amz-checksum")):
                self.send_header(name, value)
        size = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = self.close_connection or half

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _hand_over

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def s3_server() -> Iterator[S3Proxy]:
    """A server that `s3://` addresses lead to, in this process and those that it starts."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    proxy = S3Proxy(moto.get_host_and_port()[1])
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",  # what is tested tries again, not the client
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    S3FileSystem.clear_instance_cache()  # those of a server before lead to where that was
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.shutdown()
        proxy.server_close()
        moto.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def upload(folder: Path, address: str) -> None:
    """Puts a folder at an address whose bucket is made."""
    import boto3

    bucket, _, key = address.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    client.create_bucket(Bucket=bucket)
    for file in filter(Path.is_file, folder.rglob("*")):
        client.upload_file(str(file), bucket, f"{key}/{file.relative_to(folder)}")
