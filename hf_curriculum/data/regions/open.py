"""The entry point to all files of regions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_curriculum.data.regions.arrays import ProposalFolder, RegionArchive
from hf_curriculum.data.regions.base import RegionSource, refuse_special
from hf_curriculum.data.regions.tsv import OscarFolder, RegionTable, SceneGraphTable


def open_regions(path: str | Path, **options: Any) -> RegionSource:
    """Opens a file of regions of any known kind: a mapping of image id to `Regions`, read on access.

    | path | read by |
    |---|---|
    | `*.tsv` with base64 columns (bottom-up attention, LXMERT, Oscar's for retrieval) | `RegionTable` |
    | `*.tsv` with `{"objects": [...]}` (scene_graph_benchmark) | `SceneGraphTable` |
    | `features.tsv` with `{"num_boxes", "features"}`, or its folder (Oscar) | `OscarFolder` |
    | a folder with a .npy or .mat file per image (Cap2Det, MCG) | `ProposalFolder` |
    | .npz, .h5, .hdf5, .mat with many images | `RegionArchive` |

    Large tables are indexed by one pass at first use; `write_line_index` keeps that index next to the file.

    Args:
        path: the file or folder.
        options: further arguments of the reader, such as `fields`, `order` or `normalised`.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: a file of another kind.
        TypeError: an option that the reader does not have.

    Example:
        >>> import numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "proposals.npz")
        >>> np.savez(path, **{"9": [[0, 0, 50, 20]], "9/size": [100, 100]})
        >>> open_regions(path)["9"].area_shares()
        array([0.1], dtype=float32)
    """
    path = Path(path)
    if not path.exists():
        RegionSource(path)  # says what is missing
    refuse_special(path)
    if path.is_dir():
        reader = OscarFolder if (path / "features.tsv").is_file() else ProposalFolder
    elif path.suffix.lower() == ".tsv":
        reader = _table_reader(path)
    else:
        reader = RegionArchive
    return reader(path, **options)


def _table_reader(path: Path) -> type[RegionSource]:
    with open(path, "rb") as table:
        second = table.readline().partition(b"\t")[2].strip()
    if not second.startswith(b"{"):
        return RegionTable
    try:
        content = json.loads(second)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"The first line of {str(path)!r} begins like JSON and is none ({error}). The file is truncated."
        ) from error
    return SceneGraphTable if "objects" in content else OscarFolder
