"""Stored regions of one array or file per image: .npz, .npy, HDF5 and MATLAB files, and folders of them."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.data.identity import bare_name
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.regions.base import Regions, RegionSource, stamp_of, validate_regular

Order = Literal["xyxy", "yxyx", "xywh"]
ORDERS = ("xyxy", "yxyx", "xywh")
PARTS = ("boxes", "class_scores", "features", "confidence", "size")
"""The arrays of an image in an archive, as `<image id>/<part>`; `size` is width, height in pixels."""
_NUMBER = re.compile(r"(|.*?[^0-9])([0-9]+)")


class BoxArrays(RegionSource):
    """A reader of arrays of boxes.

    Args:
        path: the file or folder.
        order: "xyxy" is left, top, right, bottom; "yxyx" is top, left, bottom, right; "xywh" is left, top, width,
            height.
        normalised: whether they are shares of the image's sides instead of pixels.
        one_based: whether the first pixel is 1 and the last one belongs to the box, as in MATLAB.
    """

    def __init__(self, path: str | Path, order: Order, normalised: bool, one_based: bool) -> None:
        super().__init__(path)
        if order not in ORDERS:
            raise ValueError(f"`order` is {order!r}. It is one of {', '.join(map(repr, ORDERS))}.")
        self.order = order
        self.normalised = normalised
        self.one_based = one_based

    def _boxes(self, image_id: str, values: Any) -> np.ndarray:
        """(regions, 4) in this file's order as float32 (regions, 4): left, top, right, bottom."""
        values = as_numbers(self.path, image_id, values)
        if values.size == 0:
            return np.zeros((0, 4), np.float32)
        if values.ndim != 2 or values.shape[1] != 4 or not np.isfinite(values).all():
            raise ValueError(
                f"The boxes of image {image_id!r} in {self.path} have the shape {values.shape}, or are not finite. "
                "Four finite numbers per region are needed."
            )
        top = float(np.abs(values).max())
        if self.normalised and top > 1.5:
            raise ValueError(
                f"The boxes of image {image_id!r} in {self.path} go up to {top:g}, so they are pixels, not shares of "
                "the image's sides. Pass `normalised=False`."
            )
        first, last = values[:, :2], values[:, 2:]
        if self.order == "yxyx":
            first, last = first[:, ::-1], last[:, ::-1]
        if self.one_based:
            first = first - 1
        if self.order == "xywh":
            last = first + last
        if (last < first).any():
            row = int(np.flatnonzero((last < first).any(axis=1))[0])
            raise ValueError(
                f"Box {row} of image {image_id!r} in {self.path}, {values[row].tolist()}, ends before it begins, so "
                f'it is not {self.order!r}. Pass another `order`; left, top, width, height is "xywh".'
            )
        return np.concatenate([first, last], axis=1)


class FilePerImage(BoxArrays):
    """A folder with a file per image, in subfolders or not; ids are what `ids_of_files` gives."""

    suffixes: tuple[str, ...] = ()
    """Ends of files; those of a folder have the same."""

    def __init__(self, path: str | Path, order: Order, normalised: bool, one_based: bool) -> None:
        super().__init__(path, order, normalised, one_based)
        kinds = {file.suffix.lower() for file in find_files(Path(self.path), self.suffixes)}
        if len(kinds) != 1:
            first, second = self.suffixes
            found = f"both {first} and {second}" if kinds else f"neither {first} nor {second}"
            raise ValueError(
                f"The folder {self.path!r} has {found} files. One file per image is needed, all of one kind."
            )
        self.kind: str = kinds.pop()

    def _find(self) -> dict[str, str]:
        left_out = LeftOut()
        found = ids_of_files(Path(self.path), find_files(Path(self.path), (self.kind,), left_out), left_out)
        left_out.report(self.path, ())
        return found

    def __iter__(self) -> Iterator[str]:
        for file in sorted(set(self._places.values())):
            name = Path(file).relative_to(self.path).with_suffix("").as_posix()
            yield next(end for end in reversed(list(_ends(name))) if self._places.get(end) == file)

    def __len__(self) -> int:
        return len(set(self._places.values()))


class ProposalFolder(FilePerImage):
    """A folder with a .npy or .mat file per image, in subfolders or not: image id -> `Regions`.

    The id is the file's name without its end, with its folders where several files have that name. A number that is
    all of a name, but for what COCO or all files have before it, is an id too: `COCO_train2014_000000000009.mat` holds
    the boxes of "9".

    Args:
        path: the folder.
        order: "yxyx" by default, as Cap2Det's .npy files and MCG's .mat files have it; see `BoxArrays`.
        normalised: whether boxes are shares of the sides. Left out: yes for .npy, no for .mat, as those two have it.
        one_based: whether the first pixel is 1. Left out: no for .npy, yes for .mat.

    Objectness `scores` of a .mat file become the `confidence` of its regions.
    """

    suffixes = (".npy", ".mat")

    def __init__(
        self, path: str | Path, order: Order = "yxyx", normalised: bool | None = None, one_based: bool | None = None
    ) -> None:
        super().__init__(path, order, normalised=False, one_based=False)
        matlab = self.kind == ".mat"
        self.normalised = not matlab if normalised is None else normalised
        self.one_based = matlab if one_based is None else one_based

    def _read(self, image_id: str, where: str) -> Regions:
        validate_regular(where)
        scores = None
        if where.lower().endswith(".npy"):
            boxes = load_array(where)
        else:
            content = read_matlab(where, ("boxes", "bboxes", "scores"))
            if "scores" in content:
                scores = np.asarray(content.pop("scores"), np.float32).reshape(-1)
            boxes = next(iter((content or read_matlab(where, ("boxes", "bboxes"))).values()))
        boxes = self._boxes(image_id, boxes)
        return Regions(image_id, boxes=boxes, normalised=self.normalised, confidence=scores)


_DAMAGED = (EOFError, IndexError, KeyError, MemoryError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What NumPy, h5py and SciPy raise for a damaged file, besides `ValueError`."""
MOST_BYTES = 1 << 30
"""The largest array that is read: a small file may claim any size."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Reads arrays of a file; a `ValueError` where it is damaged."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except _DAMAGED as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}). It is truncated, damaged, or a file of another "
            "kind under this name. Download or write it again."
        ) from error


def as_numbers(path: str, image_id: str, values: Any) -> np.ndarray:
    """An array of an image as float32."""
    values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{path} holds for image {image_id!r} an array of {values.dtype}, not numbers. It is no file of regions, "
            "or was written wrongly: write it again as float32."
        )
    return values.astype(np.float32, copy=False)


def open_npz(path: str) -> Any:
    """The open .npz file: name -> array."""
    with open(path, "rb") as file:
        begins = file.read(4)
    if begins[:2] != b"PK" or not zipfile.is_zipfile(path):  # NumPy takes it for a pickle
        raise ValueError(
            f"{path} is no .npz file, or a truncated one: it is not a whole archive of arrays. Download or write it "
            "again."
        )
    with reading(path):
        archive = np.load(path)
    for member in archive.zip.infolist():
        _validate_size(f"{member.filename!r} of {path}", member.file_size)
    return archive


def _validate_size(what: str, size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(
            f"{what} claims {size:,} bytes, and regions of one image take at most {MOST_BYTES:,}: reading it could "
            "fill the memory. Write the arrays of each image on their own."
        )


def load_array(path: str) -> np.ndarray:
    """The array of a .npy file, read-only and mapped; pickled objects are refused."""
    validate_regular(path)
    try:
        with reading(path):
            return np.load(path, mmap_mode="r")
    except ValueError as error:
        if "Python objects" not in str(error) and "pickled" not in str(error):
            raise
        raise ValueError(pickled(path)) from error


def pickled(path: str | Path) -> str:
    """Why a file is not read, and how it is converted."""
    return (
        f"{path} holds pickled Python objects, not plain arrays of numbers (allow_pickle=False): opening one runs any "
        "code that its writer wished. If you trust who wrote it, convert it once: read it with the library that wrote "
        "it (`torch.load(path, weights_only=True)` for tensors), save each image by "
        "`np.savez(f'converted/{image_id}.npz', feat=features, boxes=boxes)`, and open the folder `converted`. "
        "Of Detectron's proposals, load `boxes` and `ids` with `pickle` in a process of your own, and write one file: "
        "`np.savez('proposals.npz', **dict(zip(map(str, ids), boxes)))`."
    )


def ids_of_files(folder: Path, files: Sequence[Path], left_out: LeftOut) -> dict[str, str]:
    """Image id → file, each id of one file alone.

    Ids are a path in the folder without its ending, and its ends from a folder on. Numbers that names end in are ids
    too where they are all of the name, but for what COCO or all files have before them.
    """
    names = {file.relative_to(folder).with_suffix("").as_posix(): str(file) for file in files}
    if len(names) < len(files):
        raise ValueError(f"{folder} has two files of one name, in capitals and not: rename or remove one of them.")
    owners: dict[str, list[str]] = {}
    for name, file in names.items():
        for end in _ends(name):
            owners.setdefault(end, []).append(file)
    ends = {end: own[0] for end, own in owners.items() if len(own) == 1}
    shared = [end for end in owners if end not in ends and end not in names and "/" not in end]
    left_out.add("names that several files have, which their folders tell apart", len(shared), next(iter(shared), 0))
    parts = {str(file): _NUMBER.fullmatch(bare_name(file.stem)) for file in files}
    numbered = [(found[1], str(int(found[2])), file) for file, found in parts.items() if found]
    alike = len(numbered) == len(files) and len({before for before, _, _ in numbered}) == 1
    numbers: dict[str, list[str]] = {}
    for before, number, file in numbered:
        if not before or alike:
            numbers.setdefault(number, []).append(file)
    return {number: own[0] for number, own in numbers.items() if len(own) == 1} | ends | names


def _ends(name: str) -> Iterator[str]:
    """A path, and what is left of it after each of its folders."""
    while name:
        yield name
        name = name.partition("/")[2]


_FEWEST_DIMS = 16
"""Columns from which an unnamed array of an image is features, as the reference code's HDF5 holds them."""


class RegionArchive(BoxArrays):
    """A .npz, HDF5 or MATLAB file with the regions of many images: image id -> `Regions`, each read on access.

    In .npz and HDF5 an entry called like the image id holds its boxes, or with 16 columns or more its features (the
    reference code's HDF5); entries `<id>/boxes`, `<id>/class_scores`,
    `<id>/features`, `<id>/confidence` and `<id>/size` (width, height) hold more. A MATLAB file, of version 5 or 7.3,
    has a cell array `boxes` with a cell per image and one `images` with their names, as selective search's have.

    Args:
        path: the file: .npz, .h5, .hdf5 or .mat.
        order: see `BoxArrays`. Left out: "yxyx" for MATLAB, "xyxy" for others.
        normalised: whether boxes are shares of the sides; no by default.
        one_based: whether the first pixel is 1. Left out: yes for MATLAB, no for others.
    """

    def __init__(
        self, path: str | Path, order: Order | None = None, normalised: bool = False, one_based: bool | None = None
    ) -> None:
        self.kind: str = Path(path).suffix.lower()
        if self.kind not in (".npz", ".h5", ".hdf5", ".mat"):
            raise ValueError(f"{str(path)!r} is no archive of regions: .npz, .h5, .hdf5 and .mat are.")
        matlab = self.kind == ".mat"
        super().__init__(
            path, order or ("yxyx" if matlab else "xyxy"), normalised, matlab if one_based is None else one_based
        )

    @property
    def packages(self) -> tuple[str, ...]:
        return {".npz": (), ".mat": ("h5py", "scipy")}.get(self.kind, ("h5py",))

    def _content(self) -> Any:
        """The open file: entry -> array."""
        if "_file" not in self.__dict__:
            if self.kind == ".npz":
                self._file = open_npz(self.path)
            elif self.kind == ".mat":
                self._file = _cells(self.path)
            else:
                with needs("h5py", self.path):
                    import h5py
                with reading(self.path):
                    self._file = h5py.File(self.path, "r")
        return self._file

    def _entries(self) -> list[str]:
        """Names of the arrays; those of groups inside an HDF5 file are joined by slashes."""
        content = self._content()
        if self.kind not in (".h5", ".hdf5"):
            return list(content)
        with needs("h5py", self.path):
            import h5py
        names, links = [], []
        with reading(self.path):
            content.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            content.visititems_links(
                lambda name, link: links.append(name) if type(link) is not h5py.HardLink else None
            )
        if links:
            raise ValueError(_linked(links[0], self.path))
        return names

    def _find(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for entry in self._entries():
            image_id, _, part = entry.rpartition("/")
            if not image_id:
                image_id, part = entry, "boxes"
            if part not in PARTS:
                raise ValueError(
                    f"{self.path} has the entry {entry!r}. Entries are called `<image id>`, or `<image id>/` and one "
                    f"of {list(PARTS)}."
                )
            if entry in PARTS or found.setdefault(image_id, {}).setdefault(part, entry) != entry:
                raise ValueError(
                    f"{self.path} has the entry {entry!r}, and whose it is is not known: a name of an image is to "
                    f"stand before each of {list(PARTS)}, once. Rename or remove it."
                )
        return found

    def _read(self, image_id: str, where: dict[str, str]) -> Regions:
        content = self._content()
        with reading(self.path):
            parts = {part: content[entry] for part, entry in where.items()}
            for entry, part in zip(where.values(), parts.values(), strict=True):
                if self.kind in (".h5", ".hdf5"):
                    _validate_inside_file(part, entry, self.path)
            arrays = {name: as_numbers(self.path, image_id, part) for name, part in parts.items()}
        if where.get("boxes") == image_id and arrays["boxes"].ndim == 2 and arrays["boxes"].shape[1] >= _FEWEST_DIMS:
            arrays = {"features": arrays["boxes"]}
        width, height = arrays.pop("size").tolist() if "size" in arrays else (None, None)
        if "boxes" in arrays:
            arrays["boxes"] = self._boxes(image_id, arrays["boxes"])
        return Regions(image_id, normalised=self.normalised, width=width, height=height, **arrays)


def _linked(name: str, path: str) -> str:
    return (
        f"{name!r} of {path} is a link, which may lead to any file of this machine and is not followed. Copy the data "
        "into one file first: `h5repack` does."
    )


def _validate_inside_file(dataset: Any, name: str, path: str) -> None:
    """Raises for an HDF5 data set whose numbers are in other files, or too many."""
    if dataset.external or dataset.is_virtual:
        raise ValueError(
            f"{name!r} of {path} keeps its numbers in other files, which could be any file of this machine. They are "
            "not opened. Copy the data into one file first: `h5repack` does."
        )
    _validate_size(f"{name!r} of {path}", dataset.nbytes)


def _cells(path: str) -> dict[str, np.ndarray]:
    content = read_matlab(path, ("boxes", "images"))
    if set(content) != {"boxes", "images"} or len(content["boxes"]) != len(content["images"]):
        raise ValueError(
            f"{path} needs two cell arrays of equal length, `boxes` and `images`, to tell whose boxes they are; "
            f"found: { {name: len(value) for name, value in content.items()} }. One file per image is read as a "
            "folder."
        )
    twice = [name for name, count in Counter(map(str, content["images"])).items() if count > 1]
    if twice:
        raise ValueError(
            f"{path} has the boxes of {twice[0]!r} twice ({len(twice)} such images). Which of them are the image's "
            "cannot be known: leave one of them."
        )
    return dict(zip(map(str, content["images"]), content["boxes"], strict=True))


@contextmanager
def needs(package: str, path: str) -> Iterator[None]:
    """Imports of a package that only some files need."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs {package}, which is not installed. Run `pip install 'hf-curriculum[detection]'`."
        ) from error


_HDF5 = b"\x89HDF\r\n\x1a\n"


def read_matlab(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Name -> those of the variables `names` that a MATLAB file has: arrays, or lists for cell arrays."""
    with open(path, "rb") as file:
        head = file.read(520)
    with reading(path):
        content = _read_hdf5(path, names) if _HDF5 in (head[:8], head[512:]) else _read_version_5(path, names)
    if not content:
        raise ValueError(
            f"{path} has none of the variables {list(names)}, so there are no boxes to read. MCG's files have `boxes` "
            "or `bboxes`, selective search's `boxes` and `images`."
        )
    return content


def _read_version_5(path: str, names: Sequence[str]) -> dict[str, Any]:
    with needs("SciPy", path):
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    try:
        content = loadmat(path, variable_names=list(names))
    except (MatReadError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path} is no MATLAB file, or a truncated one ({error}).") from error
    return {name: _from_cells(content[name]) for name in names if name in content}


def _from_cells(value: np.ndarray) -> Any:
    if value.dtype != object:
        return value
    return [str(cell.item()) if cell.dtype.kind == "U" else cell for cell in value.ravel(order="F")]


def _read_hdf5(path: str, names: Sequence[str]) -> dict[str, Any]:
    with needs("h5py", path):
        import h5py

    def value(item: Any) -> Any:
        _validate_inside_file(item, item.name, path)
        if item.attrs.get("MATLAB_empty", 0):
            return np.zeros((0, 0))
        if item.dtype == h5py.ref_dtype:  # a cell array holds references; HDF5 has MATLAB's axes reversed
            return [value(file[reference]) for reference in item[()].T.ravel(order="F")]
        if item.attrs.get("MATLAB_class", b"") == b"char":
            return "".join(map(chr, item[()].T.ravel()))
        return item[()].T

    with h5py.File(path, "r") as file:
        for name in names:
            if isinstance(file.get(name, getlink=True), (h5py.ExternalLink, h5py.SoftLink)):
                raise ValueError(_linked(name, path))
        return {name: value(file[name]) for name in names if name in file}


NAMES = {
    "features": ("feat", "z", "features", "x"),
    "boxes": ("boxes", "bbox"),
    "class_scores": ("class_scores", "cls_prob"),
    "confidence": ("confidence", "objects_conf"),
    "width": ("image_w", "width"),
    "height": ("image_h", "height"),
}
"""Names of arrays in an .npz: `feat` and `z` are the reference repositories', `x` bottom-up-attention.pytorch's."""


_MOST_ROWS = 64
"""Rows that no grid of regions has, with fewer numbers in each region than rows."""


class FeatureFolder(FilePerImage):
    """A folder with the features of each image's regions in a file of its own: image id -> `Regions`.

    As the reference repositories have them: `cocobu_att/ID.npz` with the array `feat` (or `z`), or `ID.npy`. Boxes are
    in the same .npz or in a folder beside: `cocobu_box/ID.npy` for `cocobu_att`. The means over regions in `cocobu_fc`
    are not read: models take the mean themselves. A grid (rows, columns, dims) is a region per cell, whose boxes are
    the cells; a map with its dims first, as torch has it, is refused.

    Args:
        path: the folder; files in subfolders count.
        boxes: the folder of boxes, .npy or .npz. Left out: the one beside, if `path` ends in "_att" and it is there.
        order, normalised, one_based: of the boxes, see `BoxArrays`; pixels, left, top, right, bottom by default.

    Shapes: features float32 (regions, dims).
    """

    suffixes = (".npz", ".npy")

    def __init__(
        self,
        path: str | Path,
        boxes: str | Path | None = None,
        order: Order = "xyxy",
        normalised: bool = False,
        one_based: bool = False,
    ) -> None:
        super().__init__(path, order, normalised, one_based)
        beside = Path(path).with_name(Path(path).name.removesuffix("_att") + "_box")
        if boxes is None and Path(path).name.endswith("_att") and beside.is_dir():
            boxes = beside
        self.boxes: str | None = None if boxes is None else str(boxes)
        if self.boxes is not None and not Path(self.boxes).is_dir():
            raise FileNotFoundError(f"There is no folder of boxes at {self.boxes!r}. Give the one that holds ID.npy.")
        if self.boxes is not None:
            self.stamp = stamp_of(path, self.boxes)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "boxes": None if self.boxes is None else Path(self.boxes).name}

    def _read(self, image_id: str, where: str) -> Regions:
        parts = _read_arrays(where)
        if parts.get("features") is None:
            raise ValueError(
                f"{where} has none of the arrays {list(NAMES['features'])}, so image {image_id!r} has no features. "
                "Rename the one that holds (regions, dims)."
            )
        features = as_numbers(where, image_id, parts["features"])
        if features.ndim not in (2, 3):
            raise ValueError(
                f"The features of image {image_id!r} in {where} have the shape {features.shape}. (regions, dims) is "
                "needed, or (rows, columns, dims) for a grid."
            )
        rows, dims = features.shape[0], features.shape[-1]
        if features.ndim == 3 and rows > dims and (features.shape[1] == dims or rows >= _MOST_ROWS):
            raise ValueError(
                f"The features of image {image_id!r} in {where} have the shape {features.shape}, as torch writes a "
                f"map: (dims, rows, columns). A grid is (rows, columns, dims), so that this one would be {rows} rows "
                f"of regions of {dims} numbers. Write np.moveaxis(features, 0, -1)."
            )
        size = {name: float(parts[name]) for name in ("width", "height") if name in parts}
        found = {name: np.asarray(parts[name], np.float32) for name in ("class_scores", "confidence") if name in parts}
        boxes, normalised = parts.get("boxes"), self.normalised
        if self.boxes is not None:
            boxes = self._boxes_beside(Path(where))
        if boxes is not None:
            boxes = self._boxes(image_id, boxes)
        elif features.ndim == 3:
            boxes, normalised = grid_cells(*features.shape[:2]), True
        features = features.reshape(-1, features.shape[-1])
        return Regions(image_id, boxes=boxes, normalised=normalised, features=features, **found, **size)

    def _boxes_beside(self, file: Path) -> np.ndarray | None:
        """The boxes of the image of a file, from the folder beside; None where it has none."""
        for suffix in (".npy", ".npz"):
            other = (Path(str(self.boxes)) / file.relative_to(self.path)).with_suffix(suffix)
            if other.is_file():
                found = _read_arrays(str(other))
                return found.get("boxes", found.get("features"))
        return None


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz by our names, or that of an .npy, called `features`."""
    if path.lower().endswith(".npy"):
        return {"features": load_array(path)}
    validate_regular(path)
    with reading(path), open_npz(path) as content:
        names = {ours: next((name for name in theirs if name in content), None) for ours, theirs in NAMES.items()}
        if names["features"] is None and len(content.files) == 1 and names["boxes"] is None:
            names["features"] = content.files[0]
        try:
            return {ours: content[theirs] for ours, theirs in names.items() if theirs is not None}
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise ValueError(pickled(path)) from error


def grid_cells(rows: int, columns: int) -> np.ndarray:
    """The boxes of a grid's cells as shares of the sides, row by row, float32 (rows * columns, 4)."""
    top, left = np.mgrid[:rows, :columns].reshape(2, -1)
    return np.stack([left / columns, top / rows, (left + 1) / columns, (top + 1) / rows], axis=1).astype(np.float32)
