"""What is read of a batch's values while its device is busy: reading a tensor there would wait for all queued work."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

ON_HOST = "on_host"
"""The name under which a batch takes `host_values` along, until `note_host_values` takes them out of it."""
_MOST_BYTES = 1 << 20
_KNOWN: Any = WeakTensorKeyDictionary()


def host_values(batch: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """A collated batch's masks, ids and labels, of at most two dimensions, as arrays, which stay on the host."""
    found = {
        name: value.numpy()
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
        and value.ndim <= 2
        and value.nbytes <= _MOST_BYTES
        and value.dtype in (torch.int64, torch.int32, torch.bool, torch.float32 if name == "labels" else torch.bool)
    }
    return {ON_HOST: found}


def note(values: torch.Tensor, on_host: np.ndarray) -> torch.Tensor:
    """Lets `known` find what a tensor holds, until it is written to."""
    _KNOWN[values] = _version(values), on_host
    return values


def note_host_values(batch: Any) -> None:
    """Takes the values that a batch on its device brought along out of it, for `known` to find."""
    found = batch.pop(ON_HOST, None) if isinstance(batch, MutableMapping) else None
    for name, on_host in (found or {}).items():
        if isinstance(batch.get(name), torch.Tensor) and batch[name].shape == on_host.shape:
            note(batch[name], on_host)


def known(values: torch.Tensor | None) -> np.ndarray | None:
    """An input's values, if they can be had without waiting; None where the device alone has them, or in compiling."""
    if values is None or torch.compiler.is_compiling():
        return None
    if _is_on_host(values):
        return values.detach().numpy()
    version, found = _KNOWN.get(values, (-1, None))
    return found if version == _version(values) else None


def known_or_read(values: torch.Tensor) -> np.ndarray:
    """The same where computing goes on only with them: it waits for a device that alone has them."""
    found = known(values)
    return values.detach().cpu().numpy() if found is None else found


def _version(values: torch.Tensor) -> int:
    return 0 if values.is_inference() else values._version


def _is_on_host(values: torch.Tensor) -> bool:
    return values.device.type == "cpu"


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """An array or tensor of the host as a tensor on a device, which copies it when it comes to it."""
    found = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)
