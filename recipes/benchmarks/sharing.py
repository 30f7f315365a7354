"""Lets two or three processes write the same result, and compares what each got with what it asked for.

    python recipes/benchmarks/sharing.py                       # 230 runs; needs a C compiler, and moto for S3
    python recipes/benchmarks/sharing.py --only bucket --seeds 20 --output sharing.json

Each file operation takes some milliseconds (`faults.c`), so that those of small jobs mix as those of large ones do.
The processes start together or one after the other, by the seed, and

    same           ask for the same
    other          ask for something else: other buckets, another scorer, other data
    killed         ask for the same; the first is killed, and begun again
    killed, other  the first is killed, and the second asks for something else
    replaced       ask for the same, and a shard of the source is replaced between their starts

`S3` jobs read from a server on this machine that breaks connections, is busy, and cuts bodies short. A cell counts:

    ok       every process has what it asked for
    refused  some have, and the others an error in words
    nobody   all were refused, or killed
    bare, raw, left   as in `faults.py`
    others'  a process was told that all is well, and has the result of another one's settings
    mixed    what is there in the end is the result of nobody
    stuck    the same command undisturbed does not end with it
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import written
from crawl import pairs, write_tar
from faults import LIMIT, SLOW, Answer, Bench, Trial, dealt, forked, outcome, with_library

from hf_curriculum import (
    IID,
    BucketedStream,
    CaptionLength,
    NounCount,
    Phases,
    bucket_shards,
    load_scored,
    make_plan,
    remote,
    save_scored,
    score_shards,
)
from hf_curriculum.planning.export import ExportedOrder

SCHEDULES = ("same", "other", "killed", "killed, other", "replaced")
ORDER = ("others'", "mixed", "raw", "stuck", "nobody", "left", "bare", "refused", "ok")
STORE_FAULTS = ("reset", "503", "", "truncated", "short", "", "reset", "")


@dataclass(frozen=True)
class Job:
    """Something that several processes may write.

    Args:
        name: what the table calls it.
        write: writes into a folder, by setting 0 or 1.
        read: what was written.
        replaces: whether the last one may replace what another has finished.
        source: the crawl that it reads, of which a shard can be replaced.
        seconds: how late a process starts at most, where it starts slowly by itself.
    """

    name: str
    write: Callable[[Path, int], Any]
    read: Callable[[Path], Any]
    replaces: bool = False
    source: Path | None = None
    seconds: float = 0


def jobs(given: Path, crawl: Path) -> list[Job]:
    """All jobs; `crawl` is the copy of a crawl whose shards are replaced."""
    plans = [make_plan(rule, written.scored(0), score_column="caption_length", global_batch_size=4)
             for rule in (Phases(2), IID(epochs=3))]  # fmt: skip

    def score(source: str | Path, out: Path, setting: int) -> None:
        score_shards(source, NounCount() if setting else CaptionLength(), out / "scores")

    def scores(out: Path) -> Any:
        return written.content_of(load_scored(out / "scores"))

    def buckets(source: str | Path, workers: int, out: Path, setting: int) -> str:
        return bucket_shards(source, given / "0" / "shards", out / "buckets", 2 + setting, workers=workers).digest

    def order(out: Path) -> Any:
        order = ExportedOrder(out / "order.npy")
        return order.rows(0, order.known_samples).tolist(), order.facts["plan"]

    def command(out: Path, setting: int) -> None:
        written.command("score", given / "0" / "photos", out / "set", "--scorer",
                        ("caption_length", "noun_count")[setting], "--batch-size", 2, "--part-rows", 2)  # fmt: skip

    def bucketed(out: Path) -> Any:
        return list(BucketedStream(out / "buckets", IID(epochs=1), global_batch_size=4, decode=False))

    local, store = given / "0" / "crawl", "s3://bench/0/crawl"
    return [
        Job("bucket_shards", partial(buckets, local, 1), bucketed),
        Job("bucket_shards, two workers", partial(buckets, local, 2), bucketed, seconds=5),
        Job("bucket_shards, S3", partial(buckets, store, 1), bucketed),
        Job("score_shards", partial(score, crawl), scores, source=crawl),
        Job("score_shards, S3", partial(score, store), scores),
        Job("score", command, lambda out: written.content_of(load_scored(out / "set"))),
        Job("plan.export", lambda out, v: plans[v].export(out / "order.npy"), order, replaces=True),
        Job("save_scored", lambda out, v: save_scored(written.scored(v), out / "set"),
            lambda out: written.content_of(load_scored(out / "set")), replaces=True),
        Job("training", lambda out, v: written.train(out / "run", v), lambda out: written.trained(out / "run")),
    ]  # fmt: skip


@dataclass
class Process:
    """A process that writes.

    Args:
        setting: what it asks for.
        starts: seconds from the run's start.
        killed: seconds from its start, or never.
        again: whether it is begun again then.
    """

    setting: int
    starts: float
    killed: float | None = None
    again: bool = False
    pid: int = 0
    begun: float = 0

    def __str__(self) -> str:
        end = "" if self.killed is None else f", killed after {self.killed:.2f} s"
        return f"setting {self.setting} at {self.starts:.2f} s{end}"


def schedule(name: str, span: float, rng: np.random.Generator) -> list[Process]:
    """Processes whose starts, and a kill, lie within a span of seconds."""
    late = partial(rng.uniform, 0, span)
    second = 0.0 if rng.random() < 0.4 else late()
    other = int("other" in name)
    processes = [Process(0, 0), Process(other, second)]
    if rng.random() < 0.4:
        processes.append(Process(int(rng.integers(2)) if other else 0, late()))
    if "killed" in name:
        processes[0].killed, processes[0].again = late(), not other
    if name == "replaced":
        processes = [Process(0, 0), Process(0, 0.05 + late())]
    return processes


class Runs:
    """Runs of jobs in one folder."""

    def __init__(self, root: Path) -> None:
        self.bench = Bench(root, 0)
        self.answers = root / "answers"
        self.answers.mkdir()
        self.crawl = root / "crawl"

    def restore(self, given: Path) -> None:
        """The crawl as it was."""
        shutil.rmtree(self.crawl, ignore_errors=True)
        shutil.copytree(given / "0" / "crawl", self.crawl)

    def replace_shard(self) -> None:
        """Another shard of the same name."""
        write_tar(self.crawl / "new", pairs(77, 11))
        os.replace(self.crawl / "new", self.crawl / "00001.tar")

    def start(self, job: Job, process: Process, delay: int) -> None:
        """Begins a process."""
        file = self.answers / f"{time.monotonic_ns()}"
        process.pid, process.begun = os.fork(), time.monotonic()
        if process.pid:
            return
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        self.bench.library.faults_arm(f"{self.bench.out}/".encode(), SLOW, ctypes.c_long(delay), -1)
        answer = outcome(partial(job.write, self.bench.out, process.setting))
        self.bench.library.faults_done()
        after = answer if answer.error else outcome(partial(job.read, self.bench.out))
        content = json.dumps({"setting": process.setting, "answer": asdict(answer), "after": asdict(after)})
        file.write_text(content, encoding="utf-8")
        os._exit(0)

    def run(self, job: Job, processes: Sequence[Process], delay: int, replaced: bool) -> list[dict[str, Any]]:
        """The answers of processes that were started, killed and begun again as they say."""
        for file in self.answers.iterdir():
            file.unlink()
        begin, killed = time.monotonic(), 0
        waiting = sorted(processes, key=lambda process: process.starts)
        alive: list[Process] = []
        while waiting or alive:
            now = time.monotonic()
            while waiting and now - begin >= waiting[0].starts:
                alive.append(waiting.pop(0))
                if replaced and len(alive) + killed == len(processes):
                    self.replace_shard()
                self.start(job, alive[-1], delay)
            for process in [*alive]:
                if process.killed is not None and now - process.begun >= process.killed:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                if now - process.begun > LIMIT * (1 + job.seconds):
                    (self.answers / f"hang {process.pid}").write_text(
                        json.dumps({"setting": process.setting, "answer": asdict(Answer(None, "hang"))}))  # fmt: skip
                    os.killpg(process.pid, signal.SIGKILL)
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    alive.remove(process)
                    if os.waitstatus_to_exitcode(status) and process.again:
                        waiting.insert(0, Process(process.setting, now - begin))
            time.sleep(0.002)
        return [json.loads(file.read_text()) for file in sorted(self.answers.iterdir())]

    def trials(self, job: Job, given: Path, seeds: int) -> Iterator[Trial]:
        """All runs of a job."""
        delay = 4000
        wanted, names = [], set()
        for setting in (0, 1):
            self.restore(given)
            self.bench.reset(False)
            begin = time.monotonic()
            answers = self.run(job, [Process(setting, 0)], delay, False)
            span = (time.monotonic() - begin) * 0.9
            if not answers or answers[0]["after"]["error"]:
                raise RuntimeError(f"{job.name} fails undisturbed: {answers}")
            wanted.append(answers[0]["after"]["value"])
            names |= self.bench.names()
        for name in SCHEDULES:
            for seed in range(seeds if not job.seconds else max(1, seeds // 2)):
                if name == "replaced" and job.source is None:
                    continue
                rng = np.random.default_rng([seed, sum(f"{job.name}{name}".encode())])
                self.restore(given)
                self.bench.reset(False)
                processes = schedule(name, job.seconds or span, rng)
                answers = self.run(job, processes, delay, name == "replaced")
                expected = [*wanted]
                if name == "replaced":
                    expected[0] = self.replaced_value(job)
                before = wanted[0] if name == "replaced" else None
                label, text = self.judged(job, answers, expected, before, names, name == "killed, other")
                where = f"seed {seed}: " + "; ".join(map(str, processes))
                yield Trial(job.name, name, where, label, text)

    def replaced_value(self, job: Job) -> str | None:
        """What an undisturbed run has of the source as it is now, elsewhere."""
        elsewhere = self.bench.root / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        elsewhere.mkdir()

        def work() -> Any:
            job.write(elsewhere, 0)
            return job.read(elsewhere)

        return forked(work).value

    def judged(
        self,
        job: Job,
        answers: list[dict[str, Any]],
        wanted: list[str | None],
        before: str | None,
        names: set[str],
        killed: bool = False,
    ) -> tuple[str, str]:
        """What came of a run, in which a process may have been killed and not begun again, and why."""
        done = [answer for answer in answers if not answer["answer"]["error"]]
        errors = [Answer(**answer["answer"]) for answer in answers if answer["answer"]["error"]]
        qualities = [(error.quality(self.bench.root), error.text) for error in errors]
        last = self.bench.read(_as_writer(job))
        texts = " | ".join(error.text for error in errors)
        if raw := [text for quality, text in qualities if quality == "raw"]:
            return "raw", raw[0]
        if not done and not killed:
            return "nobody", texts
        if not done:  # a process that is refused, and then the other is killed
            return max((quality for quality, _ in qualities), key=lambda each: each == "bare"), texts
        asked = [wanted[answer["setting"]] for answer in done] + ([before] if before else [])
        if last.value not in asked:
            return "mixed", f"{last.text} {texts}"
        settings = {answer["setting"] for answer in done}
        if not job.replaces and (len(settings) > 1 or (before and last.value != wanted[0] and len(done) > 1)):
            return "others'", texts
        setting = wanted.index(last.value) if last.value in wanted else 0
        again = forked(partial(job.write, self.bench.out, setting))
        if self.bench.read(_as_writer(job)).value != wanted[setting]:
            return "stuck", again.text
        if left := self.bench.names() - names:
            return "left", str(sorted(left)[:3])
        if bare := [text for quality, text in qualities if quality == "bare"]:
            return "bare", bare[0]
        return ("refused", qualities[0][1]) if qualities else ("ok", "")


def _as_writer(job: Job) -> written.Writer:
    return written.Writer(job.name, "", job.write, job.read)


def serve(folder: Path) -> None:
    """A server of S3 with the crawl, in a process that ends with this one; addresses lead to it."""
    there, told = os.pipe()
    if os.fork() == 0:
        import ctypes.util

        from s3_server import s3_server, upload

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with s3_server() as proxy:
            upload(folder / "0" / "crawl", "s3://bench/0/crawl")
            proxy.faults = STORE_FAULTS
            names = [name for name in os.environ if name.startswith("AWS_")]
            os.write(told, json.dumps({name: os.environ[name] for name in names}).encode())
            os.close(told)
            signal.pause()
    os.close(told)
    with os.fdopen(there) as pipe:
        os.environ.update(json.load(pipe))
    os.environ["AWS_MAX_ATTEMPTS"] = "5"  # lists are tried again by the client alone
    remote.BACKOFF = 0.05


def work(root: Path, options: argparse.Namespace) -> tuple[list[str], Callable[[int], list[Trial]]]:
    """The names of the jobs, and what tries one."""
    written.quiet()
    given = root / "given"
    forked(partial(written.prepare, given), 600)
    serve(given)
    runs = Runs(root)
    every = jobs(given, runs.crawl)
    gc.collect()
    gc.freeze()
    return [job.name for job in every], lambda n: [*runs.trials(every[n], given, options.seeds)]


def main() -> None:
    """Runs the processes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression of jobs")
    parser.add_argument("--seeds", type=int, default=6, help="runs of each job and schedule")
    parser.add_argument("--processes", type=int, default=2, help="that try jobs at once")
    parser.add_argument("--output", type=Path, help="write every run there, as JSON")
    options = parser.parse_args()
    with_library()
    dealt(work, options, SCHEDULES, ORDER, ("ok", "refused"))


if __name__ == "__main__":
    main()
