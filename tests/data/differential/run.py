"""Counts the verdicts of many random inputs: `python tests/data/differential/run.py --examples 10000 --seed 1`."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import datasets
import read_archives
import read_chats
import read_coco
import read_tables
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from judging import PLACES, Draw, Reader, Trial, Verdict, describe, judge

READERS = [*read_tables.READERS, *read_coco.READERS, *read_archives.READERS, *read_chats.READERS]
_BATCH = 40
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


class Counts:
    """Verdicts by reader and axis, and the smallest input of each class of faults."""

    def __init__(self) -> None:
        self.by_reader: dict[str, Counter] = defaultdict(Counter)
        self.by_axis: dict[str, Counter] = defaultdict(Counter)
        self.refusals: dict[str, Counter] = defaultdict(Counter)
        self.faults: dict[tuple[str, Verdict], list] = {}

    def add(self, reader: Reader, trial: Trial, verdict: Verdict, folder: Path) -> None:
        for counter in (self.by_reader[reader.name], *(self.by_axis[axis] for axis in trial.axes)):
            counter[verdict.kind] += 1
            counter["judged"] += trial.judged
            counter["judged and equal"] += trial.judged and verdict.kind == "equal"
        if verdict.kind == "refused":
            self.refusals[reader.name][verdict.why] += 1
        if verdict.is_fault:
            shown = describe(folder)
            known = self.faults.setdefault((reader.name, verdict), [0, shown, trial.axes])
            known[0] += 1
            if len(shown) < len(known[1]):
                known[1:] = [shown, trial.axes]

    def print(self) -> None:
        for title, table in (("reader", self.by_reader), ("axis", self.by_axis)):
            print(f"\n{title:24} inputs  equal refused DIFFERENT raw  read of what the other reads")
            for name, found in sorted(table.items()):
                total = sum(found[kind] for kind in ("equal", "refused", "different", "raw"))
                share = found["judged and equal"] / found["judged"] if found["judged"] else float("nan")
                numbers = f"{found['equal']:6} {found['refused']:7} {found['different']:9} {found['raw']:3}"
                print(f"{name:24} {total:6} {numbers}  {share:6.1%} of {found['judged']}")
        print("\nrefusals")
        for name, found in self.refusals.items():
            for why, count in found.most_common():
                print(f"  {name:20} {count:5} × {why}")
        print(f"\n{len(self.faults)} classes of faults")
        for (name, verdict), (count, shown, axes) in sorted(self.faults.items(), key=lambda item: -item[1][0]):
            print(f"\n- {name}: {count} × {verdict.kind}: {verdict.why}  {sorted(axes)}\n{shown}")


def one_trial(reader: Reader, draw: Draw, parent: Path) -> tuple[Path, Trial]:
    """A fresh folder with an input."""
    folder = Path(tempfile.mkdtemp(dir=parent)) / draw(st.sampled_from(PLACES))
    folder.mkdir()
    return folder, reader.trial(draw, folder)


def try_inputs(reader: Reader, examples: int, number: int, parent: Path, counts: Counts) -> None:
    """Tries many inputs of a reader, by new seeds now and then: hypothesis stays near what it has tried."""
    for start in range(0, examples, _BATCH):

        @seed(number * 10**6 + start)
        @settings(max_examples=min(_BATCH, examples - start), phases=[Phase.generate], **QUIET)
        @given(st.data())
        def run(data: st.DataObject) -> None:
            folder, trial = one_trial(reader, data.draw, parent)
            counts.add(reader, trial, judge(trial), folder)
            shutil.rmtree(folder.parent)

        run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--reader", action="append", help="by name; all without it")
    options = parser.parse_args()
    chosen = [reader for reader in READERS if options.reader is None or reader.name in options.reader]
    datasets.disable_progress_bars()
    logging.disable(logging.NOTSET)
    with tempfile.TemporaryDirectory() as parent:
        datasets.config.HF_DATASETS_CACHE = Path(parent, "cache")
        counts, whole = Counts(), sum(reader.share for reader in chosen)
        for reader in chosen:
            start = time.process_time()
            try_inputs(reader, max(1, options.examples * reader.share // whole), options.seed, Path(parent), counts)
            print(f"{reader.name}: {time.process_time() - start:.0f} s", file=sys.stderr)
    print(f"seed {options.seed}")
    counts.print()
    sys.exit(bool(counts.faults))


if __name__ == "__main__":
    main()
