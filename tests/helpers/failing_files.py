"""File operations that fail, or end the process, at the n-th."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from contextlib import contextmanager
from unittest import mock

import pyarrow.parquet

_NAMES = [(os, name) for name in ("replace", "rename", "link", "mkdir", "unlink", "rmdir", "fsync")]
_NAMES += [(builtins, "open"), (io, "open"), (pyarrow.parquet, "ParquetWriter")]


@contextmanager
def failing_files(at=None, end=False):
    """Raises "no space left" at the file operation `at`, or ends the process there; gives the list of operations."""
    done = []

    def counted(name, function):
        def call(*args, **options):
            mode = str(options.get("mode", args[1] if len(args) > 1 else "r"))
            if name != "open" or set(mode) & set("wax+"):
                done.append(name)
                if len(done) - 1 == at:
                    if end:
                        os._exit(9)
                    raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **options)

        return call

    with (
        mock.patch.multiple(builtins, open=counted("open", open)),
        mock.patch.multiple(io, open=counted("open", open)),
    ):
        patches = [mock.patch.object(*at, counted(at[1], getattr(*at))) for at in _NAMES if at[1] != "open"]
        for patch in patches:
            patch.start()
        try:
            yield done
        finally:
            for patch in patches:
                patch.stop()


def interrupted(write, at, end):
    """Whether `write` came to its end with the file operation `at` failing, in its own process where that ends it."""
    if end:
        return _forked(write, failing_files(at, end=True))
    try:
        with failing_files(at):
            write()
    except OSError:
        return False
    return True


def _forked(write, context):
    process = os.fork()
    if process == 0:
        signal.alarm(60)  # a process that hangs is one that did not come to its end
        status = 9
        try:
            with context:
                write()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1] == 0
