"""Proposals in a pickle, read without running what it asks for: arrays, lists, texts and numbers alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.readers.arrays import BoxArrays, Order

_IDS = ("ids", "indexes")
_SCORES = ("objectness_logits", "scores")


class DetectronProposals(BoxArrays):
    """A pickle with the proposals of many images, as Detectron and Detectron2 write it: image id -> `Regions`.

    It holds `boxes` and `ids` (or `indexes`), an entry per image each, and perhaps `scores` (or `objectness_logits`),
    which become the `confidence` of the regions as they are. All of it is read into memory at first use.

    Args:
        path: the file: .pkl or .pickle.
        order: "xyxy", left, top, right, bottom, by default; see `BoxArrays`.
        normalised: whether boxes are shares of the sides.
        one_based: whether the first pixel is 1.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the pickle asks for anything but arrays, lists, texts and numbers, which is not loaded; it is
            damaged, or has other parts; or boxes that contradict the arguments.

    Source: Girshick et al. 2018 (Detectron), proposal files.
    """

    def __init__(
        self, path: str | Path, order: Order = "xyxy", normalised: bool = False, one_based: bool = False
    ) -> None:
        super().__init__(path, order, normalised, one_based)

    def _find(self) -> dict[str, int]:
        content = read_plain_pickle(self.path)
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        ids = next((content[name] for name in _IDS if name in content), None) if isinstance(content, dict) else None
        if ids is None or "boxes" not in content:
            raise ValueError(
                f"{self.path} holds {found}, and a mapping with `boxes` and `ids` (or `indexes`) is needed, as "
                "Detectron writes proposals. Write it in that form, or one .npz of boxes per image."
            )
        self._all: Any = content["boxes"]
        self._scores: Any = next((content[name] for name in _SCORES if name in content), None)
        counts = {"boxes": len(self._all), "ids": len(ids)}
        counts |= {} if self._scores is None else {"scores": len(self._scores)}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"{self.path} has {counts}: each part has an entry per image, so it is not known whose boxes are "
                "whose. The file is damaged; write it again."
            )
        return {str(image_id): number for number, image_id in enumerate(np.asarray(ids).tolist())}

    def _read(self, image_id: str, where: int) -> Regions:
        boxes = self._boxes(image_id, self._all[where])
        scores = None if self._scores is None else np.asarray(self._scores[where], np.float32).reshape(-1)
        return Regions(image_id, boxes=boxes, normalised=self.normalised, confidence=scores)


# Functions that a pickle may call are instances without attributes, which a pickle could set otherwise.
class _FromBuffer:
    """numpy's own for arrays of protocol 5."""

    __slots__ = ()

    def __call__(self, content: Any, dtype: np.dtype, shape: Any, order: str) -> np.ndarray:
        return np.frombuffer(content, dtype=dtype).reshape(shape, order=order)


class _Encode:
    """How bytes are written in protocol 2."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise ValueError(f"bytes in the encoding {encoding!r}")
        return text.encode("latin1")


class _NoBytes:
    """How empty bytes are written in protocol 2."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


_MULTIARRAY = {"_reconstruct": np.zeros(0).__reduce__()[0], "scalar": np.float32(0).__reduce__()[0]}
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _Encode(),
    ("__builtin__", "bytes"): _NoBytes(),
    **{(f"numpy.{core}.multiarray", name): one for core in ("core", "_core") for name, one in _MULTIARRAY.items()},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
}


class _Plain(pickle.Unpickler):
    """Refuses everything that a pickle might load but numpy's arrays and numbers."""

    path: str = ""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise _RefusedError(
                f"{self.path} wants to load `{module}.{name}`, and a pickle of proposals needs arrays, lists, texts "
                "and numbers alone: what it loads could run any code on this machine. It was not loaded. If you trust "
                "who wrote it, read it with the library that wrote it and save the boxes of each image, "
                "`np.savez('proposals.npz', **{image_id: boxes, ...})`."
            )
        return _KNOWN[module, name]


class _RefusedError(ValueError):
    """What a pickle asked for is not loaded."""


def read_plain_pickle(path: str | Path) -> Any:
    """The content of a pickle that holds arrays, lists, mappings, texts and numbers alone.

    Raises:
        ValueError: it asks for anything else, or is damaged.
    """
    with open(path, "rb") as file:
        reader = _Plain(file, encoding="latin1")
        reader.path = str(path)
        try:
            return reader.load()
        except _RefusedError:
            raise
        except (pickle.UnpicklingError, EOFError, MemoryError, *_DAMAGED) as error:
            raise ValueError(
                f"{path} cannot be read as a pickle of arrays ({type(error).__name__}: {error}). It is damaged, or no "
                "pickle. Download or write it again."
            ) from error


_DAMAGED = (AttributeError, ImportError, IndexError, KeyError, OverflowError, TypeError, ValueError)
