"""`score_on_ray`: a crawl scored where it lies, by the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.data.readers.source_shards import find_shards
from hf_curriculum.files import resolved
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scoring.add_scores import as_scorers
from hf_curriculum.scoring.shards import ShardRun, ShardScores, progress_bar
from hf_curriculum.shapes import validate_arguments

_MOST = 8  # shards that an actor is given at a time: all but the first are fetched meanwhile


@validate_arguments
def score_on_ray(
    source: str | Path | Sequence[str | Path],
    scorers: Scorer | Sequence[Scorer],
    out: str | Path,
    *,
    actors: int | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    num_workers: int = 0,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    batch_size: int = 256,
    storage_options: Mapping[str, Any] | None = None,
    bad_shards: Literal["error", "drop"] = "error",
    lease: float = 120,
) -> ShardScores:
    """Runs `score_shards` on actors of Ray, which write the same files, byte for byte.

    Each actor loads the models once, and takes free shards until all are scored. Other processes may share the work,
    or continue it without Ray: `score_shards` on the same `out`, started by Slurm or by hand. A machine that dies
    loses its current shard, which is free again after `lease` seconds; other actors score the rest. Ray starts its
    actors again where there is room.

    Args:
        source, scorers, columns, keep, batch_size, num_workers, storage_options, lease: as in `score_shards`. All
            machines see the shards under these paths or addresses. Scorers are fitted once, where this is called.
        out: the folder of the scores, on a disk that all machines see.
        actors: how many to start, each when there is room for it; by default all that the cluster has room for.
        num_cpus, num_gpus: the resources that Ray reserves for each actor; a part of a GPU is less than 1.

    Returns:
        How much is scored: all of it.

    Raises:
        ImportError: Ray is not installed.
        ValueError: the cluster has no room for an actor; what `score_shards` raises.
        ray.exceptions.RayTaskError: a scorer failed; its own error stands in it.

    Example:
        >>> ray.init("auto")                                                                     # doctest: +SKIP
        >>> score_on_ray("cc12m/{00000..01242}.tar", CLIPSimilarity(), "scores", num_gpus=1)     # doctest: +SKIP
    """
    try:
        import ray.data
    except ImportError as error:
        raise ImportError("Ray is not installed. Run `pip install 'hf-curriculum[ray]'`.") from error
    needs = {kind: need for kind, need in (("CPU", num_cpus), ("GPU", num_gpus)) if need}
    if batch_size < 1 or not needs or min(needs.values()) < 0 or (actors is not None and actors < 1):
        raise ValueError(
            f"batch_size={batch_size}, actors={actors}, num_cpus={num_cpus} and num_gpus={num_gpus} were given. The "
            "first two are at least 1, and an actor has a share of a CPU or a GPU."
        )
    if actors is None:
        found = ray.cluster_resources()
        actors = min(int(found.get(kind, 0) / need) for kind, need in needs.items())
        if not actors:
            raise ValueError(
                f"An actor was to have {needs}, and Ray's cluster has {found}: none would ever start. Ask for less, "
                'connect to the whole cluster (`ray.init("auto")`), or say `actors=` where it grows by itself.'
            )
    validate_choice("bad_shards", bad_shards, ("error", "drop"))
    shards, folder = find_shards(source, storage_options, allow_missing=True), resolved(out)
    names, drop = dict(columns or {}), bad_shards == "drop"
    run = ShardRun(as_scorers(scorers), shards, folder, names, tuple(keep), batch_size, lease, num_workers, drop)
    run.begin()
    left = {shard.name for shard in run.left(shards)}
    if places := [place for place, shard in enumerate(shards) if shard.name in left]:
        each = max(1, min(_MOST, len(places) // (4 * actors)))
        rows = ray.data.from_items(places, override_num_blocks=-(-len(places) // each))
        pool = ray.data.ActorPoolStrategy(size=min(actors, len(places)), max_tasks_in_flight_per_actor=1)
        options = {"batch_size": None, "compute": pool, "num_cpus": num_cpus, "num_gpus": num_gpus}
        rows = rows.map_batches(_Actor, fn_constructor_args=(run,), **options)
        rows.context.enable_progress_bars = False  # its own would count batches
        with progress_bar(folder, len(shards), True) as moved:
            for _ in rows.iter_batches(batch_size=None, prefetch_batches=0):
                moved()
    return run.end()


class _Actor:
    """Holds the scorers, and scores as many shards as it is given: those themselves where they are free."""

    def __init__(self, run: ShardRun) -> None:
        run.validate_manifest()  # other versions of libraries here would make other scores
        self.run = run

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.run.work(batch["item"][0] / len(self.run.shards), most=len(batch["item"]))
        return batch
