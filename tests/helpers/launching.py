"""Programs started as a shell or `torchrun` starts them, forked from one process that has imported the libraries.

Their import takes longer than most programs that tests start. Those that ask what an import does are started anew.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

POLL = 0.01
"""Seconds between two looks at the processes of a run."""


class Launcher:
    """Starts programs in an environment (this process's by default) that stands when the libraries are imported."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = env
        self._server: subprocess.Popen | None = None

    def run(
        self,
        program: str | Path,
        *arguments: object,
        processes: int = 1,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 300,
        check: bool = True,
        draw: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a file, or a module by its name, to its end.

        Args:
            processes: How many do it together, as under `torchrun`; when one fails, the others are killed.
            env: What is set beside the launcher's environment, or taken from it (`None`); too late for what libraries
                read when they are imported.
            check: Whether a status other than 0 is an error.
            draw: Whether its figures are drawn, which takes as long as a tiny run; else they are empty.
        """
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__], env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        with tempfile.TemporaryDirectory() as folder:
            job = {
                "program": str(program),
                "is_module": isinstance(program, str),
                "arguments": [str(argument) for argument in arguments],
                "processes": processes,
                "cwd": str(cwd or Path.cwd()),
                "env": dict(env or {}),
                "timeout": timeout,
                "draw": draw,
                "streams": [f"{folder}/out", f"{folder}/err"],
            }
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            status = int(self._server.stdout.readline())
            # A process that was killed may leave half a character.
            out, err = (Path(stream).read_text(encoding="utf-8", errors="replace") for stream in job["streams"])
        assert not check or status == 0, f"{status}: {err[-9000:]}"
        return subprocess.CompletedProcess([str(program), *job["arguments"]], status, out, err)

    def close(self) -> None:
        """Ends the process that programs are forked from."""
        if self._server is not None:
            self._server.stdin.close()
            self._server.wait()
            self._server = None


def fork(become: Callable[[int], object], processes: int, limit: float) -> list[int]:
    """Forks processes, of which each gets its number and must not return, and waits until all have ended.

    When one fails, or the time is over, the others are killed.

    Returns:
        Status of each that ended by itself: 0, an exit status, or the negative number of a signal.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running, statuses = [], []
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            if processes > 1:
                ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
                os.environ.update({name: str(value) for name, value in ranks.items()})
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            become(rank)
            raise AssertionError("a forked process went on as its parent")
        running.append(pid)
    end = time.monotonic() + limit
    while running:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.remove(pid)
                statuses.append(os.waitstatus_to_exitcode(status))
        if running and (any(statuses) or time.monotonic() > end):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return statuses or [-signal.SIGKILL]
        time.sleep(POLL)
    return statuses


class Child(BaseException):
    """Leaves the server's loop in a forked process."""


def serve() -> None:
    """Runs what is asked for, one line of JSON after the other; the status is the answer."""
    for line in sys.stdin:
        job = json.loads(line)

        def become(rank: int, job: dict = job) -> None:
            raise Child(job)

        statuses = fork(become, job["processes"], job["timeout"])
        print(next((status for status in statuses if status), 0), flush=True)


def save_work_on_figures(set_attribute: Callable[[object, str, object], object], draw: bool) -> None:
    """Figures are coarse and for two screens in place of four, or have nothing on them."""
    from matplotlib.figure import Figure

    from hf_curriculum.reporting import report
    from hf_curriculum.reporting.figures import canvas

    set_attribute(canvas, "DPI", 60)
    set_attribute(report, "_SCREENS", report._SCREENS[:1])
    if not draw:
        set_attribute(Figure, "draw", lambda *_: None)


def look_up_packages_once() -> None:
    """`accelerate` looks for packages on disk with each loader and each step of an optimizer."""
    from accelerate.utils import imports

    imports._is_package_available = functools.cache(imports._is_package_available)


def run(job: dict) -> None:
    """Becomes the program."""
    for number, stream in enumerate(["/dev/null", *job["streams"]]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(stream, flags), number)
    os.chdir(job["cwd"])
    for name, value in job["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    save_work_on_figures(setattr, job["draw"])
    sys.argv = [job["program"], *job["arguments"]]
    if job["is_module"]:
        sys.path[0] = job["cwd"]
        runpy.run_module(job["program"], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(job["program"]).parent)
        runpy.run_path(job["program"], run_name="__main__")


def import_libraries() -> None:
    """Imports what takes long, and leaves it out of every later collection of garbage."""
    import nltk  # noqa: F401

    import hf_curriculum
    import hf_curriculum.reporting.report

    with contextlib.suppress(ImportError):
        from diffusers import DDIMScheduler, UNet2DConditionModel  # noqa: F401
    for name in hf_curriculum.__all__:
        getattr(hf_curriculum, name)
    look_up_packages_once()
    gc.collect()
    gc.freeze()


def leave(status: int) -> None:
    """Ends this process without freeing what the libraries made, which takes seconds in each."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    import_libraries()
    try:
        serve()
    except Child as child:
        job = child.args[0]
    else:
        leave(0)
    status = 0
    try:
        run(job)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)
