"""An order that the processes of a machine share: one of them sorts, and the others map what it wrote."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import TrainingArguments

from hf_curriculum.config import digest
from hf_curriculum.files import (
    file_digest,
    new_files,
    own_folder,
    read_array,
    read_sealed,
    validate_digest,
    write_sealed,
)
from hf_curriculum.parts import wait_for_files
from hf_curriculum.planning.ranking import Easy, sort_scores

_LEAST_ROWS = 1_000_000
"""Fewer are sorted by each process: that takes less time than waiting does."""
_REMEDY = "Delete its folder and start again: it will be written anew."


@dataclass(frozen=True)
class SharedOrder:
    """Sorts scores once on each machine, in its first process; memory holds the order once for all of them.

    What is written has a digest of the scores in its name, so no other scores' order is read, and a resumed run finds
    its own. Each process reads the order once more, to compare it with the digest that was written. Names with `_` are
    left out when a run is pushed.

    Args:
        folder: of the machine, seen by all its processes.
        writes: whether this process is the one that sorts.
        timeout: seconds after which the others stop waiting.

    Raises:
        TimeoutError: the order did not come; when called.
        ValueError: what was written is damaged; when called.
    """

    folder: Path
    writes: bool
    timeout: float

    @classmethod
    def of(cls, args: TrainingArguments) -> SharedOrder | None:
        """That of a run's processes; None where this machine has one of them."""
        if int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size)) < 2 or args.world_size < 2:
            return None
        folder = Path(args.output_dir, f"_order-{socket.gethostname()}")
        return cls(folder, args.local_process_index == 0, args.ddp_timeout)

    def __call__(self, scores: np.ndarray, easy: Easy) -> np.ndarray:
        """As `sort_scores`; from a million rows on the array can only be read."""
        if len(scores) < _LEAST_ROWS:
            return sort_scores(scores, easy)
        file = self.folder / f"{digest(f'{scores.dtype} {easy} ', scores, size=16)}.npy"
        record = file.with_suffix(".json")
        if self.writes and not (file.exists() and record.exists()):
            own_folder(self.folder)
            with new_files(file, record) as (order, digest_of_it):
                np.save(order, sort_scores(scores, easy))
                write_sealed(digest_of_it, {"digest": file_digest(order)})
        wait_for_files(self.folder, [record.name], self.timeout)
        validate_digest(file, read_sealed(record, _REMEDY, ["digest"])["digest"], _REMEDY)
        return read_array(file, _REMEDY, mmap_mode="r").view(np.ndarray)
