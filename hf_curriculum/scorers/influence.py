"""Whether training on a row lowers the loss of other rows, those that one cares about: TracIn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hf_curriculum.columns import require_columns
from hf_curriculum.config import digest, kind_of
from hf_curriculum.data.conversations import Turns
from hf_curriculum.data.image_files import with_stored
from hf_curriculum.data.readers.outside_files import load_saved
from hf_curriculum.files import read_json
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.model_loss import ModelLoss
from hf_curriculum.scorers.pretrained import folder_digest, load_model

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from hf_curriculum.data.regions.base import RegionSource

    Weights = dict[str, torch.Tensor]

_CLOSE = {"float32": 2e-4, "float64": 1e-7}
"""Type of the weights → how near differences come to the targets' gradient before no smaller step is tried."""


class _Checkpoint(NamedTuple):
    """Weights, a step along the targets' gradient, and what a difference of losses counts."""

    weights: Weights
    step: Weights
    factor: float


class Influence(ModelLoss):
    """Influence of training on a row on the loss of target rows, from a run's checkpoints (TracIn).

    Σ_k η_k ∇L(row) · ∇L(targets), with the learning rate η_k and the gradients of checkpoint k; L(targets) is the mean
    loss of the targets. Each product is the slope of the row's loss along g = ∇L(targets). It is measured as (L(θ +
    εg) − L(θ − εg)) / 2ε: two forward passes of the row, and no gradient of it.

    ε is u^(1/3) · ‖θ‖ / ‖g‖, u the unit round-off of the type. The slope of the targets' own loss has to be ‖g‖²:
    as long as it is not by 0.02 % (float64: 1e-7), ε is divided by 4, up to four times. Weights that are the same in
    all of several checkpoints were not trained and do not count. Each checkpoint takes twice its weights in memory.

    It does not find wrong captions: on drawn scenes it does hardly better than chance, as does training without each
    row (`recipes/benchmarks/results/influence.md`). It assumes plain gradient descent, also after Adam.

    Args:
        checkpoints: a run's folder, for every `checkpoint-…` in it, or folders of models in their order.
        targets: the rows whose loss should fall, such as a small clean set: a data set with the columns of the rows,
            or its folder. They must not be among the rows.
        processor: as in `ModelLoss`.
        reduction: "sum" over a caption's tokens, as in a loss per token of the batch; or "mean", so that long captions
            count no more than short ones.
        learning_rates: of each checkpoint; by default the last that its `trainer_state.json` logs.
        batch_size: captions or conversations that run through the model at once; for each the weights are exchanged.
        dtype: "float32" or "float64"; in shorter types differences are lost. A few models compute in float32 anyway.
        max_length, image_column, caption_column, prompt_column, prompt, turns, regions, region_options: as in
            `ModelLoss`.
        name: the column to write.
        easy: a row that helps the targets is easy by default.

    Attributes:
        target_rows: column → the targets' cells, as they are stored; `targets` has their number and a digest.

    Shapes:
        float32 (rows,), nats by which a step on the row at each checkpoint lowers the targets' loss; NaN as in
        `ModelLoss`.

    Raises:
        FileNotFoundError: no checkpoint; as `ModelLoss`.
        ValueError: a checkpoint without a learning rate; rates that are negative, all 0 or not one per checkpoint;
            targets without a text; checkpoints of different models. Or a gradient is 0, NaN or not reproduced by
            differences, or more than a tenth of the targets are rows; as `ModelLoss`.
        TypeError: targets that are no data set; as `ModelLoss`.

    Source: Pruthi et al. 2020, *Estimating Training Data Influence by Tracing Gradient Descent*, §3 (TracInCP).

    Example:
        >>> scorer = Influence("output/run", targets=checked)  # doctest: +SKIP
        >>> add_scores(train, scorer)["influence"][:]          # doctest: +SKIP
    """

    easy = "high"

    def __init__(
        self,
        checkpoints: str | Path | Sequence[str | Path],
        targets: str | Path | Dataset,
        processor: str | None = None,
        reduction: Literal["sum", "mean"] = "sum",
        *,
        learning_rates: Sequence[float] | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        dtype: Literal["float32", "float64"] = "float32",
        image_column: str | None = None,
        caption_column: str | None = None,
        prompt_column: str | None = None,
        prompt: str | None = None,
        turns: Turns = "all",
        regions: str | Path | RegionSource | None = None,
        region_options: dict[str, Any] | None = None,
        name: str = "influence",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        validate_choice("dtype", dtype, tuple(_CLOSE))
        columns = {"image_column": image_column, "caption_column": caption_column, "prompt_column": prompt_column}
        options = {"prompt": prompt, "turns": turns, "regions": regions, "region_options": region_options}
        options |= {**columns, "max_length": max_length, "batch_size": batch_size, "name": name, "easy": easy}
        self.checkpoints: list[str] = _checkpoints_in(checkpoints)
        super().__init__(self.checkpoints[-1], processor, reduction, **options)
        self.dtype = dtype
        self.learning_rates: list[float] = _rates(self.checkpoints, learning_rates)
        self.revisions: list[str | None] = [folder_digest(folder) for folder in self.checkpoints]
        self.targets, self.target_rows = self._read_targets(targets)

    def _read_targets(self, targets: Any) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """What the provenance says of the targets, and their cells."""
        from datasets import Dataset

        if isinstance(targets, (str, Path)):
            if not Path(targets).is_dir():
                raise FileNotFoundError(f"There is no folder {str(targets)!r}. Give one that `save_scored` wrote.")
            targets = load_saved(targets)
        if not isinstance(targets, Dataset):
            raise TypeError(f"`targets` is {kind_of(targets)}. Give one `Dataset` of the rows whose loss is to fall.")
        names, remedy = targets.column_names, "Rename the columns of the targets (`dataset.rename_column`)."
        require_columns(names, self.columns, reader="`Influence` reads targets as it reads rows.", remedy=remedy)
        rows = targets.with_format(None).select_columns(
            [name for name in names if name in (*self.columns, self.group_by)]
        )
        for column in self.decode_false:
            rows = with_stored(rows, column)
        if not any(cell.strip() if isinstance(cell, str) else cell for cell in rows[self.caption_column]):
            raise ValueError(
                f"None of {len(rows)} targets has a text in `{self.caption_column}`, so they have no loss that could "
                "fall. Give targets with captions."
            )
        return {"rows": len(rows), "digest": digest(json.dumps(fingerprint_rows(rows).columns))}, rows[:]

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "revisions": self.revisions}

    def load(self, device: torch.device) -> Any:
        loaded = super().load(device)
        if self.reads_chats:
            plain, model = loaded.losses, loaded.model
            loaded.losses = lambda *given: self._slopes(model, lambda: plain(*given, self._differentiable), given[1])
        return loaded

    def run(self, loaded: Any, tokens: list[list[int]], images: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """Influences of pairs, float64 (pairs,)."""
        plain = super().run
        return self._slopes(loaded.model, lambda: plain(loaded, tokens, images))

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        self._validate_apart(batch)
        kept = vars(self).setdefault("_kept", {})
        if (device := self.device(rank)) not in kept:
            kept[device] = self._prepared(rank)
        self._at = kept[device]
        return super().score(batch, rank)

    def _validate_apart(self, batch: dict[str, list[Any]]) -> None:
        """Raises a `ValueError` once more than a tenth of the targets were among the rows of this process."""
        names = self.columns
        keys = [{repr(row) for row in zip(*map(rows.get, names), strict=True)} for rows in (self.target_rows, batch)]
        self._seen = getattr(self, "_seen", set()) | keys[0] & keys[1]
        if len(self._seen) > len(keys[0]) / 10:
            raise ValueError(
                f"{len(self._seen)} of {len(keys[0])} targets are among the rows. A row's influence on itself is "
                "large whatever it says. Score rows that are no targets, or give other targets."
            )

    def _slopes(self, model: Any, losses: Callable[[], torch.Tensor], marks: np.ndarray | None = None) -> Any:
        """In place of a batch's losses, float64 (rows,), their slopes, summed over the checkpoints."""
        import torch

        if self._differentiable:
            found = losses()  # of conversations sums, which are divided by their tokens later
            per = [1] if marks is None or self.reduction == "sum" else (marks[:, 1:] > 0).sum(1)
            (found / torch.as_tensor(per, device=found.device)).sum().backward()
            return found.detach()
        total: Any = 0.0
        for at in self._at:
            for sign in (1.0, -1.0):
                _move(model, at, sign)
                total = total + sign * at.factor * losses()
        return total

    def _prepared(self, rank: int | None) -> list[_Checkpoint]:
        """The checkpoints that count, with the steps along the gradients of the targets' loss."""
        model, stored = self.loaded(rank).model, []
        for folder in self.checkpoints:
            other = load_model(type(model), folder, dtype=self.dtype).to(model.device)
            stored.append({name: part.data for name, part in (*other.named_parameters(), *other.named_buffers())})
        if len({str({name: part.shape for name, part in weights.items()}) for weights in stored}) > 1:
            raise ValueError(f"{self.checkpoints} are of models of different sizes. Name checkpoints of one run.")
        names = [name for name, _ in model.named_parameters()]
        trained = [name for name in names if any((weights[name] != stored[0][name]).any() for weights in stored)]
        given = zip(self.checkpoints, self.learning_rates, stored, strict=True)
        return [self._with_step(rank, *each, trained or names) for each in given if each[1]]

    def _with_step(self, rank: int | None, folder: str, rate: float, weights: Weights, trained: list[str]) -> Any:
        """A checkpoint with the step by which differences reproduce the targets' gradient."""
        import torch
        from torch.nn.utils import get_total_norm

        gradient = self._gradient(rank, weights, trained)
        norm, size = (float(get_total_norm([part[name] for name in gradient])) for part in (gradient, weights))
        if not 0 < norm < math.inf:
            raise ValueError(
                f"The gradient of the targets' loss at {folder} has the length {norm}, so it has no direction. Leave "
                "out checkpoints that have diverged, and targets without a token to score."
            )
        best, at, most = math.inf, None, torch.finfo(getattr(torch, self.dtype)).eps ** (1 / 3) * size / norm
        for epsilon in (most / 4**tried for tried in range(5)):
            step = {name: epsilon * part for name, part in gradient.items()}
            self._at = [_Checkpoint(weights, step, 1 / (2 * epsilon))]
            error = abs(np.nanmean(super().score(self.target_rows, rank)) / norm**2 - 1)
            if error < best:
                best, at = error, _Checkpoint(weights, step, rate / (2 * epsilon))
            if best <= _CLOSE[self.dtype]:
                break
        if best > 0.01:
            raise ValueError(
                f"At {folder} differences of the targets' losses give another slope than their gradient, by "
                f'{best:.1%}: they are too small for the type, or the model draws at random. Try `dtype="float64"`.'
            )
        return at

    def _gradient(self, rank: int | None, weights: Weights, trained: list[str]) -> Weights:
        """The gradient of the targets' mean loss, one batch of them after the other."""
        model, own = self.loaded(rank).model, set(trained)
        _move(model, _Checkpoint(weights, {}, 0.0), 0.0)
        for name, part in model.named_parameters():
            part.requires_grad_(name in own).grad = None
        self._differentiable = True
        count = np.isfinite(super().score(self.target_rows, rank)).sum()
        self._differentiable = False
        found = {name: part.grad / count for name, part in model.named_parameters() if part.grad is not None}
        model.zero_grad()
        return found


def _move(model: Any, at: _Checkpoint, sign: float) -> None:
    """Sets the weights of a model to those of a checkpoint, plus or minus its step."""
    for name, part in (*model.named_parameters(), *model.named_buffers()):
        part.data.copy_(at.weights[name])
        if name in at.step:
            part.data.add_(at.step[name], alpha=sign)


def _checkpoints_in(checkpoints: str | Path | Sequence[str | Path]) -> list[str]:
    """The folders of a run's checkpoints, in the order of their steps, or those that are given."""
    if isinstance(checkpoints, (str, Path)):
        inside = Path(checkpoints).glob("checkpoint-*[0-9]")
        checkpoints = sorted(inside, key=lambda path: int(path.name.rpartition("-")[2])) or [checkpoints]
    found = [str(folder) for folder in checkpoints]
    wrong = [folder for folder in found if not Path(folder, "config.json").is_file()]
    if wrong or not found:
        raise FileNotFoundError(
            f"`checkpoints` has no saved model in {wrong[:1] or found}, and gradients are taken at a run's "
            "checkpoints. Give the run's folder with its `checkpoint-…` (`save_steps`), or folders of models; `hf "
            "download` fetches one from the Hub."
        )
    return found


def _rates(checkpoints: list[str], given: Sequence[float] | None) -> list[float]:
    """The learning rate of each checkpoint, as given, or the last that its trainer logged."""
    rates, remedy = [] if given is None else list(given), "Give `learning_rates=`, one for each checkpoint."
    for folder in checkpoints if given is None else ():
        file = Path(folder, "trainer_state.json")
        log = read_json(file, remedy, ["log_history"])["log_history"] if file.is_file() else []
        logged = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
        if not logged:
            raise ValueError(f"{file} logs no learning rate, and a checkpoint counts by its own. {remedy}")
        rates.append(logged[-1])
    if len(rates) != len(checkpoints) or not any(rates) or not all(0 <= rate < math.inf for rate in rates):
        raise ValueError(
            f"The learning rates of {len(checkpoints)} checkpoints are {rates}, and each needs one of 0 or more, some "
            f"of them above 0. {remedy}"
        )
    return [float(rate) for rate in rates]
