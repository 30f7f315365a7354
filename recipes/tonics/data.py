"""Captioned images, the regions of each, an ontology of what they show, and one row per noun of a caption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from tonics.arguments import ALIGNER, SCENES, VALIDATION, DataArguments, ModelArguments
from tonics.scenes import box_regions, load_scenes

from hf_curriculum import Study, load_captioned, load_scored
from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.readers.img2dataset import is_img2dataset
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.evaluation.nouns import OBJECTS
from hf_curriculum.scored_data import FILE_NAME
from hf_curriculum.tasks.alignment import Ontology, count_stages, hold_out_instances, join_sources


@dataclass(frozen=True)
class Prepared:
    """What the runs of one study read.

    Args:
        train: a row per pair and selected noun of its caption, and its node.
        held_out: such rows of images of their own, by which the curriculum decides.
        validation: such rows of the validation's pairs.
        tests: name → pairs, all captions of its images.
        ontology: nouns, classes and their sizes.
        regions: of all images; None for a CLIP, which reads the images.
        counts: pairs, images, triplets, nouns and classes of each source at each stage.
    """

    train: Dataset
    held_out: Dataset
    validation: Dataset
    tests: dict[str, Dataset]
    ontology: Ontology
    regions: RegionInputs | None
    counts: tuple[Any, ...]


class SourceRegions(Mapping[str, Regions]):
    """Stores of several sources as one: image "coco/9" is image 9 of the store called "coco".

    Args:
        stores: name of a source → its regions.
    """

    def __init__(self, stores: Mapping[str, Mapping[str, Regions]]) -> None:
        self.stores = dict(stores)
        dims = {name: RegionInputs(store).dims for name, store in self.stores.items()}
        if len(set(dims.values())) > 1:
            raise ValueError(
                f"The regions' features have {dims} dimensions, and one model reads all of them. Take all images' "
                "regions from one detector."
            )
        processor = RegionInputs(self.reference).image_processor
        for store in self.stores.values():
            RegionInputs.for_model(store, processor)

    @property
    def reference(self) -> Mapping[str, Regions]:
        """The store whose detector a model that reads all of them is saved with: the first that knows its own."""
        stores = list(self.stores.values())
        own = [store for store in stores if isinstance(store, RegionStore)]
        return next((store for store in own if store.facts["made_by"] is not None), next(iter(own), stores[0]))

    def __getitem__(self, image_id: str) -> Regions:
        name, _, own = image_id.partition("/")
        return self.stores[name][own]

    def __contains__(self, image_id: object) -> bool:
        name, _, own = str(image_id).partition("/")
        return name in self.stores and own in self.stores[name]

    def __iter__(self) -> Iterator[str]:
        return (f"{name}/{image_id}" for name, store in self.stores.items() for image_id in store)

    def __len__(self) -> int:
        return sum(map(len, self.stores.values()))


def prepare(data_args: DataArguments, model_args: ModelArguments, folder: Path) -> Prepared:
    """Data, regions, ontology and triplets of a run; kept for the next run, which mostly has the same."""
    return _prepare(json.dumps(asdict(data_args)), model_args.model == ALIGNER, folder)


def read_data(data_args: DataArguments, model_args: ModelArguments, *others: Any) -> dict[str, Dataset]:
    """What a run trains on and decides by, for the budget and for telling other data from this."""
    prepared = prepare(data_args, model_args, Path(others[-1].output_dir).parent)
    return {"train": prepared.train, "heldout": prepared.held_out}


@lru_cache(maxsize=1)
def _prepare(given: str, reads_regions: bool, folder: Path) -> Prepared:
    data_args = DataArguments(**json.loads(given))
    pairs, evaluated = _load(given, reads_regions)
    if not reads_regions:
        for name, rows in {"train": pairs, **evaluated}.items():
            remedy = "Name the folder of its images, `--images FOLDER`, or that of an evaluation with `images`."
            require_columns(rows.column_names, [IMAGE], reader=f"A CLIP reads the images of {name}.", remedy=remedy)
    regions = _regions(data_args, {"train": pairs, **evaluated}, folder) if reads_regions else None
    for name, rows in evaluated.items() if regions is not None else ():
        regions.validate(rows, name)
    objects: Any = OBJECTS if OBJECTS in pairs.column_names else None if regions is None else regions.store
    if objects is None:
        raise ValueError(
            f"Nothing says which objects the images of {data_args.data} show, so there could be no ontology. Name "
            "boxes, `--objects instances_train2014.json`, or regions with classes, `--features STORE`."
        )
    with PartialState().main_process_first():
        ontology = _ontology(data_args, pairs, objects)
        triplets = hold_out_instances(ontology.triplets(pairs, objects), data_args.held_out)
    if regions is not None:
        regions.validate(triplets["train"], "train")
    return Prepared(
        train=triplets["train"],
        held_out=triplets["heldout"],
        validation=ontology.triplets(evaluated[VALIDATION], False),
        tests={name: rows for name, rows in evaluated.items() if name != VALIDATION},
        ontology=ontology,
        regions=regions,
        counts=count_stages(ontology, pairs, triplets["train"], objects),
    )


def _ontology(data_args: DataArguments, pairs: Dataset, objects: Any) -> Ontology:
    """The saved one, or one of the training pairs."""
    if data_args.ontology is not None:
        return Ontology.load(data_args.ontology)
    names = ("min_pairs", "min_instances", "corrections", "tagger", "lemmas")
    return Ontology.induce(pairs, objects, **{name: getattr(data_args, name) for name in names})


@lru_cache(maxsize=1)
def _load(given: str, reads_regions: bool) -> tuple[Dataset, dict[str, Dataset]]:
    """Training pairs of all sources, and the pairs of each evaluation."""
    data_args = DataArguments(**json.loads(given))
    names = sources_of(data_args)
    with PartialState().main_process_first():
        loaded = {name: _source(data_args, name, source, reads_regions) for name, source in names.items()}
        others = {
            entry["data"]: _captioned(entry["data"], entry.get("images"), None, reads_regions)
            for entry in data_args.evaluations.values()
            if entry.get("data") not in (None, data_args.data)
        }
    several = len(names) > 1 or bool(others)
    train = {name: _first_images(_split_of(data, "train", name), data_args.limit) for name, data in loaded.items()}
    pairs = join_sources(train) if several else next(iter(train.values()))
    evaluated = {}
    for name, entry in data_args.evaluations.items():
        data = others.get(entry.get("data"), next(iter(loaded.values())))
        rows = _first_images(_split_of(data, entry.get("split", name), name), entry.get("limit"))
        source = name_of(entry.get("data") or data_args.data.split(",")[0])
        evaluated[name] = join_sources({source: rows}) if several else rows
    return drop_empty_captions(pairs), {name: drop_empty_captions(rows) for name, rows in evaluated.items()}


def sources_of(data_args: DataArguments) -> dict[str, str]:
    """Name → what is loaded, of each source of training pairs."""
    given = [part.strip() for part in data_args.data.split(",")]
    names: dict[str, str] = {}
    others = [
        entry["data"]
        for entry in data_args.evaluations.values()
        if entry.get("data") not in (None, data_args.data, *given)
    ]
    for source in [*given, *dict.fromkeys(others)]:
        if names.setdefault(name_of(source), source) != source or given.count(source) > 1:
            raise ValueError(
                f"data={data_args.data!r} and the evaluations have two sources of one name, "
                f"{names[name_of(source)]!r} and {source!r}, and their images' ids could be the same. Rename a file: "
                "its name without its ending comes before the ids."
            )
    return {name: source for name, source in names.items() if source in given}


def validate_files(study: Study) -> None:
    """Looks for the files that runs read, before the first one loads for an hour."""
    missing: dict[str, None] = {}
    for item in study.runs:
        given = item.settings
        named = [*given["data"].split(","), *(entry.get("data") for entry in given["evaluations"].values())]
        for name in (*named, given["objects"], given["ontology"], given["corrections"]):
            # Others are folders, scenes, or data sets of the Hub, which loading looks for.
            if isinstance(name, str) and Path(name := name.strip()).suffix == ".json" and not Path(name).is_file():
                missing[name] = None
    if missing:
        raise FileNotFoundError(
            f"{list(missing)} are read by these runs and are no files here, so no run was begun. Bring them, or name "
            "yours with `--data`, `--evaluations`, `--objects`, `--ontology` and `--corrections`."
        )


def name_of(source: str) -> str:
    """What a source is called before its images' ids: its file or folder, without the ending."""
    return Path(source).stem


def _source(data_args: DataArguments, name: str, source: str, reads_regions: bool) -> Dataset | DatasetDict:
    if source == SCENES:
        return load_scenes(data_args)
    folders = [None if data_args.images is None else part.strip() for part in (data_args.images or "").split(",")]
    place = list(sources_of(data_args)).index(name)
    return _captioned(source, folders[place] if place < len(folders) else None, data_args.objects, reads_regions)


def _captioned(source: str, images: str | None, objects: str | None, reads_regions: bool) -> Dataset | DatasetDict:
    """A data set of the user's; for a model of regions images are not looked for where no folder is named."""
    if (Path(source) / FILE_NAME).is_file():
        if given := {name: value for name, value in (("images", images), ("objects", objects)) if value is not None}:
            raise ValueError(
                f"{given} would do nothing: {source} is a saved data set, which has its own. Leave it out, or name "
                "the captions that it was made from."
            )
        return load_scored(source)
    looked_for = images is not None or not reads_regions
    if not looked_for and is_img2dataset(Path(source)):  # which has its own
        return load_captioned(source, objects=objects, check_images=False).remove_columns(IMAGE)
    return load_captioned(source, images=images if looked_for else False, objects=objects)


def _split_of(data: Dataset | DatasetDict, split: str, what: str) -> Dataset:
    if isinstance(data, Dataset):
        if split == "train":
            return data
        data = DatasetDict({"train": data})
    if split not in data:
        raise ValueError(
            f"The data has the splits {list(data)} and no {split!r}, of which {what!r} is to be. Give Karpathy's "
            "file, or name others with --evaluations."
        )
    return data[split]


def _first_images(rows: Dataset, most: int | None) -> Dataset:
    """All captions of the first images."""
    if most is None:
        return rows
    ids = rows[IMAGE_ID][:]
    kept = set(list(dict.fromkeys(ids))[:most])
    return rows.select(np.flatnonzero([image_id in kept for image_id in ids]))


def _regions(data_args: DataArguments, parts: Mapping[str, Dataset], folder: Path) -> RegionInputs:
    """The regions of all images: of the stores that are named, or of the boxes of scenes."""
    options = {"box_values": data_args.box_values, "max_regions": data_args.max_regions}
    if data_args.features is None:
        if data_args.data != SCENES:
            raise ValueError(
                f"No features were given for {data_args.data}, so there is nothing an aligner could see. Pass "
                "`--features STORE` (`hf-curriculum features` makes one), or train a CLIP, `--model NAME`."
            )
        return RegionInputs(box_regions(list(parts.values()), folder), **options)
    given = [part.strip() for part in data_args.features.split(",")]
    if len(given) == 1 and "=" not in given[0]:  # ids begin with the names of their sources, where there are several
        return RegionInputs(open_regions(given[0]), **options)
    plain = [part for part in given if "=" not in part]
    names = list(sources_of(data_args))
    if len(plain) > len(names):
        raise ValueError(
            f"features={data_args.features!r} has {len(plain)} stores for the {len(names)} sources {names}. Give one "
            "for each, and NAME=STORE for the data of evaluations."
        )
    stores = dict(zip(names, plain, strict=False)) | dict(part.split("=", 1) for part in given if "=" in part)
    return RegionInputs(SourceRegions({name: open_regions(path) for name, path in stores.items()}), **options)
