"""Variables of MATLAB files, of version 5 to 7 and of 7.3, which is HDF5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_HDF5 = b"\x89HDF\r\n\x1a\n"


def read_matlab(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Those of the variables called `names` that a MATLAB file has.

    Args:
        path: the file.
        names: variables wanted; others are not read.

    Returns:
        Name -> a numeric array as MATLAB shows it, or for a cell array a list of its cells: arrays, or strings.

    Raises:
        ImportError: SciPy (for version 5 to 7) or h5py (for 7.3) is missing.
        ValueError: no MATLAB file, or none of the variables is in it.
    """
    with open(path, "rb") as file:
        head = file.read(520)
    content = _read_hdf5(path, names) if _HDF5 in (head[:8], head[512:]) else _read_version_5(path, names)
    if not content:
        raise ValueError(
            f"{path} has none of the variables {list(names)}, so there are no boxes to read. MCG's files have `boxes` "
            "or `bboxes`, selective search's `boxes` and `images`."
        )
    return content


def _read_version_5(path: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs SciPy, which is not installed. Run `pip install 'hf-curriculum[detection]'`."
        ) from error
    try:
        content = loadmat(path, variable_names=list(names))
    except (MatReadError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is no MATLAB file ({error}).") from error
    return {name: _from_cells(content[name]) for name in names if name in content}


def _from_cells(value: np.ndarray) -> Any:
    if value.dtype != object:
        return value
    return [str(cell.item()) if cell.dtype.kind == "U" else cell for cell in value.ravel(order="F")]


def _read_hdf5(path: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"Reading {path}, a MATLAB file of version 7.3, needs h5py, which is not installed. Run "
            "`pip install 'hf-curriculum[detection]'`."
        ) from error

    def value(item: Any) -> Any:
        if item.attrs.get("MATLAB_empty", 0):
            return np.zeros((0, 0))
        if item.dtype == h5py.ref_dtype:  # a cell array holds references; HDF5 has MATLAB's axes reversed
            return [value(file[reference]) for reference in item[()].T.ravel(order="F")]
        if item.attrs.get("MATLAB_class", b"") == b"char":
            return "".join(map(chr, item[()].T.ravel()))
        return item[()].T

    with h5py.File(path, "r") as file:
        return {name: value(file[name]) for name in names if name in file}
