"""The embedded text corpus: what is said about scenes that nobody draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hf_curriculum.data.scenes.captions import caption_scene
from hf_curriculum.data.scenes.draws import WORDING, Draws
from hf_curriculum.data.scenes.layout import lay_out

_SEED = 1
"""Other scenes than those of `make_scenes`, whose seed is 0 unless one is given."""
_MOST_OBJECTS = 5


def scene_lines(seed: int = _SEED) -> Iterator[str]:
    """The five captions of one scene after the other, shortest first, without end.

    Args:
        seed: of the scenes; another one than the pictures', or they would be described beforehand.

    Example:
        >>> next(scene_lines())
        'a red boat'
    """
    index = 0
    while True:
        scene = lay_out(seed, index, _MOST_OBJECTS)
        yield from (caption.text for caption in caption_scene(scene, Draws(seed, index, WORDING)))
        index += 1


def write_scene_text(folder: str | Path, lines: int, seed: int = _SEED) -> Path:
    """A corpus in the challenge's form: `scenes.train`, and `scenes.dev` with a tenth as many lines of other scenes.

    Args:
        folder: where to; files of the same content stay as they are.
        lines: of `scenes.train`.
        seed: of the scenes.

    Returns:
        The folder, for `load_text`.

    Raises:
        ValueError: no lines are asked for.
    """
    if lines < 1:
        raise ValueError(f"`lines={lines}` was given. A corpus has at least 1 line.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = scene_lines(seed)
    for name, count in (("scenes.train", -(-lines // 5) * 5), ("scenes.dev", -(-lines // 50) * 5)):
        written = [next(source) for _ in range(count)][: lines if name == "scenes.train" else None]
        content = "".join(f"{line}\n" for line in written)
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != content:
            (folder / name).write_text(content, encoding="utf-8")
    return folder
