"""What a step asks of a device, seen on a CPU: operations that wait for it, and operations that are kernels there."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_curriculum.models import on_host

WAITS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::masked_scatter",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave.Tensor",
    "aten::bincount",
    "aten::allclose",
}
"""What needs a value on the host, or the number of them, before it goes on."""
_READS = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")
_NO_KERNELS = {"aten::_unsafe_view", "aten::detach", "aten::lift_fresh", "aten::alias", "aten::_reshape_alias"}


class Dispatched(TorchDispatchMode):
    """Counts, while it lasts, `waits` and `kernels` by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, overload = func._schema.name, func._schema.overload_name
        full = f"{name}.{overload}" if overload else name
        if {name, full} & WAITS:
            self.waits[full] += 1
        indexed = name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
        if indexed and any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]):
            self.waits[f"{full} by a mask"] += 1
        if not (func.is_view or name in _NO_KERNELS or name.startswith(("aten::empty", "aten::sym_"))):
            self.kernels[full] += 1
        return func(*args, **(kwargs or {}))


def as_on_a_device(monkeypatch, seen: Dispatched) -> None:
    """Tensors count as a device's: what reads one is counted, and the library's models know only what was noted."""
    monkeypatch.setattr(on_host, "_is_on_host", lambda values: False)
    for name in _READS:
        own = getattr(torch.Tensor, name)

        def reads(self, *args, _own=own, _name=name, **kwargs):
            if seen in _ACTIVE:
                seen.waits[_name] += 1
            return _own(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, reads)


_ACTIVE: list[Dispatched] = []


class watched:
    """A stretch of code whose operations are counted."""

    def __init__(self, seen: Dispatched) -> None:
        self.seen = seen

    def __enter__(self) -> Dispatched:
        _ACTIVE.append(self.seen)
        return self.seen.__enter__()

    def __exit__(self, *error) -> None:
        _ACTIVE.remove(self.seen)
        self.seen.__exit__(*error)
