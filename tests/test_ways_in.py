"""Every public function that takes a path, and every command, opens nothing outside and asks nobody for anything.

A way in is a parameter for a path. Each is given all data that `helpers/crafted.py` makes. One that is added later
fails `test_every_way_in_is_met_or_listed` until it has a line here. `pytest tests/test_ways_in.py -s` prints
how many there are, and what refused each attack.
"""

import importlib
import inspect
import pkgutil
import re
import shlex
import shutil

import numpy as np
import pytest
import tiny_models as TINY
import typer.main
from crafted import NUMBER, SECRET, SIZE, asked_server, make_crafted, make_outside, watched
from datasets import Dataset, DatasetDict
from PIL import Image
from typer.testing import CliRunner

import hf_curriculum as hf
from hf_curriculum.cli import app
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.readers.img2dataset import load_img2dataset, read_downloads
from hf_curriculum.data.readers.redcaps import load_redcaps
from hf_curriculum.data.readers.source_shards import find_shards
from hf_curriculum.data.readers.url_lists import load_url_list
from hf_curriculum.data.readers.webdataset import load_webdataset
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.tables import write_line_index
from hf_curriculum.data.text import load_text
from hf_curriculum.models.vision_features import VisionFeatures
from hf_curriculum.planning.export import ExportedOrder
from hf_curriculum.scored_shards import load_scored_shards, read_shard_scores
from hf_curriculum.scorers.alignment.norm_sim import NormSim
from hf_curriculum.scorers.influence import Influence
from hf_curriculum.scorers.registry import scorer_from
from hf_curriculum.scorers.visual.onnx import OnnxDetector
from hf_curriculum.scoring.per_image import add_embeddings
from hf_curriculum.scoring.shards import shard_status
from hf_curriculum.streaming.index import BucketIndex, verify_bucketed
from hf_curriculum.studies.advise import advise
from hf_curriculum.studies.recipe import read_preset
from hf_curriculum.tasks.alignment import AlignerModel, Ontology
from hf_curriculum.tasks.alignment.retrieval.suite import read_ranks
from hf_curriculum.tasks.babylm.suite import evaluate_suite
from hf_curriculum.tasks.captioning import convert_reference, reference_tokenizer
from hf_curriculum.tasks.captioning.suite import read_captions
from hf_curriculum.tasks.detection import CaptionLabels, StoredProposals, add_proposals, load_objects, new_detector
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline, load_labelled, load_prompts

ROWS = Dataset.from_dict({"image_id": ["1"], "caption": ["a dog"], "image": [None]})
BENCHMARKS = ("winoground", "vqa", "devbench", "blimp_filtered")


OUTSIDE = r"names files outside of .*allow_outside=True"
ATTACKS = {
    "captions name a file above": (hf.load_captioned, OUTSIDE),
    "captions name an absolute file": (hf.load_captioned, OUTSIDE),
    "captions name an address": (hf.load_captioned, OUTSIDE),
    "COCO names a file above": (lambda path: hf.load_captioned(path / "captions_val.json"), OUTSIDE),
    "COCO's file names an address": (hf.load_captioned, OUTSIDE),
    "COCO's objects name a file above": (load_objects, OUTSIDE),
    "Parquet rows name a file": (hf.load_captioned, OUTSIDE),
    "Parquet rows name an address": (hf.load_captioned, OUTSIDE),
    "Parquet rows name file:../": (load_labelled, OUTSIDE),
    "conversations name a file above": (hf.load_conversations, OUTSIDE),
    "conversations name an address": (hf.load_conversations, r"addresses are not fetched"),
    "conversations name files in a list": (hf.load_conversations, OUTSIDE),
    "conversations name addresses in a list": (hf.load_conversations, OUTSIDE),
    "a card names a file": (hf.load_captioned, OUTSIDE),
    "a card names an address": (hf.load_captioned, OUTSIDE),
    "state.json names data above": (hf.load_scored, OUTSIDE),
    "dataset_dict.json names a split above": (hf.load_captioned, OUTSIDE),
    "scored rows name a file": (hf.load_scored, OUTSIDE),
    "scored rows name an address": (hf.load_scored, OUTSIDE),
    "scored rows name file:../": (hf.load_scored, OUTSIDE),
    "scored rows name files in a list": (hf.load_scored, OUTSIDE),
    "scored rows name addresses in records": (hf.load_scored, OUTSIDE),
    "a shard of buckets names a file": (lambda path: list(hf.BucketedStream(path)), OUTSIDE),
    "a shard of buckets names an address": (lambda path: list(hf.BucketedStream(path)), OUTSIDE),
    "the index of buckets names a shard above": (verify_bucketed, OUTSIDE),
    "a folder with a linked archive": (find_shards, OUTSIDE),
    "scores of shards with a link": (hf.load_scored, OUTSIDE),
    "scores of a shard above": (hf.load_scored, OUTSIDE),
    "HDF5 with an external file": (lambda path: open_regions(path)["1"], "other files, which could be any"),
    "HDF5 with a virtual data set": (lambda path: open_regions(path)["1"], "other files, which could be any"),
    "HDF5 with an external link": (lambda path: open_regions(path)["1"], "is a link, which may lead to any"),
    "MATLAB 7.3 with an external file": (lambda path: list(open_regions(path)), "x.mat"),
    "a store with a link": (RegionStore, OUTSIDE),
    "a folder of .npy with a link": (open_regions, OUTSIDE),
    "a folder of .npz with a link": (open_regions, OUTSIDE),
    "a folder with a linked captions.json": (read_captions, OUTSIDE),
    "a folder with a linked image": (lambda path: extract_regions(path, "x", path / "s", grid=1), OUTSIDE),
    "YAML with a tag": (hf.curriculum_from, "could not determine a constructor for the tag"),
    "YAML that names a file": (hf.curriculum_from, r"There is no curriculum '.*rule\.yaml'"),
    "JSON that is deep": (hf.curriculum_from, "nested too deep"),
    **{
        f"a pickle called .{ending}": (open_regions, "holds pickled Python objects") for ending in ("pt", "pth", "pkl")
    },
    "a pickle called .npy": (lambda path: open_regions(path.parent)["x"], "allow_pickle=False"),
    "a pickle called .npz": (lambda path: open_regions(path)["x"], r"is no \.npz file"),
    "a pickle called .json": (hf.load_captioned, "is not UTF-8"),
    "a pickle called .yaml": (hf.curriculum_from, "codec can't decode"),
    "a pickle called .h5": (lambda path: open_regions(path)["1"], "cannot be read"),
    "a pickle called .tsv": (lambda path: list(open_regions(path).values()), "x.tsv"),
    "a pickle called .csv": (hf.load_captioned, "is not UTF-8"),
    "a pickle called .parquet": (hf.load_captioned, "."),
    "a pickle called .safetensors": (convert_reference, "."),
    "a folder with the pickle pytorch_model.bin": (AlignerModel.from_pretrained, "."),
    "a folder with the pickle training_args.bin": (AlignerModel.from_pretrained, "."),
}
"""What data is made to do → what is asked to do it, and how it refuses."""


def on_regions(make):
    return lambda path: make(path).regions


READS = {
    "load_captioned": hf.load_captioned,
    "load_captioned, unchecked": lambda path: hf.load_captioned(path, check_images=False),
    "load_conversations": hf.load_conversations,
    "load_conversations, unchecked": lambda path: hf.load_conversations(path, check_images=False),
    "load_labelled": load_labelled,
    "load_objects": load_objects,
    "load_text": load_text,
    "load_scored": hf.load_scored,
    "load_img2dataset": load_img2dataset,
    "load_webdataset": load_webdataset,
    "read_downloads": read_downloads,
    "load_redcaps": lambda path: load_redcaps(path, path),
    "load_url_list": lambda path: load_url_list(path, path),
    "load_prompts": load_prompts,
    "load_scores": lambda path: hf.load_scores(ROWS, path),
    "add_scores_from": lambda path: hf.add_scores_from(ROWS, path, on="image_id"),
    "score_shards": lambda path: hf.score_shards(
        path, hf.CaptionLength(), path.parent / "shard scores", keep=["caption"]
    ),
    "find_shards": find_shards,
    "load_scored_shards": load_scored_shards,
    "read_shard_scores": lambda path: read_shard_scores(path, "x.tar").to_pylist(),
    "shard_status": shard_status,
    "bucket_shards": lambda path: hf.bucket_shards(path, path, path.parent / "new buckets", 1),
    "index_buckets": lambda path: hf.index_buckets(path, score_column="caption_length", easy="low"),
    "push_scores": lambda path: hf.push_scores("me/x", path, on="key", dry_run=True),
    "add_proposals": lambda path: add_proposals(ROWS, path),
    "StoredProposals": lambda path: StoredProposals(path).source,
    "advise": lambda path: advise(ROWS, "caption_length", features=path),
    "open_regions": open_regions,
    "RegionStore": RegionStore,
    "RegionStore.verify": lambda path: RegionStore(path).verify(),
    "pack_regions": lambda path: pack_regions(path, path.parent / "packed", progress=False),
    "extract_regions": lambda path: extract_regions(path, "scenes_clip", path.parent / "found", grid=1),
    "write_line_index": write_line_index,
    "RegionProcessor.from_pretrained": RegionProcessor.from_pretrained,
    "CaptionProcessor.from_pretrained": CaptionProcessor.from_pretrained,
    "Grounding": on_regions(lambda path: hf.Grounding("x", regions=path)),
    "ModelLoss": on_regions(lambda path: hf.ModelLoss("x", regions=path)),
    "Influence": lambda path: Influence([TINY.git()], path, learning_rates=[1.0]).target_rows,
    "VisualEntropy": on_regions(lambda path: hf.VisualEntropy(regions=path)),
    "RegionProposals": lambda path: hf.RegionProposals(path).source,
    "NormSim": lambda path: NormSim(path, image_embedding="v"),
    "OnnxDetector": OnnxDetector,
    "PosTagger": hf.PosTagger,
    "PosTagger.from_pretrained": hf.PosTagger.from_pretrained,
    "CaptionLabels": lambda path: CaptionLabels(synonyms=path),
    "curriculum_from": hf.curriculum_from,
    "scorer_from": scorer_from,
    "read_preset": lambda path: read_preset(str(path), path.parent),
    "Ontology.load": Ontology.load,
    "BucketedStream": hf.BucketedStream,
    "BucketIndex.read": BucketIndex.read,
    "verify_bucketed": verify_bucketed,
    "ExportedOrder": ExportedOrder,
    "CurriculumSampler.from_export": hf.CurriculumSampler.from_export,
    "CaptionSuite.captions_of": read_captions,
    "read_captions": read_captions,
    "read_ranks": read_ranks,
    "class_names": importlib.import_module("hf_curriculum.data.readers.coco").class_names,
    "VisionFeatures": VisionFeatures,
    "PixelDiffusionPipeline.from_pretrained": PixelDiffusionPipeline.from_pretrained,
    "convert_reference": convert_reference,
    "convert_reference, vocabulary": reference_tokenizer,
    "reference_tokenizer": reference_tokenizer,
    "new_detector": lambda path: new_detector(["dog"], path),
    "new_detector, weights": lambda path: new_detector(["dog"], weights=path),
    "add_embeddings": lambda path: add_embeddings(ROWS, path),
    "evaluate_suite": lambda path: [
        evaluate_suite(None, None, None, data_dir=path, tasks=[task], progress=False) for task in BENCHMARKS
    ],
}
"""Way in → what reads its path. What it returns is read too."""

WRITES = "writes into it"
OWN = "keeps there what it made itself, in text, Parquet and .npy"
SLOW = ("extract_regions", "PixelDiffusionPipeline.from_pretrained")
HASHED = ("PosTagger", "PosTagger.from_pretrained", "add_embeddings")
"""A model's folder may be of links, as the Hub's cache is: its JSON and weights are hashed, and nothing is shown."""
LISTED = {
    **dict.fromkeys(
        [
            *("write_proposals", "CaptionProcessor.save_pretrained", "make_miniature_benchmarks", "save_scored"),
            *("PixelDiffusionPipeline.save_pretrained", "Ontology.save", "Report.write", "PosTagger.save_pretrained"),
            *(
                "PosTagger.train",
                "save_scores",
                "BucketIndex.write",
                "save_bucketed",
                "CLIPClassifier.save_pretrained",
            ),
            *("CaptionEvaluation.write", "write_captions", "RetrievalEvaluation.write", "write_review"),
            *("write_space", "LeftOut.report"),
            *("StoreWriter", "StudyTable.write", "Plan.export", "RemoteFolder.download", "ArrayWriter", "new_files"),
            *("staged_folder", "write_together", "write_provenance", "RegionProcessor.save_detector"),
        ],
        WRITES,
    ),
    **dict.fromkeys(
        [
            *("filter_spectrum", "generate_spectrum", "cache_vision_features", "add_scores", "add_scores_sharded"),
            *("add_detections", "push_scored", "checkpoint_from_hub", "Study", "RecipeParser.study", "chosen_of"),
            *("PartFolder", "StudyRun", "ShardCache", "Bucketing", "Claims", "SharedOrder", "StudyRun.facts_in"),
            *("find_finished", "validate_beside", "validate_shard", "verify_order", "verify_together", "ArrayFile"),
        ],
        OWN,
    ),
    **dict.fromkeys(
        ["verify", "verify_checkpoint", "verify_scored", "verify_scored_shards"], "compares digests, shows nothing"
    ),
    "Verified": "what `verify` found",
    "score_on_ray": "`score_shards` in other processes",
    "evaluate_pretrained": "loads a model as `transformers` does, then `evaluate_suite`",
    "CaptionSuite": "names of systems; files are read by `captions_of`",
    "RetrievalSuite": "names of systems",
    **dict.fromkeys(("find_image_folder", "locate_images", "fit_objects"), "of `load_captioned` and `load_objects`"),
    "make_plan": "a curriculum's file, read by `curriculum_from`",
    "RecipeParser": "a folder of presets, read by `read_preset`",
    "RegionSource": "the base of readers: it opens nothing",
    **dict.fromkeys(
        [
            *("BoxArrays", "ProposalFolder", "RegionArchive", "FeatureFolder"),
            *("RegionTable", "SceneGraphTable", "OscarFolder"),
        ],
        "made by `open_regions`",
    ),
    "LabelledFiles": "read by `load_labelled`",
    "LeftOut.report": "names a source in words",
    "ShardReader": "a shard that `find_shards` has found",
    "ReadAhead.open": "a shard that `ShardCache` keeps, opened as those of a folder are",
    "ImageToImage": "a pipeline of `diffusers`, which loads it",
}
"""Ways in that are given nothing, and why."""

COMMANDS = {
    "score": "score {path} {out} --scorer caption_length",
    "score, in place": "score {path} {out} --in-place --scorer caption_length --keep caption",
    "bucket": "bucket {path} {path} {out} --num-buckets 1",
    "features": "features {path} {out} --model scenes_clip",
    "generate": "generate {path} {out} --all --prompt {path}",
    "propose": "propose {path} {out} --file {path}",
    "ontology": "ontology {path} --objects {path} --output {out}",
    "inspect": "inspect {path} --html {out}",
    "advise": "advise {path} --features {path}",
    "plan": "plan {path} '{{type: iid, epochs: 1}}'",
    "plan, its curriculum": "plan {path} {path}",
    "train": "train {path} {out} --config {path}",
    "report": "report {path}",
    "caption": "caption {path} {path}",
    "detect": "detect {path} {path}",
    "evaluate": "evaluate {path} {path} --output {out}",
    "push": "push {path} me/x --dry-run --thumbnails",
    "push, scores alone": "push {path} me/x --dry-run --on key",
    "space": "space {path} {out}",
    "recipe": "recipe babylm_git --config {path} --output {out}",
}
NOT_MET = {"version": "takes no path", "verify": "compares digests, and shows nothing of the content"}
_SECTION = re.compile(r"^\s*(Args|Returns|Raises|Source|Example):$", re.MULTILINE)
_PATH = re.compile(r"\bPath\b|\bPathLike\b|RegionSource|pretrained_model_name")


def ways_in():
    """Functions and classes whose docstrings have sections, and their methods, with a parameter for a path."""
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(hf.__path__, "hf_curriculum.")]
    homes = [(module, name) for module in modules if ".cli" not in module.__name__ for name in vars(module)]
    for module, name in homes:
        value = getattr(module, name)
        own = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        if not own or not _SECTION.search(value.__doc__ or ""):
            continue
        own = [item for item in vars(value) if not item.startswith("_")] if inspect.isclass(value) else []
        for title, part in [(name, value), *((f"{name}.{item}", getattr(value, item)) for item in own)]:
            try:
                parameters = inspect.signature(part).parameters.values()
            except (TypeError, ValueError):  # no function; an exception
                continue
            if any(_PATH.search(f"{each.annotation} {each.name}") for each in parameters):
                yield title


def commands(group, before=()):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name))


def test_every_way_in_is_met_or_listed():
    found = dict.fromkeys(ways_in())
    met = {name.partition(",")[0] for name in READS}
    assert set(found) - met - set(LISTED) == set(), "give them crafted data in READS, or say why not in LISTED"
    assert set(LISTED) - set(found) == set()
    assert met & set(LISTED) == set()
    shell = set(commands(typer.main.get_command(app)))
    assert shell == {name.partition(",")[0] for name in COMMANDS} | set(NOT_MET)
    print(f"\n{len(met)} functions and {len(shell) - len(NOT_MET)} commands read paths, {len(LISTED)} do not")


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    import datasets

    root = tmp_path_factory.mktemp("ways")
    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, root / "cache"
    for name in ("outside", "data"):
        (root / name).mkdir()
    make_outside(root / "outside")
    with asked_server() as server:
        mark = root / "code was run"
        paths = make_crafted(root / "data", root / "outside", mark, server.address)
        yield paths, root, mark, server.requests
    datasets.config.HF_DATASETS_CACHE = before


def consume(found, depth=0):
    """Reads what was returned, and asserts that none of it is from outside."""
    if isinstance(found, DatasetDict):
        found = list(found.values())
    if isinstance(found, Image.Image):
        assert found.size != SIZE
    elif isinstance(found, str):
        assert SECRET not in found
    elif isinstance(found, np.ndarray):
        assert found.dtype.kind not in "fiu" or not (found == NUMBER).any()
    elif hasattr(found, "values") and depth < 4:
        for part in list(found.values()):
            consume(part, depth + 1)
    elif isinstance(found, (list, tuple, Dataset, hf.BucketedStream)) and depth < 4:
        for part in found:
            consume(part, depth + 1)
    elif hasattr(found, "features") and hasattr(found, "boxes"):
        consume([found.features, found.boxes], depth + 1)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_data_is_made_to_do_is_refused(attack, crafted):
    paths, root, mark, requests = crafted
    assert set(ATTACKS) == set(paths)
    read, match = ATTACKS[attack]
    with watched(root / "outside") as seen, pytest.raises(Exception, match=match) as refused:
        read(paths[attack])
    print(f"{attack}: {type(refused.value).__name__}: {str(refused.value).splitlines()[0][:150]}")
    assert not mark.exists()
    assert seen == []
    assert requests == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in READS]
)
def test_no_function_opens_what_is_outside(name, crafted):
    paths, root, mark, requests = crafted
    with watched(root / "outside") as seen:
        for about, path in paths.items():
            told = ""
            try:
                consume(READS[name](path))
            except AssertionError:
                raise
            except Exception as error:  # refused; what errors say is other tests' subject
                told = str(error)
            if name in HASHED:
                seen[:] = [each for each in seen if each[0] != "open"]
            assert SECRET not in told, about
            assert not mark.exists(), about
            assert seen == [], about
    assert requests == []


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_opens_what_is_outside(name, crafted, monkeypatch):
    paths, root, mark, requests = crafted
    monkeypatch.chdir(root)
    with watched(root / "outside") as seen:
        for about, path in paths.items():
            words = COMMANDS[name].format(path=shlex.quote(str(path)), out=shlex.quote(str(root / "out")))
            made = CliRunner().invoke(app, shlex.split(words))
            assert SECRET not in made.output, about
            assert not mark.exists(), about
            assert seen == [], about
            shutil.rmtree(root / "out", ignore_errors=True)
    assert requests == []
