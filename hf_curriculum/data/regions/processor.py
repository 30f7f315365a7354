"""What found a model's regions, as an image processor that is saved with the model."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, PreTrainedConfig
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.utils import IMAGE_PROCESSOR_NAME

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.detectors import Limits, LoadedDetector, load_detector, wrap_detector
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.values import BoxValues, arrange_regions, stack_regions
from hf_curriculum.files import complete_folder, refuse_link

SUBFOLDER = "detector"
"""Where a detector is saved that has no name on the Hub."""


class RegionProcessor(BaseImageProcessor):
    """An image processor that finds regions: images in, features of their regions out.

    It is saved with a captioner, so that the captioner reads any image. A detector of the Hub is saved by its name;
    one that was given as a folder or as a model is copied into the sub-folder `detector`. It is loaded at the first
    image, onto the accelerator where there is one.

    Args:
        detector: a name on the Hub or a folder: any `AutoModelForObjectDetection`, `AutoBackbone` or vision tower of
            `AutoModel` (CLIP's and timm's too), the latter two for a grid; "torchvision:NAME" for a Faster R-CNN of
            torchvision; "scenes_clip", which ships with the package; or such a model, loaded. None where it is not
            known: features are then read from a store alone.
        image_processor: of a model of transformers that was given loaded.
        revision: of a repository.
        grid: averages a vision tower's states to so many cells along each side. None keeps each state.
        threshold: the confidence above which a detection is kept.
        min_regions: of each image are kept, by confidence, whatever the threshold.
        max_regions: of each image are kept at most.
        mean, std: of each feature, taken away and divided by; `extract_regions(standardise=True)` finds them.
        box_values, normalise, by_area, boxes: see `arrange_regions`.
        made_by: what made the features that a model was trained on, as `RegionStore.facts` has it.
        batch_size: images that run through the detector at once.

    Shapes: a call gives `region_features` float32 (images, regions, dims), `region_mask` int64 (images, regions) and,
        with `boxes`, `region_boxes` float32 (images, regions, 4) as shares of the sides.

    Raises:
        ValueError: an option out of range, or, when it is called, no detector.
        FileNotFoundError: there is no such detector, when it is called.
        UnreadableImageError: an image cannot be decoded, when it is called (a ValueError too).

    Source: Anderson et al. 2018: 10 to 100 regions above 0.2.

    Example:
        >>> from PIL import Image
        >>> processor = RegionProcessor("scenes_clip", grid=4)
        >>> processor(Image.new("RGB", (80, 60)))["region_features"].shape
        torch.Size([1, 16, 128])
    """

    model_input_names: list[str] = ["region_features", "region_mask"]  # noqa: RUF012

    def __init__(
        self,
        detector: Any = None,
        *,
        image_processor: Any = None,
        revision: str | None = None,
        grid: int | None = None,
        threshold: float = 0.2,
        min_regions: int = 10,
        max_regions: int = 100,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        box_values: BoxValues = False,
        normalise: bool = False,
        by_area: bool = False,
        boxes: bool = False,
        made_by: Any = None,
        batch_size: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(kwargs) - {"image_processor_type", "processor_class"}):
            raise TypeError(f"RegionProcessor has no option {', '.join(map(repr, unknown))}; it would not count.")
        if not 1 <= min_regions <= max_regions:
            raise ValueError(
                f"`min_regions={min_regions}` and `max_regions={max_regions}` were given. Each image needs a region, "
                "and at most as many as the most: 1 <= min_regions <= max_regions."
            )
        if not 0 <= threshold <= 1:
            raise ValueError(f"`threshold={threshold}` was given. It is a confidence, from 0 to 1.")
        if batch_size < 1 or (grid is not None and grid < 1):
            raise ValueError(f"`batch_size={batch_size}` and `grid={grid}` were given. Both are at least 1.")
        if (mean is None) != (std is None):
            raise ValueError(
                "Of `mean` and `std` one was given. Features are standardised by both: pass the other too."
            )
        given = None if detector is None or isinstance(detector, (str, Path)) else detector
        self.detector: str | None = SUBFOLDER if given is not None else detector and str(detector)
        self.revision: str | None = revision
        self.grid: int | None = grid
        self.threshold: float = threshold
        self.min_regions: int = min_regions
        self.max_regions: int = max_regions
        self.batch_size: int = batch_size
        self.mean: list[float] | None = None if mean is None else [float(value) for value in mean]
        self.std: list[float] | None = None if std is None else [float(value) for value in std]
        self.box_values: BoxValues = box_values
        self.normalise: bool = normalise
        self.by_area: bool = by_area
        self.boxes: bool = boxes
        self.made_by = made_by
        self._home: str | None = None  # where it was loaded from, and the detector inside
        self._home_revision: str | None = None
        self._loaded: LoadedDetector | None = None if given is None else wrap_detector(given, image_processor)
        self._given = self._loaded is not None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> RegionProcessor:
        """As of image processors; a detector that was saved inside is found there."""
        revision = kwargs.get("revision")
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        made = loaded[0] if isinstance(loaded, tuple) else loaded
        made._home, made._home_revision = str(pretrained_model_name_or_path), revision
        return loaded

    @classmethod
    def from_store(cls, store: RegionStore, max_regions: int | None = None, **options: Any) -> RegionProcessor:
        """The processor of a store's detector, to be saved with a model that is trained on the store.

        Args:
            store: of `extract_regions`. One that was packed from other files knows no detector: the processor then
                says so when it is called.
            max_regions: at most so many, where the model sees fewer than the store has.
            options: what the model sees: `box_values`, `normalise`, `by_area`, `boxes`, as of `RegionInputs`.
        """
        if (Path(store.path) / "preprocessor_config.json").is_file():
            store.validate_detector()
            made = cls.from_pretrained(store.path)
            made.made_by = store.facts["made_by"]
        else:
            names = [about["path"] for about in store.facts["sources"]]
            made = cls(None, made_by=store.facts["made_by"] or f"whoever wrote {', '.join(names)}")
        if store.facts["standardise"]:
            made.mean, made.std = (part.tolist() for part in store.moments)
        if max_regions is not None:
            made.max_regions = min(max_regions, made.max_regions)
            made.min_regions = min(made.min_regions, made.max_regions)
        view = ("box_values", "normalise", "by_area", "boxes")
        if unknown := sorted(set(options) - set(view)):
            raise TypeError(
                f"from_store() has no option {unknown[0]!r}; it has {list(view)}: the detector and its limits are the "
                "store's own."
            )
        for name in view:
            setattr(made, name, options.get(name, False))
        return made

    def find(self, images: Sequence[Any], ids: Sequence[str] | None = None) -> list[Regions]:
        """The regions of images, in any form `to_rgb` reads, with features as the detector gives them."""
        from hf_curriculum.data.images import to_rgb  # `datasets` is slow to import

        loaded = self.load()
        pictures = [to_rgb(image) for image in images]
        ids = [str(row) for row in range(len(pictures))] if ids is None else ids
        limits = Limits(self.threshold, self.min_regions, self.max_regions)
        starts = range(0, len(pictures), self.batch_size)
        spans = [slice(start, start + self.batch_size) for start in starts]
        return [found for span in spans for found in loaded.find(pictures[span], ids[span], self.grid, limits)]

    def preprocess(self, images: Any, return_tensors: Any = "pt", **kwargs: Any) -> BatchFeature:
        """What a model reads of one image or a list of them; also by calling the processor."""
        images = images if isinstance(images, (list, tuple)) else [images]
        if return_tensors not in (None, "pt"):
            raise ValueError(f"`return_tensors={return_tensors!r}` was given. Regions come as torch tensors: 'pt'.")
        seen = []
        for regions in self.find(images):
            features = torch.from_numpy(regions.features)
            if self.mean is not None:
                features = (features - torch.tensor(self.mean)) / torch.tensor(self.std)
            view = {"box_values": self.box_values, "normalise": self.normalise, "by_area": self.by_area}
            seen.append(arrange_regions(regions, features, boxes=self.boxes, **view))
        return BatchFeature(stack_regions(seen))

    def load(self) -> LoadedDetector:
        """The detector, loaded at the first call."""
        if self._loaded is None:
            if self.detector is None:
                raise ValueError(
                    f"The features that this model reads were made by {self.made_by or 'a detector'}, outside of this "
                    "library, so no image can be turned into them here. Give the model features from a store "
                    "(`regions=`), or set `processor.detector` to the model that made them, if it is at hand: another "
                    "detector's features mean nothing to this model."
                )
            inside = self.detector == SUBFOLDER and self._home is not None
            if self.detector == SUBFOLDER and not inside:
                raise ValueError(
                    "This processor's detector was given as a model and is not saved: `save_pretrained` writes it, "
                    "and `RegionProcessor.from_pretrained` finds it there."
                )
            name, revision = (self._home, self._home_revision) if inside else (self.detector, self.revision)
            loaded = load_detector(str(name), revision, SUBFOLDER if inside else "")
            if loaded.kind != "grid" and self.grid is not None:
                raise ValueError(
                    f"`grid={self.grid}` was given with {name!r}, a detector, whose regions are its detections. Leave "
                    "it out, or name a vision tower."
                )
            if torch.accelerator.is_available() and torch.utils.data.get_worker_info() is None:
                kind, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
                index = int(os.environ.get("LOCAL_RANK", torch.accelerator.current_device_index()))
                loaded.model.to(torch.device(kind.type, index % count))
            self._loaded = loaded
        return self._loaded

    def describe(self) -> dict[str, Any]:
        """What makes the features, for `RegionStore.fingerprint`: the weights' digest and the setting."""
        loaded = self.load()
        about = {"kind": loaded.kind, "model": type(loaded.model).__name__, "weights": loaded.digest()}
        about |= {"pixels": loaded.pixels()}
        if loaded.kind == "grid":
            return {**about, "grid": self.grid}
        limits = {"threshold": self.threshold, "min_regions": self.min_regions, "max_regions": self.max_regions}
        return {**about, **limits}

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> list[str]:
        """As of image processors; a detector that is no name on the Hub is written into the sub-folder `detector`."""
        if push_to_hub and (self._given or self.detector == SUBFOLDER or Path(str(self.detector)).is_dir()):
            raise ValueError(
                f"`push_to_hub=True` uploads the settings alone, without the detector, which has no name on the Hub. "
                f"Save the processor first, then upload the folder {str(save_directory)!r} "
                "(`huggingface_hub.upload_folder`, or `trainer.push_to_hub`)."
            )
        refuse_link(Path(save_directory) / IMAGE_PROCESSOR_NAME)
        self.save_detector(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def save_detector(self, folder: str | Path) -> None:
        """Writes a detector that is no name on the Hub into the sub-folder `detector`, completely or not at all."""
        inside, home = Path(folder) / SUBFOLDER, Path(str(self._home), SUBFOLDER)
        copied = not self._given and self.detector == SUBFOLDER and home.is_dir()
        named = not self._given and self.detector != SUBFOLDER and not Path(str(self.detector)).is_dir()
        if named or (copied and home.resolve() == inside.resolve()):
            return
        refuse_link(inside)
        with complete_folder(inside) as unfinished:
            if copied:
                shutil.copytree(home, unfinished, dirs_exist_ok=True)
            else:
                self.load().save(unfinished)

    def to_dict(self) -> dict[str, Any]:
        """The options, without what is loaded; a folder is recorded as the copy inside."""
        names = ("detector", "revision", "grid", "threshold", "min_regions", "max_regions", "mean", "std", "made_by")
        names += ("box_values", "normalise", "by_area", "boxes", "batch_size")
        values = {name: copy.deepcopy(getattr(self, name)) for name in names}
        if self.detector is not None and Path(self.detector).is_dir():
            values |= {"detector": SUBFOLDER, "revision": None}
        return {**values, "image_processor_type": type(self).__name__}

    def card_facts(self) -> dict[str, Any]:
        """What a model's card says of the regions that it reads."""
        options, view = self.to_dict(), ("box_values", "normalise", "by_area", "boxes")
        found_by = ("threshold", "min_regions", "max_regions") if self.grid is None else ("grid",)
        names = ("detector", "revision", *found_by, *view) if self.detector else view
        facts = {name: options[name] for name in names if options[name] not in (None, False)}
        return {"reads": "region_features", **facts}

    def __getstate__(self) -> dict[str, Any]:
        """Without a detector that can be loaded again: each process loads its own."""
        return {**vars(self), "_loaded": self._loaded if self._given else None}


class RegionProcessorConfig(PreTrainedConfig):
    """Lets `AutoImageProcessor` know `RegionProcessor`; a model has a configuration of its own."""

    model_type = "curriculum_regions"


AutoImageProcessor.register(
    RegionProcessorConfig,
    image_processor_classes={"pil": RegionProcessor, "torchvision": RegionProcessor},
    exist_ok=True,
)
