"""The order in which a data set's rows stand, without an array that spells it out."""

from __future__ import annotations

from typing import Any

import numpy as np


class Ascending:
    """0 … size − 1 in place of the int32 array of these numbers, in no memory; read like that array.

    Args:
        size: how many numbers there are.

    Example:
        >>> order = Ascending(5)
        >>> order[np.array([3, 0])].tolist(), order[1:3].tolist(), len(order)
        ([3, 0], [1, 2], 5)
    """

    dtype = np.dtype(np.int32)

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: Any) -> Any:
        """The numbers at these places: an int, a slice, or an array of places or of bools.

        An array of places is its own answer. It is not copied, nor checked against the size: it is read in every draw.
        """
        if isinstance(places, np.ndarray) and places.dtype != bool:
            return places
        if isinstance(places, slice):
            return np.arange(*places.indices(self.size), dtype=self.dtype)
        return np.asarray(self)[places]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.arange(self.size, dtype=dtype or self.dtype)
