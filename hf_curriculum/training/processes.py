"""The last line of a program that ran on several processes."""

from __future__ import annotations

import gc

import torch.distributed


def close_process_group() -> None:
    """Ends what this process shares with the others, so that a program that is done also exits as done.

    gloo's threads let go of a collective's tensors a moment after the collective is over, and need Python's lock for
    it. A thread that asks for the lock while the interpreter shuts down aborts the process, and the launcher reports a
    finished run as failed. Leaving the group is not enough, because a wrapped model (DDP, FSDP) holds it as well: what
    nothing refers to is collected here, and the threads end with the last reference. Call it where the trainer is out
    of reach, after the function that made it has returned. Where there is no group it does nothing.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gc.collect()
