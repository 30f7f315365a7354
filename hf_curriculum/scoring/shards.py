"""`score_shards`: a crawl scored where it lies, by any number of processes, 4 bytes a pair and score."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Image, IterableDataset
from tqdm.auto import tqdm

from hf_curriculum.claims import Claim, Claims
from hf_curriculum.columns import CAPTION, IMAGE, require_columns
from hf_curriculum.config import brief
from hf_curriculum.data.image_files import image_key
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.shards import FIRST, DamagedShardError, ShardReader, how_to_name, json_text
from hf_curriculum.data.readers.source_shards import SourceShard, find_shards
from hf_curriculum.files import (
    DamagedFileError,
    own_folder,
    read_sealed,
    refuse_file,
    refuse_foreign,
    refuse_link,
    refuse_other_kind,
    remove_dead,
    resolved,
    sole_writer,
    write_sealed,
)
from hf_curriculum.parts import PartFolder, launched
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scored_shards import (
    CHECKED,
    FAILED,
    FITTED_VALUES,
    KEY,
    MANIFEST,
    MARK,
    OF_SHARDS,
    SCORES,
    about_shard,
    checksums,
    done_shards,
    finished_shards,
    manifest_digest,
    mark,
    read_manifest,
    score_features,
    score_file,
    stem_of,
    verify_shard_scores,
)
from hf_curriculum.scorers.base import CaptionScorer, Scorer
from hf_curriculum.scorers.visual.images import image_workers
from hf_curriculum.scoring.add_scores import as_scorers
from hf_curriculum.scoring.join import side_file_name
from hf_curriculum.scoring.sharded import FITTED, read_fitted, write_fitted
from hf_curriculum.sealed_parquet import sealed_parquet
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

_FORMAT = 1
_CLAIMS = ".claims"
_POLL = 1.0  # seconds between two looks for a shard that is free
_PATIENCE = 600.0  # seconds to wait for another process that writes the manifest
_UNREACHABLE = 8  # shards that cannot be fetched one after the other: the store is away
_FAILURES = 16  # pairs of a batch, at least: a scorer that fails on each of them has failed on the shard
_FEW = 100  # pairs that mostly have all columns
_TRIES = 5  # shards that are opened for their columns, at most
_COUNT = 5.0  # seconds between two counts of what all processes have done, 100,000 files maybe


@dataclass(frozen=True)
class ShardScores:
    """How far a folder of scores is, as `score_shards` returns it and `--status` prints it.

    Args:
        done: shards that are scored.
        shards: shards of the source.
        pairs: rows that are scored.
        failed: shard → why it could not be read, or its scores cannot.
        working: shards that a process works on.
        seconds_left: by the shards of the last minutes; None where none was scored.
        left_out: what was not read or not scored, and why → how often, and an example.
        dropped: shard → why it could not be read; the scores are complete without it (`bad_shards="drop"`).
    """

    done: int
    shards: int
    pairs: int
    failed: Mapping[str, str] = field(default_factory=dict)
    working: Sequence[Claim] = ()
    seconds_left: float | None = None
    left_out: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether each shard is scored or dropped."""
        return self.done + len(self.dropped) == self.shards

    def describe(self) -> str:
        """A few lines for people."""
        lines = [f"{self.done:,} of {self.shards:,} shards are scored: {self.pairs:,} pairs."]
        if self.dropped:
            lines[0] += f" Dropped: {len(self.dropped):,}."
        if self.seconds_left is not None and not self.complete:
            lines[0] += f" About {_duration(self.seconds_left)} are left."
        lines += [f"  {claim.name}: {claim.owner}, last seen {claim.age:.0f} s ago" for claim in self.working]
        lines += [f"  {shard} failed: {why}" for shard, why in self.failed.items()]
        lines += [f"  {shard} is dropped: {why}" for shard, why in self.dropped.items()]
        lines += [
            f"  {count:,} × {why}, {brief(example, 300)} for example"
            for why, (count, example) in self.left_out.items()
        ]
        return "\n".join(lines)


@validate_arguments
def score_shards(
    source: str | Path | Sequence[str | Path],
    scorers: Scorer | Sequence[Scorer],
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    batch_size: int = 256,
    num_proc: int = 1,
    num_workers: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    bad_shards: Literal["error", "drop"] = "error",
    lease: float = 120,
) -> ShardScores:
    """Scores the pairs of a crawl in place, shard by shard, without copying data or writing images.

    Each shard's scores become one small Parquet file in `out`: the pair's key, the columns of `keep`, and float32
    scores, in the order of the shard. By 32 bits of each text and image that is scored, `load_scores` knows other
    pairs of a key. Its metadata has the shard's name, size and digest, and the provenance of the scores. A file is
    written completely or not at all, and equal shards give equal files, byte for byte. Each call reads what is scored
    already: a damaged file, and one of a shard that was written again with another content, are made again. Contents
    are compared where a shard's size, ETag or time of change is another one.

    Any number of processes may share `out`, at the same time or later, on a disk that all see: each takes the next
    free shard. The shard of a process that died becomes free again. Every process waits until all shards are scored. A
    shard at an address is fetched while the one before it is scored. It is compared with the MD5 or SHA-256 that its
    store has of it. Of objects that were uploaded in parts or composed a store has none.

    A fault of a pair is a fault of that pair alone. Its score is NaN where the caption or image is missing, where the
    caption is no text (a number, a list of several texts), and where the scorer fails. `ShardScores.left_out` counts
    these by reason. A shard that cannot be read, or fetched, is named, and the others are scored. Each call tries it
    again.

    `load_scored(out)` reads the scores as a data set of keys; `bucket_shards` writes the pairs in order of difficulty.

    Args:
        source: WebDataset archives (.tar), Parquet files, or an output folder of img2dataset: a path, an address that
            `fsspec` opens, a folder, a pattern (`cc12m/{00000..01242}.tar`, `*.tar`), or a list of these.
        scorers: one or more. One that needs `fit` and was not fitted is fitted on the texts of the whole source, by
            one process.
        out: the folder of the scores.
        columns: our column names -> theirs, such as `{"caption": "text"}`; an archive's are the fields of its JSON
            files, or endings of its files (`{"image": "left.jpg"}`).
        keep: further columns to keep with the scores, as texts: "uid", "url", "caption".
        batch_size: pairs per call of a scorer; a batch does not go beyond its shard.
        num_proc: processes to start here, each with its own model.
        num_workers: processes that open and prepare images for each of these models while it computes.
        rank, world_size: of this process, as in `add_scores_sharded`; they only decide its first shard.
        storage_options: for `fsspec`.
        bad_shards: "drop" completes the scores without shards that cannot be read or are no longer there, and names
            these in `shards.json`; `load_scored` and `bucket_shards` then go without them.
        lease: seconds without a heartbeat after which the shard of a process on another machine is free.

    Returns:
        How much is scored: all of it.

    Raises:
        FileNotFoundError: there is no such shard.
        ValueError: a column is missing, `out` holds scores made in another way, or shards cannot be read; the others
            are scored then.
        ConnectionError: the store cannot be reached.

    Example:
        >>> score_shards("cc12m/{00000..01242}.tar", CLIPSimilarity(), "scores").describe()   # doctest: +SKIP
        '1,243 of 1,243 shards are scored: 11,890,312 pairs.'
    """
    if batch_size < 1 or num_proc < 1 or num_workers < 0 or lease <= 0:
        raise ValueError(
            f"batch_size={batch_size}, num_proc={num_proc}, num_workers={num_workers} and lease={lease} were given. "
            "The first two are at least 1, num_workers is not below 0, and a lease is above 0 seconds."
        )
    validate_choice("bad_shards", bad_shards, ("error", "drop"))
    shards = find_shards(source, storage_options, allow_missing=True)
    names, out, drop = dict(columns or {}), resolved(out), bad_shards == "drop"
    run = ShardRun(as_scorers(scorers), shards, out, names, tuple(keep), batch_size, lease, num_workers, drop)
    run.begin()
    rank, world_size = launched(rank, world_size)
    if num_proc == 1:
        run.work(rank / world_size)
    else:
        run.work_in_processes(num_proc, rank, world_size)
    return run.end()


@dataclass
class ShardRun:
    """What all processes of a run do alike."""

    scorers: list[Scorer]
    shards: list[SourceShard]
    out: Path
    columns: dict[str, str]
    keep: tuple[str, ...]
    batch_size: int
    lease: float
    num_workers: int = 0
    drop: bool = False
    former: dict[str, str] = field(default_factory=dict)
    """Shard → the attempt of another call that failed on it: this one tries again."""

    def begin(self) -> None:
        """What comes before the first shard: the columns are there, scorers are fitted, `out` is of this run."""
        self.validate_out()
        known = read_manifest(self.out)["shards"] if (self.out / MANIFEST).is_file() else {}
        if lost := [shard for shard in self.shards if not (shard.stamp or shard.name in known or self.drop)]:
            raise lost[0].missing  # a name that was mistyped, maybe
        self.validate_columns()
        for place, folders, names in os.walk(self.out):
            remove_dead(Path(place))
            for name in (*folders, *names):
                refuse_link(Path(place, name))
        self.fit()
        self.validate_manifest()
        self.former = {stem: note["attempt"] for stem, note in _read_notes(self.out).items()}
        self.compare_finished()

    def validate_out(self) -> None:
        """Checks that scores can be written to `out`, and replace nothing that is no scores."""
        refuse_file(self.out)
        refuse_other_kind(self.out, MANIFEST)
        refuse_foreign(self.out / MANIFEST)
        if not (self.out / MANIFEST).is_file():  # nobody has compared what is there
            for shard in self.shards:
                file = score_file(self.out, shard.name)
                refuse_link(file)
                side_file_name(file)

    def end(self) -> ShardScores:
        """How far the scores are; a `ValueError` for shards that cannot be read."""
        listed = {shard.stem for shard in self.shards}
        notes = {stem: note for stem, note in _read_notes(self.out).items() if note["listed"] or stem not in listed}
        if listed - notes.keys() - done_shards(self.out):  # another process has found a fault in scores since
            self.work(0.0)
            return self.end()
        failed = {note["shard"]: note["why"] for note in notes.values()}
        self._change_manifest(
            lambda facts: {"dropped": {name: failed[name] for name in failed if self.drop or name in facts["dropped"]}}
        )
        status = shard_status(self.out)
        if status.failed:
            first = "; ".join(f"{shard}: {why}" for shard, why in list(status.failed.items())[:3])
            raise ValueError(
                f"{len(status.failed):,} of {status.shards:,} shards cannot be read, and the others are scored. "
                f"{first} When they are whole again, the same command scores them alone. Without them it is complete "
                "with bad_shards='drop' (hf-curriculum score: --bad-shards drop)."
            )
        known = read_manifest(self.out)["contents"]
        fresh = [name for name in finished_shards(self.out) if name not in known] if status.complete else []
        contents = {name: about_shard(self.out, name)["digest"] for name in fresh}
        self._change_manifest(lambda facts: {"contents": dict(sorted({**facts["contents"], **contents}.items()))})
        if status.left_out or status.dropped:
            logger.warning("%s", status.describe())
        return status

    def reader(self, path: Path, shard: SourceShard) -> ShardReader:
        """What reads a shard."""
        texts = [scorer.column for scorer in self.scorers if isinstance(scorer, CaptionScorer)]
        names = tuple(dict.fromkeys([CAPTION, *texts]))
        return ShardReader(path, shard.kind, self.columns, names, named=self.read, address=shard.shown)

    def left(self, shards: Sequence[SourceShard]) -> Iterator[SourceShard]:
        """Those of shards that are not scored, and have not failed."""
        done = done_shards(self.out)
        yield from (shard for shard in shards if shard.stem not in done and not self._has_failed(shard))

    def _has_failed(self, shard: SourceShard) -> bool:
        """Whether a shard could not be read since this call began."""
        note = _read_note(_note_file(self.out, shard.stem))
        return note is not None and note["listed"] and note["attempt"] != self.former.get(shard.stem)

    @property
    def read(self) -> list[str]:
        """The columns that are read of a shard: those of scorers, less what scorers before them write."""
        names, written = list(self.keep), set()
        for scorer in self.scorers:
            group = [] if scorer.group_by is None else [scorer.group_by]
            names += [name for name in (*scorer.columns, *group) if name not in written]
            written |= scorer.outputs.keys()
        return list(dict.fromkeys(names))

    @property
    def checked(self) -> list[str]:
        """The columns of which checksums are kept: those that are scored, and not kept themselves."""
        scored = {name for scorer in self.scorers for name in scorer.columns}
        return [name for name in self.read if name in scored and name not in self.keep]

    def validate_columns(self) -> None:
        """Compares what scorers read with the first shard, before anything is paid for."""
        groups = {scorer.group_by for scorer in self.scorers}
        needed = [name for name in self.read if name not in groups]
        first: Exception | None = None
        there = [shard for shard in self.shards if shard.stamp]
        for shard in there[:: -(-len(there) // _TRIES)]:  # one that is damaged, or without captions, is no verdict
            try:
                with shard.local() as path:
                    reader = self.reader(path, shard)
                    for most in (_FEW, FIRST):
                        found, _ = reader.first_features(most)
                        missing = next((name for name in needed if name not in found), KEY)
                        if missing == KEY:
                            break
                remedy = how_to_name(missing, found, reader.first_left_out, self.read)
                require_columns(found, needed, reader=f"They are read of {shard.name}.", remedy=remedy)
                if reader.taken:
                    logger.info("%s: read caption ← %s; `columns` names others.", shard.name, ", ".join(reader.taken))
                return
            except (OSError, ValueError) as error:
                first = first or error
        raise first

    def fit(self) -> None:
        """Fits the scorers that need it, in the first process that comes; the others read what it has fitted."""
        for scorer in self.scorers:
            if not scorer.needs_fit:
                continue
            name = next(iter(scorer.outputs))
            folder, claims = own_folder(self.out / FITTED_VALUES) / name, Claims(self.out / _CLAIMS, self.lease)
            identity = {"scorer": scorer.describe(name).to_dict(), "source": scorer.source_digest()}
            PartFolder(own_folder(folder), {**identity, "columns": self.columns}, rows=0, step=1)
            with claims.alive():
                while not (folder / FITTED).is_file():
                    if claims.take(f"fit of {name}") and not (folder / FITTED).is_file():
                        scorer.fit(IterableDataset.from_generator(partial(self._texts, scorer.columns)))
                        write_fitted(folder, {item: getattr(scorer, item) for item in scorer.fitted_attributes})
                    time.sleep(0 if (folder / FITTED).is_file() else _POLL)
            for item, value in read_fitted(folder, scorer.fitted_attributes).items():
                setattr(scorer, item, value)

    def _texts(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        for shard in self.shards:
            try:
                with shard.local() as path:
                    for batch in self.reader(path, shard).batches(names, self.batch_size):
                        for values in zip(*(batch[name] for name in names), strict=True):
                            yield dict(zip(names, values, strict=True))
            except DamagedShardError as error:  # it is named again when it is to be scored
                logger.warning("Nothing more is learnt from %s: %s", shard.name, error)
            except (FileNotFoundError, PermissionError) as error:
                if not self.drop:
                    raise
                logger.warning("Nothing is learnt from %s: %s", shard.name, error)

    @property
    def provenance(self) -> dict[str, Any]:
        """Column → how it is made."""
        return {column: scorer.describe(column) for scorer in self.scorers for column in scorer.outputs}

    @property
    def way(self) -> dict[str, Any]:
        """What must be equal for files of scores to belong together."""
        sources = {next(iter(each.outputs)): source for each in self.scorers if (source := each.source_digest())}
        scores = {name: made.to_dict() for name, made in self.provenance.items()}
        facts = {"scores": scores, "keep": list(self.keep), "columns": self.columns, "batch_size": self.batch_size}
        facts["checked"] = self.checked
        return json.loads(json.dumps({"format": _FORMAT, **facts, **({"source": sources} if sources else {})}))

    def validate_manifest(self) -> None:
        """Compares the manifest with this run; the first process writes it."""
        if not (self.out / MANIFEST).exists():
            names = dict.fromkeys((shard.name for shard in self.shards), "")  # none is compared yet
            facts = {**self.way, "shards": names, "dropped": {}, "contents": {}}
            write_sealed(self.out / MANIFEST, facts, keep_existing=True)
        manifest, way = read_manifest(self.out), self.way
        known, *_ = (manifest.pop(name) for name in OF_SHARDS)
        if manifest != way:
            differs = sorted(name for name in {*manifest, *way} if manifest.get(name) != way.get(name))
            raise ValueError(
                f"{self.out} holds scores that were made in another way: {', '.join(differs)} differ. Together they "
                "would be columns made in two ways. Give these scores a folder of their own, or delete that one."
            )
        if known and known.keys().isdisjoint(shard.name for shard in self.shards):
            raise ValueError(
                f"{self.out} holds scores of {len(known):,} shards, and none of them, such as {next(iter(known))}, is "
                f"among the {len(self.shards):,} of this source. Name all of them, from the same folder, or another "
                "folder for the scores."
            )

    def _change_manifest(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Gives the manifest other values, one process after the other."""
        file, facts = self.out / MANIFEST, read_manifest(self.out)
        if json.dumps({**facts, **change(facts)}) == json.dumps(facts):  # nothing is written where all is done
            return
        with sole_writer(file, file.with_name(f".{MANIFEST}.lock"), _PATIENCE):
            facts = read_manifest(self.out)
            write_sealed(file, {**facts, **change(facts)})

    def compare_finished(self) -> None:
        """Compares files of scores with their shards, which the manifest then names as they are now."""
        known, done = read_manifest(self.out)["shards"], done_shards(own_folder(self.out / SCORES).parent)
        finished = [shard for shard in self.shards if shard.stem in done and shard.stamp]
        with ThreadPoolExecutor(16) as readers:
            unread = readers.map(lambda shard: self._unread(shard, known.get(shard.name)), finished)
            faults = {shard.name: why for shard, why in zip(finished, unread, strict=True) if why}
        still = done_shards(self.out)
        listed = {shard.name: shard.stamp for shard in self.shards}
        for shard in self.shards:
            if shard.name in faults:
                _write_note(self.out, shard.name, faults[shard.name])
        for name in known.keys() - listed.keys():
            why = f"{name} is not among the {len(listed):,} of this source. Name all of them, from the same folder."
            _write_note(self.out, name, why, listed=False)

        def merged(facts: dict[str, Any]) -> dict[str, Any]:
            """The shards as they are now; of those that cannot be looked at, as they were."""
            names, former, before = list(listed), facts["shards"], None
            for name in former:
                if name not in listed:
                    names.insert(0 if before is None else names.index(before) + 1, name)
                before = name
            compared = {name: stamp for name, stamp in listed.items() if stamp and name not in faults}
            contents = {name: content for name, content in facts["contents"].items() if stem_of(name) in still}
            return {"shards": {name: compared.get(name, former.get(name, "")) for name in names}, "contents": contents}

        self._change_manifest(merged)

    def _unread(self, shard: SourceShard, former: str | None) -> str:
        """Deletes scores that are damaged or of another content, which are made again; why they cannot be compared."""
        file = score_file(self.out, shard.name)
        try:
            about = verify_shard_scores(self.out, shard.name)
            same = shard.kind == "files" or about["bytes"] == shard.bytes
            if same and former != shard.stamp:
                with shard.local() as path:
                    same = self.reader(path, shard).digest == about["digest"]
        except FileNotFoundError as error:
            return f"{error}" if file.exists() else ""
        except DamagedFileError as error:
            logger.warning("%s is scored again: %s", shard.name, error)
        except OSError as error:
            return f"{error}"
        else:
            if same:
                if (note := _note_file(self.out, shard.stem)).is_file():  # a disk that is only read refuses to delete
                    note.unlink(missing_ok=True)
                return ""
            logger.warning("%s was changed after it was scored: it is scored again.", shard.name)
        file.unlink(missing_ok=True)
        return ""

    def work_in_processes(self, count: int, rank: int, world_size: int) -> None:
        """`work` in `count` processes; one that dies leaves its shards to the others."""
        context = multiprocessing.get_context("spawn")
        starts = [(rank + number / count) / world_size for number in range(count)]
        processes = [context.Process(target=self.work, args=(start, number)) for number, start in enumerate(starts)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(
                f"{sum(bool(process.exitcode) for process in processes)} of {count} processes ended with an error, "
                "which stands above. Finished shards are kept; the same command continues."
            )

    def work(self, start: float, worker: int | None = None, most: int | None = None) -> None:
        """Scores shards that are free, at `most` so many, until every one is scored; looks from a share `start` on."""
        claims, watched = Claims(self.out / _CLAIMS, self.lease), start == 0 and most is None
        turn = islice(self._turn(claims, int(start * len(self.shards))), most)
        bar = progress_bar(self.out, len(self.shards), watched)
        reading, unreachable = image_workers(self.num_workers), 0
        with claims.alive(), ThreadPoolExecutor(1) as ahead, reading, bar as moved:
            for shard, fetched in _fetched(turn, ahead):
                unreachable = unreachable + 1 if isinstance(fetched, ConnectionError) else 0
                if unreachable == _UNREACHABLE:
                    raise fetched
                why = self._fault(shard, fetched, worker)
                if why and not shard.is_local:  # it may have been damaged on its way
                    for _, again in _fetched(iter([shard]), ahead):
                        why = self._fault(shard, again, worker)
                if why:
                    _write_note(self.out, shard.name, why)
                    logger.error("%s", why)
                claims.give_back(shard.name)
                moved()

    def _fault(self, shard: SourceShard, fetched: Path | Exception, worker: int | None) -> str:
        """Scores a shard; says why it cannot be read, or "" for one that is scored."""
        try:
            if isinstance(fetched, Exception):
                return f"{fetched}"
            self.write_scores(shard, fetched, worker)
        except DamagedShardError as error:
            return f"{error}"
        _note_file(self.out, shard.stem).unlink(missing_ok=True)
        return ""

    def _turn(self, claims: Claims, first: int) -> Iterator[SourceShard]:
        """Shards that this process has claimed, one after the other, until every one is done."""
        left = list(self.left([*self.shards[first:], *self.shards[:first]]))
        while left:
            busy = []
            for shard in left:
                if self._is_done(shard):
                    continue
                if not claims.take(shard.name):
                    busy.append(shard)
                elif self._is_done(shard):  # since the look
                    claims.give_back(shard.name)
                else:
                    yield shard
            if left := busy:
                time.sleep(_POLL)

    def _is_done(self, shard: SourceShard) -> bool:
        return score_file(self.out, shard.name).is_file() or self._has_failed(shard)

    def write_scores(self, shard: SourceShard, path: Path, worker: int | None) -> None:
        """Scores a shard and writes its file."""
        reader, version = self.reader(path, shard), _version(path)
        kept: dict[str, list[str | None]] = {name: [] for name in (KEY, *self.keep)}
        sums: dict[str, list[pa.Array]] = {name: [] for name in self.checked}
        scores: dict[str, list[np.ndarray]] = {name: [] for name in self.provenance}
        for batch in reader.batches(self.read, self.batch_size):
            for name, values in kept.items():
                values += [None if value is None else json_text(value) for value in batch[name]]
            for name, parts in sums.items():
                texts = (image_key(value) or None if name == IMAGE else value for value in batch[name])
                parts.append(checksums(None if text is None else json_text(text) for text in texts))
            for name, values in self.scores_of(batch, worker, reader.left_out).items():
                scores[name].append(values)
        for name, values in scores.items():
            unscored = np.flatnonzero(np.isnan(np.concatenate([[], *values])))
            if len(unscored):
                reader.left_out.add(f"pairs without a score `{name}`", len(unscored), kept[KEY][unscored[0]])
        doubled = len(kept[KEY]) - len(set(kept[KEY]))
        if doubled:
            logger.warning("%s: %d keys stand there more than once; its pairs go by their place.", shard.name, doubled)
        columns = {name: pa.array(values, pa.string()) for name, values in kept.items()}
        columns |= {CHECKED + name: pa.chunked_array(parts, pa.uint32()) for name, parts in sums.items()}
        columns |= {name: pa.array(np.concatenate([[], *values]), pa.float32()) for name, values in scores.items()}
        try:
            content = reader.digest
        except OSError as error:
            raise DamagedShardError(f"{reader.address}: {error}") from error
        if _version(path) != version:
            raise DamagedShardError(f"{reader.address} was changed while it was scored.")
        about = {"shard": shard.name, "bytes": shard.bytes, "digest": content, "run": manifest_digest(self.way)}
        about |= {"rows": len(kept[KEY]), "doubled": doubled, "left_out": reader.left_out.items()}
        if reader.left_out.counts:
            logger.info("%s: %s.", shard.name, reader.left_out.describe())
        schema = score_features(self.way).arrow_schema
        schema = schema.with_metadata({**schema.metadata, MARK: mark(about)})
        encodings = dict.fromkeys(kept, "DELTA_BYTE_ARRAY") | dict.fromkeys(scores, "BYTE_STREAM_SPLIT")
        file = score_file(self.out, shard.name)
        for folder in reversed(file.relative_to(self.out).parents[:-1]):
            own_folder(self.out / folder)
        with sealed_parquet(file, schema, use_dictionary=False, column_encoding=encodings) as writer:
            writer.write_table(pa.table(columns).cast(schema))

    def scores_of(self, batch: dict[str, list[Any]], worker: int | None, left_out: LeftOut) -> dict[str, np.ndarray]:
        """Column → scores float32 (rows,) of a batch: NaN where an image is damaged, or the scorer fails on a row."""
        rows, found = len(batch[KEY]), {}
        for scorer in self.scorers:
            given, readable = batch, np.ones(rows, bool)
            if IMAGE in scorer.columns and IMAGE not in scorer.decode_false:
                images = [_decoded(image) for image in batch[IMAGE]]
                readable = np.array([image is not None for image in images])
                damaged = [row for row in np.flatnonzero(~readable) if batch[IMAGE][row] is not None]
                if damaged:
                    left_out.add("images that cannot be decoded", len(damaged), batch[KEY][damaged[0]])
                given = {**batch, IMAGE: images}
            found |= _each(scorer, given, np.flatnonzero(readable), worker, left_out)
            batch = {**batch, **{name: found[name].tolist() for name in scorer.outputs}}
        return found


def _each(
    scorer: Scorer, batch: dict[str, list[Any]], rows: np.ndarray, worker: int | None, left_out: LeftOut
) -> dict[str, np.ndarray]:
    """Column → scores of some rows of a batch, float32, NaN elsewhere; rows on which the scorer fails are counted."""
    found = {name: np.full(len(batch[KEY]), np.nan, np.float32) for name in scorer.outputs}
    left, failures = [rows] if len(rows) else [], 0
    while left:
        part = left.pop()
        try:
            written = scorer({name: [values[row] for row in part] for name, values in batch.items()}, worker)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if len(part) > 1:
                left += [part[len(part) // 2 :], part[: len(part) // 2]]
                continue
            failures += 1
            left_out.add(f"pairs on which {type(scorer).__name__} fails", 1, f"{batch[KEY][part[0]]}: {error}")
            if failures == len(rows) >= _FAILURES:
                raise DamagedShardError(
                    f"{type(scorer).__name__} fails on each of {failures} pairs: {error}"
                ) from error
            continue
        for name in scorer.outputs:
            found[name][part] = written.get(name, np.nan)
    return found


def _decoded(image: dict[str, Any] | None) -> Any:
    """An image of PIL's, None for one that is missing or cannot be read."""
    try:
        return None if image is None else Image().decode_example(image)
    except (OSError, ValueError, SyntaxError):
        return None


def _fetched(turn: Iterator[SourceShard], ahead: ThreadPoolExecutor) -> Iterator[tuple[SourceShard, Path | Exception]]:
    """The shards with their paths here, or why there is none; the next remote one comes while one is worked on."""

    def enter(shard: SourceShard) -> tuple[SourceShard, ExitStack, Path | Exception]:
        stack = ExitStack()
        try:
            return shard, stack, stack.enter_context(shard.local())
        except (FileNotFoundError, PermissionError, ConnectionError, ValueError) as error:
            return shard, stack, error

    coming: deque[Future[tuple[SourceShard, ExitStack, Path | Exception]]] = deque()
    try:
        for shard in turn:
            coming.append(ahead.submit(enter, shard))
            if len(coming) > (0 if shard.is_local else 1):
                yield from _opened(coming)
        while coming:
            yield from _opened(coming)
    finally:
        for future in coming:
            if not future.cancel() and future.exception() is None:
                future.result()[1].close()


def _opened(
    coming: deque[Future[tuple[SourceShard, ExitStack, Path | Exception]]],
) -> Iterator[tuple[SourceShard, Path | Exception]]:
    shard, stack, fetched = coming.popleft().result()
    with stack:
        yield shard, fetched


def _version(path: Path) -> list[tuple[int, ...]] | None:
    """What changes when a shard on this machine is written to or replaced; None where it is no longer there."""
    try:
        every = [file.stat() for file in ([path, *sorted(path.iterdir())] if path.is_dir() else [path])]
    except OSError:
        return None
    return [(each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in every]


def _note_file(out: Path, stem: str) -> Path:
    return out / FAILED / f"{stem}.json"


def _write_note(out: Path, shard: str, why: str, listed: bool = True) -> None:
    """Notes why a shard cannot be read, or that a listing of the source lacks it."""
    file = _note_file(out, stem_of(shard))
    for folder in reversed(file.relative_to(out).parents[:-1]):
        own_folder(out / folder)
    write_sealed(file, {"shard": shard, "why": why, "listed": listed, "attempt": secrets.token_hex(8)})


def _read_note(file: Path) -> dict[str, Any] | None:
    """A note; None where there is none, or a damaged one."""
    try:
        return read_sealed(file, "Delete it.", ["shard", "why", "listed", "attempt"])
    except (FileNotFoundError, DamagedFileError):
        return None


def _read_notes(out: Path) -> dict[str, dict[str, Any]]:
    """Shard, without its ending → why it could not be read."""
    files = (out / FAILED).rglob("[!.]*.json")
    return {stem_of(note["shard"]): note for file in sorted(files) if (note := _read_note(file))}


def shard_status(out: str | Path) -> ShardScores:
    """How far a folder of scores is; other processes may be at work.

    Raises:
        FileNotFoundError: it is no folder of `score_shards`.
        ValueError: its manifest is damaged, or scores are of another run.
    """
    out = Path(out)
    manifest = read_manifest(out)
    names, dropped = {stem_of(name): name for name in manifest["shards"]}, manifest["dropped"]
    done = sorted(done_shards(out) & {stem for stem in names if names[stem] not in dropped})
    notes = _read_notes(out)
    failed = {stem: notes[stem]["why"] for stem in names if stem in notes and names[stem] not in dropped}
    with ThreadPoolExecutor(16) as readers:  # 100,000 files on a network's disk
        read = dict(zip(done, readers.map(lambda stem: _about(out, names[stem]), done), strict=True))
    failed |= {stem: fault for stem, (_, fault) in read.items() if fault}
    done = [stem for stem in done if not read[stem][1]]
    files, about = [score_file(out, stem) for stem in done], [read[stem][0] for stem in done]
    pairs = sum(each["rows"] for each in about)
    left_out: dict[str, tuple[int, str]] = {}
    for each in about:
        for why, count, example in each.get("left_out", ()):
            so_far, first = left_out.get(why, (0, f"{each['shard']}: {example}"))
            left_out[why] = (so_far + count, first)
    times = sorted(file.stat().st_mtime for file in files)[-100:]
    pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    left = None if pace is None else pace * (len(names.keys() - failed.keys() - set(done)) - len(dropped))
    working = Claims(out / _CLAIMS, 120).living() if (out / _CLAIMS).is_dir() else []
    return ShardScores(len(done), len(names), pairs, failed, working, left, left_out, dropped)


def _about(out: Path, shard: str) -> tuple[dict[str, Any], str]:
    """What the scores of a shard say of it, or why they cannot be read."""
    try:
        return about_shard(out, shard), ""
    except (FileNotFoundError, DamagedFileError) as error:
        return {}, f"{error}"


@contextmanager
def progress_bar(out: Path, count: int, watched: bool) -> Iterator[Callable[[], None]]:
    """A bar over the shards of all processes; what it gives is called when this process has done one."""
    options = {"desc": "Scoring", "unit": "shard", "disable": None if watched else True}
    with tqdm(total=count, initial=len(done_shards(out)), **options) as bar:
        looked = time.monotonic()

        def moved() -> None:
            nonlocal looked
            if not bar.disable and time.monotonic() > looked + _COUNT:
                bar.update(len(done_shards(out)) - bar.n)
                looked = time.monotonic()

        yield moved
        bar.update(len(done_shards(out)) - bar.n)


def _duration(seconds: float) -> str:
    size, unit = (3600, "h") if seconds >= 3600 else (60, "min") if seconds >= 60 else (1, "s")
    return f"{seconds / size:.1f} {unit}"
