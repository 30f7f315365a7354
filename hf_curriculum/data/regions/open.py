"""The entry point to all files of regions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hf_curriculum.config import parse_json
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.readers.outside_files import validate_folder
from hf_curriculum.data.regions.arrays import FeatureFolder, ProposalFolder, RegionArchive, load_array, pickled
from hf_curriculum.data.regions.base import RegionSource, validate_regular
from hf_curriculum.data.regions.store import FACTS, RegionStore
from hf_curriculum.data.regions.tables import OscarFolder, RegionTable, SceneGraphTable

TABLE = re.compile(r"\.tsv(\.\d+)?$", re.IGNORECASE)
"""Names of tables: bottom-up attention's largest comes in parts, `*.tsv.0` and `*.tsv.1`."""
PICKLES = (".pt", ".pth", ".pkl", ".pickle")
"""Ends of files that are pickles, as Oscar's `*_captions.pt` and Detectron's proposals."""


def open_regions(path: str | Path, *, allow_outside: bool = False, **options: Any) -> RegionSource:
    """Opens a file of regions of any known kind: a mapping of image id to `Regions`, read on access.

    | path | read by |
    |---|---|
    | a folder that `pack_regions` or `extract_regions` wrote | `RegionStore` |
    | `*.tsv` with base64 columns (bottom-up attention, LXMERT, Oscar's for retrieval) | `RegionTable` |
    | `*.tsv` with `{"objects": [...]}`, image sizes in `*.hw.tsv` (scene_graph_benchmark, VinVL) | `SceneGraphTable` |
    | `features.tsv` with `{"num_boxes", "features"}`, or its folder (Oscar) | `OscarFolder` |
    | a folder with an .npz or .npy file of features per image (`cocobu_att`) | `FeatureFolder` |
    | a folder with a .npy or .mat file of boxes per image (Cap2Det, MCG) | `ProposalFolder` |
    | .npz, .h5, .hdf5, .mat with many images | `RegionArchive` |

    Large tables are indexed by one pass at first use; `write_line_index` keeps that index next to the file, and
    `pack_regions` turns any of these into a store, which is read many times faster.

    Args:
        path: the file or folder.
        allow_outside: let links in a folder lead out of it: for files that you trust.
        options: further arguments of the reader, such as `fields`, `order` or `normalised`.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: a file of another kind, a pickle (`*.pt`, `*.pkl`), which is never opened, or a link out of the
            folder.
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
    validate_regular(path)
    if path.suffix.lower() in PICKLES:
        raise ValueError(pickled(path))
    if path.is_dir():
        if not allow_outside:
            validate_folder(path)
        reader = _folder_reader(path)
        options |= {"allow_outside": allow_outside} if reader is RegionStore else {}
    elif TABLE.search(path.name):
        reader = _table_reader(path)
    else:
        reader = RegionArchive
    return reader(path, **options)


def _folder_reader(path: Path) -> type[RegionSource]:
    for name, reader in ((FACTS, RegionStore), ("features.tsv", OscarFolder), ("predictions.tsv", SceneGraphTable)):
        if (path / name).is_file():
            return reader
    files = find_files(path, (".npz", ".npy", ".mat", *PICKLES))
    first = next(iter(files), None)
    if first is None and (archives := find_files(path, (".h5", ".hdf5"))):
        raise ValueError(
            f"The folder {str(path)!r} holds HDF5 files, {archives[0].name!r} for example, each with the regions of "
            "many images. Name one, or pack them into one store: `pack_regions('FOLDER/*.h5', 'STORE')`, or "
            "`hf-curriculum features FOLDER/*.h5 STORE`."
        )
    if first is None:
        raise ValueError(
            f"The folder {str(path)!r} holds no regions: it is no store, and has neither .npz, .npy nor .mat files, "
            "one per image. Of images they are found by a model first: `extract_regions(folder, model, store)`, or "
            "`hf-curriculum features FOLDER STORE --model facebook/detr-resnet-50`."
        )
    kinds = {file.suffix.lower() for file in files}
    if first.suffix.lower() in PICKLES:
        raise ValueError(pickled(first))
    if first.suffix.lower() == ".npz":
        return FeatureFolder
    if first.suffix.lower() == ".npy" and ".mat" not in kinds:
        return FeatureFolder if _holds_features(str(first)) else ProposalFolder
    return ProposalFolder


def _holds_features(file: str) -> bool:
    """Whether an .npy has more columns than boxes have."""
    try:
        array = load_array(file)
    except ValueError:  # reading it says what is wrong
        return False
    return array.ndim > 1 and array.size > 0 and array.shape[-1] != 4


def _table_reader(path: Path) -> type[RegionSource]:
    with open(path, "rb") as table:
        second = table.readline().partition(b"\t")[2].strip()
    if not second.startswith(b"{"):
        return RegionTable
    try:
        content = parse_json(second)
    except ValueError as error:
        raise ValueError(
            f"The first line of {str(path)!r} begins like JSON and is none ({error}). The file is truncated."
        ) from error
    return SceneGraphTable if "objects" in content else OscarFolder
