"""A score of your own, and what it calls easy and hard: `python recipes/examples/own_scorer.py PHOTOS`.

`--scorer recipes.examples.own_scorer:Brightness` uses the same class in a shell.
"""

import sys
from typing import Any

import numpy as np

from hf_curriculum import Scorer, add_scores, load_captioned, read_provenance


class Brightness(Scorer):
    """Mean brightness of an image, from 0 (black) to 1 (white): dark photographs are hard."""

    name, easy, columns = "brightness", "high", ("image",)

    def score(self, batch: dict[str, list[Any]], rank: int) -> np.ndarray:
        scores = np.full(len(batch["image"]), np.nan)  # NaN: cannot be scored
        for row, image in enumerate(batch["image"]):
            if image is not None:
                scores[row] = np.asarray(image.convert("L")).mean() / 255
        return scores


def main(photos: str) -> None:
    data = add_scores(load_captioned(photos), Brightness())
    print(read_provenance(data)["brightness"].easy, "is easy")
    ranked = data.sort("brightness", reverse=True)
    for name, rows in (("easiest", range(3)), ("hardest", range(len(ranked) - 3, len(ranked)))):
        for row in ranked.select(rows):
            print(f"{name}  {row['brightness']:.2f}  {row['file_name']}  {row['caption']}")


if __name__ == "__main__":
    main(sys.argv[1])
