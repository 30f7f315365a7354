"""A detector in an ONNX file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import public_state
from hf_curriculum.scorers.detections import Detections, keep_distinct
from hf_curriculum.scorers.detectors import Detector
from hf_curriculum.scorers.onnx_heads import GridHead, Head


class OnnxDetector(Detector):
    """A detector in an ONNX file, run by onnxruntime one picture at a time.

    Pictures are resized to the model's input without keeping their proportions, and scaled to 0...1. Boxes that
    overlap a surer one are left out, because the cells around one object would otherwise count it many times.

    Args:
        path: the file.
        head: what reads the model's outputs: a `GridHead` (the default, FastestDet's), a `RowHead`, or a picklable
            function of one's own `(outputs: list[np.ndarray]) -> Detections`.
        size: height and width of the input in pixels; needed where the model leaves them open.
        colours: the order of the channels, "bgr" (FastestDet, models trained with OpenCV) or "rgb".
        mean: of the three channels, subtracted after scaling.
        std: of the three channels, divided by.
        overlap: intersection over union above which the less confident of two boxes goes; None keeps all.
        min_confidence: boxes below are left out. None by default: bottom-up attention, too, gives each picture at
            least ten boxes, however unsure. A threshold makes scores grow with the number of objects instead.

    Raises:
        FileNotFoundError: no such file.
        ImportError: onnxruntime is missing, when the model is loaded.
        ValueError: an option out of range; or the input's size is open and `size` is not given, or is another.
    """

    packages = ("onnxruntime", "pillow")
    backend = "pil"

    def __init__(
        self,
        path: str | Path,
        head: Head | None = None,
        *,
        size: tuple[int, int] | None = None,
        colours: Literal["bgr", "rgb"] = "bgr",
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        overlap: float | None = 0.45,
        min_confidence: float = 0.0,
    ) -> None:
        check_choice("colours", colours, ("bgr", "rgb"))
        if overlap is not None and not 0 <= overlap <= 1:
            raise ValueError(f"`overlap` is {overlap}. It is an intersection over union, from 0 to 1, or None.")
        if len(mean) != 3 or len(std) != 3 or 0 in std:
            raise ValueError(f"`mean` is {mean} and `std` {std}. Each has three numbers, and no `std` is 0.")
        if not Path(path).is_file():
            raise FileNotFoundError(f"There is no ONNX detector at {str(path)!r}: no such file. Give the path of one.")
        self.path, self.model = str(path), Path(path).name
        self.revision = hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()
        self.head = GridHead() if head is None else head
        self.size = None if size is None else tuple(size)
        self.colours, self.mean, self.std = colours, tuple(mean), tuple(std)
        self.overlap, self.min_confidence = overlap, min_confidence

    def arguments(self) -> dict[str, Any]:
        state = public_state(self)
        del state["path"]  # the name and the digest of the file tell which it is, on any machine
        if is_dataclass(self.head):
            state["head"] = {"type": type(self.head).__name__, **asdict(self.head)}
        else:
            from datasets.fingerprint import Hasher

            state["head"] = {
                "function": getattr(self.head, "__qualname__", type(self.head).__qualname__),
                "digest": Hasher.hash(self.head),
            }
        return {"type": type(self).__name__, **state}

    def load(self, device: Any) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(
                f"The detector {self.model} needs onnxruntime, which is not installed. Run "
                "`pip install 'hf-curriculum[detection]'`."
            ) from error
        import multiprocess
        import torch

        options = onnxruntime.SessionOptions()
        worker = multiprocess.parent_process() is not None  # of `map`: the workers share the cores
        options.intra_op_num_threads = 1 if worker else torch.get_num_threads()
        available = onnxruntime.get_available_providers()
        wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
        providers = [name for name in (*wanted, "CPUExecutionProvider") if name in available]
        return onnxruntime.InferenceSession(self.path, options, providers=providers)

    def detect(self, pictures: list[Image.Image], loaded: Any) -> list[Detections | None]:
        entry = loaded.get_inputs()[0]
        height, width = self._input_size(entry.shape)
        return [self._read(loaded.run(None, {entry.name: self._pixels(each, height, width)})) for each in pictures]

    def _input_size(self, shape: list[Any]) -> tuple[int, int]:
        asked = self.size or (None, None)
        sides = []
        for side, own, want in zip(("height", "width"), shape[-2:], asked, strict=True):
            fixed = own if isinstance(own, int) else None
            if (fixed or want) is None or (fixed and want and fixed != want):
                raise ValueError(
                    f"The input of {self.model} has the shape {shape} and `size` is {self.size}, so its {side} is "
                    "unknown or contradicted. Pass `size=(height, width)` where the model leaves it open."
                )
            sides.append(fixed or want)
        return sides[0], sides[1]

    def _pixels(self, picture: Image.Image, height: int, width: int) -> np.ndarray:
        """Shapes: returns float32 (1, 3, height, width)."""
        values = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32) / 255
        if self.colours == "bgr":
            values = values[:, :, ::-1]
        values = (values - np.float32(self.mean)) / np.float32(self.std)
        return np.ascontiguousarray(values.transpose(2, 0, 1))[None]

    def _read(self, outputs: list[np.ndarray]) -> Detections:
        found = self.head(outputs)
        rows = np.flatnonzero(np.asarray(found.confidence) >= self.min_confidence)
        if self.overlap is not None:
            if found.boxes is None:
                raise ValueError(
                    "The head gives no boxes, so it cannot be told which of them overlap. Give them, or pass "
                    "`overlap=None` for a model that has left out overlapping boxes itself."
                )
            rows = rows[keep_distinct(found.boxes[rows], found.confidence[rows], self.overlap, len(rows))]
        return Detections(*(None if part is None else np.asarray(part)[rows] for part in found))
