"""Damages every kind of file that is read back, and says what a reader makes of it.

    python recipes/benchmarks/damage.py                        # about 3,500 damages; needs a C compiler
    python recipes/benchmarks/damage.py --only 'buckets' --seed 1 --output damage.json

Damages are drawn by the seed: a bit flipped, a byte replaced, the end lost, and two files exchanged. Each is read in a
process of its own, as the package reads such files, and given to `hf-curriculum verify` where that command is there.
A cell counts what came of them:

    equal    what was written is read
    clear    an error in words: it names the folder or the file, and says what to do
    vague    an error that names neither, or gives no remedy
    raw      another library's error, a hang, or a signal
    other    something else is read, and nothing is said

`verify` counts: told (an error or a status that is not 0), unseen (no word, though a reader got something else or an
error), fine (no word, and none was needed), raw, and false (it complains of files that are whole, or knows none).
"""

from __future__ import annotations

import argparse
import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import written
from faults import KILL, Bench, Trial, dealt, forked, with_library

from hf_curriculum import (
    BucketedStream,
    CaptionLength,
    Phases,
    Study,
    WordRarity,
    add_scores_sharded,
    bucket_shards,
    load_captioned,
    load_scored,
    load_scores,
    make_plan,
    score_shards,
    summarise,
)
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.models.vision_features import VisionFeatures
from hf_curriculum.reporting.chosen import read_draws
from hf_curriculum.tasks.alignment import RetrievalSuite
from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
from hf_curriculum.tasks.captioning import CaptionSuite

ORDER = ("other", "unseen", "false", "raw", "vague", "clear", "told", "equal", "fine")
SWAPS = 12


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Args:
        name: what the table calls them.
        write: writes them into a folder.
        files: a pattern of those that are damaged.
        read: what a reader gets, given the folder.
        count: of damages.
        verify: what `hf-curriculum verify` is called with, in the folder; nothing to leave it out.
    """

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    files: str = "**/*"
    count: int = 150
    verify: str = ""


def kinds(given: Path, bench: Bench) -> list[Kind]:
    """All kinds of files."""
    return [kind for maker in (of_data, of_shards, of_images, of_runs, of_results) for kind in maker(given, bench)]


def by_name(given: Path, name: str) -> Callable[[Path], Any]:
    """What a writer of `written.py` writes."""
    if not _WRITERS:
        _WRITERS.update((writer.name, writer) for writer in written.writers(given))
    return lambda out: _WRITERS[name].write(out, 1)


_WRITERS: dict[str, written.Writer] = {}


def of_data(given: Path, bench: Bench) -> Iterator[Kind]:
    """Scored data, and what loading keeps."""
    plain = written.scored(1).remove_columns("caption_length")

    def planned(out: Path) -> Any:
        data = load_scored(out / "set")
        plan = make_plan(Phases(2), data, score_column="caption_length", global_batch_size=4)
        return written.content_of(data), plan.rows(0, plan.known_samples).tolist()

    yield Kind("scored set", by_name(given, "save_scored"), planned, "set/**/*", verify="set")
    yield Kind("set with splits", by_name(given, "save_scored, splits"),
               lambda out: written.content_of(load_scored(out / "set")), "set/**/*", verify="set")  # fmt: skip
    yield Kind(
        "side file",
        by_name(given, "save_scores"),
        lambda out: written.content_of(load_scores(plain, out / "side.parquet")),
        verify="side.parquet",
    )

    def fitted(out: Path) -> Any:
        scorers = [WordRarity(), CaptionLength()]
        return written.content_of(add_scores_sharded(plain, scorers, out / "parts", part_rows=8))

    yield Kind("parts of scores, with fitted values", fitted, fitted, "parts/**/*", verify="parts")

    def cached(out: Path) -> Any:
        datasets.config.HF_DATASETS_CACHE = out / "cache"
        return written.content_of(load_captioned(given / "1" / "photos"))

    yield Kind("caches of loading", cached, cached, "cache/**/*")


def of_shards(given: Path, bench: Bench) -> Iterator[Kind]:
    """Scored shards, buckets, and pieces of those that are not finished."""
    crawl, files = given / "1" / "crawl", fsspec.filesystem("memory")

    def shards(out: Path) -> Any:
        return score_shards(crawl, CaptionLength(), out / "scores")

    def again(out: Path) -> Any:
        shards(out)
        return written.content_of(load_scored(out / "scores"))

    def buckets(out: Path) -> Any:
        bucket_shards(crawl, out / "scores", out / "buckets", 2)
        return streamed(out)

    def streamed(out: Path) -> Any:
        return list(BucketedStream(out / "buckets", Phases(2), global_batch_size=4, decode=False))

    yield Kind("scored shards, load_scored", shards, lambda out: written.content_of(load_scored(out / "scores")),
               "scores/**/*", verify="scores")  # fmt: skip
    yield Kind("scored shards, score_shards again", shards, again, "scores/**/*")
    yield Kind("scored shards, bucket_shards", shards, buckets, "scores/**/*", 80)
    for format in ("parquet", "webdataset"):
        yield Kind(f"buckets, {format}", by_name(given, f"save_bucketed {format}"), streamed, "buckets/**/*",
                   verify="buckets")  # fmt: skip

    def begun(out: Path) -> None:
        for at in range(30, 300, 6):
            bench.reset(False)
            shards(out)
            killed = bench.write(written.Writer("", "", lambda out, v: bucket_shards(
                crawl, out / "scores", out / "buckets", 2), streamed), 1, KILL, at)  # fmt: skip
            if not killed.error:
                raise RuntimeError("bucket_shards came to its end before its pieces were written")
            if sum(1 for path in out.glob(".buckets.unfinished/pieces/**/*") if path.is_file()) > FEW:
                return

    yield Kind("pieces of bucket_shards", begun, buckets, ".buckets.unfinished/**/*")

    by_name(given, "save_bucketed parquet")(given)
    files.put(str(given / "buckets"), "/damage/buckets", recursive=True)

    def fetched(out: Path) -> Any:
        address = "memory://damage/buckets"
        return list(BucketedStream(address, Phases(2), global_batch_size=4, decode=False, cache=out / "cache"))

    yield Kind("cache of buckets at an address", fetched, fetched, "cache/**/*", 80)


FEW = 5


def of_images(given: Path, bench: Bench) -> Iterator[Kind]:
    """Regions, features, and boxes."""

    yield Kind(
        "region store",
        by_name(given, "pack_regions"),
        lambda out: written.contents_of(RegionStore(out / "store")),
        "store/**/*",
        verify="store",
    )
    yield Kind("region store, verify() first", by_name(given, "pack_regions"),
               lambda out: written.regions(out / "store"), "store/**/*")  # fmt: skip
    ids = load_scored(given / "1" / "scenes")["image_id"][:]

    def features(out: Path) -> Any:
        stored = VisionFeatures(out / "features")
        return [stored[name].tolist() for name in ids]

    yield Kind("vision features", by_name(given, "cache_vision_features"), features, "features/**/*",
               verify="features")  # fmt: skip
    finished = {"generate_spectrum": "spectrum", "filter_spectrum": "filter", "add_proposals": "parts"}
    for name, folder in finished.items():
        yield Kind(f"parts of {name}", by_name(given, name), partial(reading_of, name), f"{folder}/**/*", 60,
                   verify=folder)  # fmt: skip
    yield Kind(
        "index of a table's lines",
        by_name(given, "write_line_index"),
        lambda out: written.contents_of(open_regions(out / "regions.tsv")),
        "*.lineidx",
        60,
    )


def reading_of(name: str, out: Path) -> Any:
    """What a writer's reader gets."""
    return _WRITERS[name].read(out)


def of_runs(given: Path, bench: Bench) -> Iterator[Kind]:
    """Orders, checkpoints and studies."""
    yield Kind("exported order", by_name(given, "plan.export order.npy"), partial(reading_of, "plan.export order.npy"),
               verify="order.npy")  # fmt: skip

    def half(out: Path) -> None:
        written.train(out / "run", 1)
        shutil.rmtree(out / "run" / "checkpoint-6")

    def resumed(out: Path) -> Any:
        written.train(out / "run", 1, str(out / "run" / "checkpoint-4"))
        return written.trained(out / "run")

    yield Kind("checkpoint, resumed", half, resumed, "run/checkpoint-4/*", 120, verify="run/checkpoint-4")
    yield Kind("draws of a run", lambda out: written.train(out / "run", 1),
               lambda out: sorted((step, rows.tolist()) for step, rows in read_draws(out / "run", 8).items()),
               "run/draws-rank0.jsonl", 60)  # fmt: skip

    def results(out: Path) -> Any:
        study = Study(lambda settings: {}, {"one": {"rate": 1.0}, "two": {"rate": 3.0}}, [0, 1], out / "study")
        return [run.result for run in study.runs], summarise(study.runs, ["eval_loss"]).to_csv()

    yield Kind("results of a study", by_name(given, "Study.run"), results, "study/**/*", verify="study")


def of_results(given: Path, bench: Bench) -> Iterator[Kind]:
    """Ontologies, and results that are compared."""
    data = written.scored(0)
    ours = written.sentences(12, 8)

    def captions(out: Path) -> Any:
        compare, difficulty = {"other": out / "results/captions.json"}, out / "results/per_image.csv"
        suite = CaptionSuite(
            data, ["cider", "bleu"], name="ours", compare=compare, difficulty=difficulty, resamples=20
        )
        return suite(ours).to_dict()

    yield Kind("results of captions, compared", by_name(given, "CaptionSuite.write"), captions, "**/*[v.n]",
               verify="results")  # fmt: skip

    def ranks(out: Path) -> Any:
        suite = RetrievalSuite(data, name="ours", compare={"other": out / "results"}, resamples=20)
        return suite(ScoreMatrix(np.random.default_rng(5).random((24, 12)))).to_dict()

    yield Kind("results of retrieval, compared", by_name(given, "RetrievalSuite.write"), ranks, "**/ranks.csv",
               verify="results")  # fmt: skip
    yield Kind("ontology", by_name(given, "Ontology.save"), partial(reading_of, "Ontology.save"),
               verify="ontology.json")  # fmt: skip


# ---- Damages ----


def damaged(content: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """The content with a bit flipped, a byte replaced, or its end lost."""
    place, how = int(rng.integers(len(content))), rng.integers(4)
    if how == 0:
        return f"cut at {place}", content[:place]
    changed = bytearray(content)
    changed[place] = changed[place] ^ (1 << rng.integers(8)) if how < 3 else rng.integers(256)
    return f"byte {place}", bytes(changed)


def damages(files: list[Path], count: int, rng: np.random.Generator) -> Iterator[tuple[str, str, dict[Path, bytes]]]:
    """Damages in words, their files, and what these hold then."""
    long = [file for file in files if file.stat().st_size]
    for turn in range(count):
        file = long[turn % len(long)]
        whole = file.read_bytes()
        words, content = damaged(whole, rng)
        if content != whole:
            yield "damages", f"{file.name}: {words}", {file: content}
    pairs = [(a, b) for a in long for b in long if a < b and a.read_bytes() != b.read_bytes()]
    like = [pair for pair in pairs if pair[0].suffix == pair[1].suffix]
    for choice in (like, pairs):
        for number in rng.permutation(len(choice))[: SWAPS // 2]:
            a, b = choice[number]
            yield "swaps", f"{a.name} ↔ {b.name}", {a: b.read_bytes(), b: a.read_bytes()}


def trials(kind: Kind, bench: Bench, seed: int, share: float) -> Iterator[Trial]:
    """All damages of a kind."""
    shutil.rmtree(bench.former, ignore_errors=True)
    bench.reset(False)
    if (failed := forked(lambda: kind.write(bench.out), 300)).error:
        raise RuntimeError(f"{kind.name} cannot be written: {failed}")
    shutil.copytree(bench.out, bench.former, symlinks=True)
    wanted = forked(lambda: kind.read(bench.out))
    bench.reset(True)
    again = forked(lambda: kind.read(bench.out))
    if wanted.error or wanted != again:
        raise RuntimeError(f"{kind.name} cannot be read undisturbed, or differently each time: {wanted} {again}")
    bench.reset(True)
    files = sorted(path for path in bench.out.glob(kind.files) if path.is_file())
    has_verify = kind.verify and not forked(lambda: written.command("verify", "--help")).error
    if has_verify and (false := forked(lambda: written.command("verify", bench.out / kind.verify))).error:
        has_verify = False
        yield Trial(kind.name, "verify", "nothing", "false", false.text)
    rng = np.random.default_rng([seed, sum(kind.name.encode())])
    for column, words, contents in [*damages(files, round(kind.count * share), rng)]:
        bench.reset(True)
        for file, content in contents.items():
            file.write_bytes(content)
        told = has_verify and forked(lambda: written.command("verify", bench.out / kind.verify))
        answer = forked(lambda: kind.read(bench.out))
        label = "equal" if answer.value == wanted.value else "other"
        if answer.error:
            quality = answer.quality(bench.root)
            label = {"refused": "clear", "bare": "vague"}.get(quality, quality)
        yield Trial(kind.name, column, words, label, answer.text)
        if told:
            quality = told.quality(bench.root) if told.error else "fine" if label == "equal" else "unseen"
            yield Trial(kind.name, "verify", words, {"refused": "told", "bare": "told"}.get(quality, quality),
                        told.text)  # fmt: skip


def work(root: Path, options: argparse.Namespace) -> tuple[list[str], Callable[[int], list[Trial]]]:
    """The names of the kinds, and what tries one."""
    written.quiet()
    bench = Bench(root, 0)
    forked(partial(written.prepare, root / "given"), 600)
    every = kinds(root / "given", bench)
    gc.collect()
    gc.freeze()
    return [kind.name for kind in every], lambda n: [*trials(every[n], bench, options.seed, options.share)]


def main() -> None:
    """Runs the processes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression of kinds")
    parser.add_argument("--seed", type=int, default=0, help="which damages")
    parser.add_argument("--share", type=float, default=1, help="of the damages of each kind; 0.1 for a quick look")
    parser.add_argument("--processes", type=int, default=2, help="that work at once")
    parser.add_argument("--output", type=Path, help="write every damage there, as JSON")
    options = parser.parse_args()
    with_library()
    dealt(work, options, ("damages", "swaps", "verify"), ORDER, ("equal", "clear", "told", "fine"))


if __name__ == "__main__":
    main()
