"""Everything that the package writes, small: how it is written, and how it is read back. `faults.py` disturbs it.

A `Writer` writes version 0 or 1 of its result, so that one may lie there when the other is written.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

import numpy as np
import pyarrow.parquet as pq
import torch
from crawl import crawl
from datasets import Dataset, DatasetDict, disable_progress_bars
from detection_task import shapes_data, shapes_model, shapes_processor
from PIL import Image
from small_task import Net
from spectrum_data import labelled_scenes, tiny_pipeline
from transformers import BertConfig, ViTConfig, ViTModel

from hf_curriculum import (
    BucketedStream,
    CaptionLength,
    CLIPSimilarity,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
    PosTagger,
    SelfPaced,
    Study,
    add_scores,
    add_scores_sharded,
    bucket_shards,
    load_captioned,
    load_scored,
    load_scores,
    make_image_processor,
    make_plan,
    make_scenes,
    save_bucketed,
    save_scored,
    save_scores,
    score_shards,
    summarise,
)
from hf_curriculum.cli import app
from hf_curriculum.data.proposals import SelectiveSearch
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.tables import write_line_index
from hf_curriculum.models.vision_features import VisionFeatures, cache_vision_features
from hf_curriculum.planning.export import ExportedOrder, verify_order
from hf_curriculum.reporting.report import Report
from hf_curriculum.streaming.index import verify_bucketed
from hf_curriculum.tasks.alignment import Ontology, RetrievalSuite
from hf_curriculum.tasks.alignment.ontology.review import write_review
from hf_curriculum.tasks.alignment.retrieval.ranks import ScoreMatrix
from hf_curriculum.tasks.alignment.retrieval.suite import read_ranks
from hf_curriculum.tasks.captioning import CaptionSuite
from hf_curriculum.tasks.captioning.suite import read_captions, write_captions
from hf_curriculum.tasks.detection import add_proposals, write_proposals
from hf_curriculum.tasks.long_tail import filter_spectrum, generate_spectrum
from hf_curriculum.training.checkpoints import last_complete_checkpoint


@dataclass(frozen=True)
class Writer:
    """Something that writes.

    Args:
        name: what the tables call it.
        target: the name that the user gives, in the folder that `write` is called with.
        write: writes version 0 or 1 into a folder, and raises what a user sees.
        read: all that was written, as something whose `repr` is equal where it is.
        former: whether version 0 may lie where version 1 is written.
        most: of how many operations the n-th fails at most, where it is slow.
    """

    name: str
    target: str
    write: Callable[[Path, int], Any]
    read: Callable[[Path], Any]
    former: bool = True
    most: int = 12


class CommandError(RuntimeError):
    """What a command that failed printed on standard error, or else on standard output."""


def command(*words: object) -> None:
    """`hf-curriculum WORDS` in this process."""
    messages, results = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(results):
        try:
            app([str(word) for word in words])
        except SystemExit as end:
            if end.code:
                raise CommandError(messages.getvalue() or results.getvalue()) from None


def files_in(folder: Path, *names: str) -> dict[str, bytes]:
    """File → content of a folder, or of those that are named; what is being written there is not in it yet."""
    paths = [folder / name for name in names] or [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def content_of(data: Dataset | DatasetDict) -> Any:
    """The values of a data set, images as they are stored."""
    if isinstance(data, DatasetDict):
        return {name: content_of(part) for name, part in data.items()}
    return data.with_format("arrow")[:].to_pydict()


def sentences(rows: int, seed: int = 0) -> list[str]:
    """Captions of several lengths."""
    rng = np.random.default_rng(seed)
    words = ["a", "red", "dog", "and", "two", "small", "cats", "sleep", "é"]
    return [" ".join(rng.choice(words, rng.integers(2, 12))) for _ in range(rows)]


def scored(version: int, rows: int = 24) -> Dataset:
    """Captions with a score; the other version has others."""
    columns = {"caption": sentences(rows, version), "image_id": [f"i{row // 2}" for row in range(rows)]}
    return add_scores(Dataset.from_dict(columns), CaptionLength())


def photos(folder: Path, version: int) -> None:
    """A folder of images with captions."""
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (40, 30), (50 * number, 80 * version, 0)).save(folder / f"{number}.png")
    lines = [f"{row % 4}.png,{text}\n" for row, text in enumerate(sentences(8, version))]
    (folder / "captions.csv").write_text("file_name,caption\n" + "".join(lines), encoding="utf-8")


def prepare(folder: Path) -> None:
    """What is read by those that write."""
    for version in (0, 1):
        given = folder / str(version)
        photos(given / "photos", version)
        save_scored(scored(version), given / "scored")
        scenes = make_scenes(6, seed=version, image_size=32, captions_per_image=2, validation=0, test=0)["train"]
        save_scored(add_scores(scenes, CaptionLength()), given / "scenes")
        crawl(given / "crawl", 3, 8 + version)
        score_shards(given / "crawl", CaptionLength(), given / "shards")
        (given / "regions").mkdir()
        for number in range(3):
            feat = np.random.default_rng(number + 7 * version).normal(size=(3, 4)).astype(np.float32)
            np.savez(given / "regions" / f"{number}.npz", feat=feat, boxes=np.tile(np.float32([0, 0, 9, 9]), (3, 1)),
                     width=20, height=20)  # fmt: skip
        boxes, feat = (base64.b64encode(np.full((3, n), 1 + version, np.float32)).decode() for n in (4, 8))
        (given / "regions.tsv").write_text("".join(f"{'9' * n}\t20\t20\t3\t{boxes}\t{feat}\n" for n in range(1, 9)))
        labelled_scenes(5 + version, 2).save_to_disk(str(given / "hard"))
        entries = [{"image_id": f"i{row}", "caption": text} for row, text in enumerate(sentences(12, version + 5))]
        (given / "captions.json").write_text(json.dumps(entries))
    tiny_pipeline().save_pretrained(folder / "pipeline")
    detector = folder / "detector"
    shapes_model().save_pretrained(detector)
    shapes_processor().save_pretrained(detector)
    small = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
                       max_position_embeddings=64)  # fmt: skip
    for version in (0, 1):
        words = [text.split() for text in sentences(12, version)]
        PosTagger.train(words, [["NN"] * len(line) for line in words], config=small, epochs=1,
                        output_dir=folder / str(version) / "tagger")  # fmt: skip
    train(folder / "run", 0)


def train(out: Path, version: int, checkpoint: str | None = None) -> None:
    """Six steps with three checkpoints, of which two stay; continues from the last complete one, or the one named."""
    rng = np.random.default_rng(version)
    x = rng.normal(size=(24, 4)).astype(np.float32)
    columns = {"x": x.tolist(), "labels": (x.sum(1) > 0).astype(int).tolist(), "score": (np.arange(24.0) % 6).tolist()}
    torch.manual_seed(0)
    args = CurriculumTrainingArguments(
        str(out), curriculum=SelfPaced(epochs=2, warmup_epochs=0, easy="low"), per_device_train_batch_size=8,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1, save_steps=2, save_total_limit=2,
        audit_draws=True, score_column="score",
    )  # fmt: skip
    trainer = CurriculumTrainer(model=Net(), args=args, train_dataset=Dataset.from_dict(columns))
    if checkpoint is None:
        with contextlib.suppress(ValueError):  # there is none, or none that is complete
            checkpoint = last_complete_checkpoint(out)
    trainer.train(resume_from_checkpoint=checkpoint)


def trained(out: Path) -> Any:
    """Weights at the end, and what was drawn."""
    last = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), default=None)
    if last is None or json.loads((last / "trainer_state.json").read_text())["global_step"] < TRAINED_STEPS:
        raise FileNotFoundError(f"{out} holds no run that came to its end")
    return (last / "model.safetensors").read_bytes(), files_in(out, "draws-rank0.jsonl")


TRAINED_STEPS = 6


def bucketed(folder: Path) -> Any:
    """All rows of buckets, once their digests are compared."""
    verify_bucketed(folder)
    return list(BucketedStream(folder, Phases(2), global_batch_size=4, decode=False))


def regions(folder: Path) -> Any:
    """All of a store."""
    store = RegionStore(folder)
    store.verify()
    return contents_of(store)


def contents_of(opened: Any) -> Any:
    """All regions of a source."""
    return [(name, {key: np.asarray(value).tolist() for key, value in vars(opened[name]).items()})
            for name in sorted(opened)]  # fmt: skip


def features(folder: Path) -> Any:
    """All features of images."""
    VisionFeatures(folder)
    return {name: content for name, content in files_in(folder).items() if not name.startswith(".")}


def spectrum(folder: Path) -> Any:
    """Everything that was generated."""
    return content_of(load_scored(folder))


# ---- The writers ----


def writers(given: Path) -> list[Writer]:
    """All of them; `prepare` was called with the folder."""
    makers = (of_scores, of_orders, of_shards, of_training, of_images, of_pages, of_suites, of_generation)
    return [writer for maker in makers for writer in maker(given)]


def of_scores(given: Path) -> Iterator[Writer]:
    """Scores of data sets."""

    def side_file(out: Path) -> Any:
        return [content_of(load_scores(scored(version).remove_columns("caption_length"), out / "side.parquet"))
                for version in (pq.read_table(out / "side.parquet").num_rows - 24,)]  # fmt: skip

    def photo_scores(out: Path, version: int, *words: object) -> None:
        command("score", given / str(version) / "photos", *words, "--scorer", "caption_length", "--batch-size", 4,
                "--part-rows", 4)  # fmt: skip

    def columns(out: Path) -> Any:
        return pq.read_table(out / "side.parquet").to_pydict()

    yield Writer("save_scored", "set", lambda out, v: save_scored(scored(v), out / "set"),
                 lambda out: content_of(load_scored(out / "set")))  # fmt: skip
    splits = [DatasetDict({"train": scored(v), "test": scored(v + 2)}) for v in (0, 1)]
    yield Writer("save_scored, splits", "set", lambda out, v: save_scored(splits[v], out / "set"),
                 lambda out: content_of(load_scored(out / "set")))  # fmt: skip
    yield Writer("save_scores", "side.parquet", lambda out, v: save_scores(scored(v), out / "side.parquet"), columns)
    yield Writer("score", "set", lambda out, v: photo_scores(out, v, out / "set"),
                 lambda out: content_of(load_scored(out / "set")), former=False)  # fmt: skip
    yield Writer("score --overwrite", "set", lambda out, v: photo_scores(out, v, out / "set", "--overwrite"),
                 lambda out: content_of(load_scored(out / "set")))  # fmt: skip
    yield Writer("score --side-file", "side.parquet",
                 lambda out, v: photo_scores(out, v, "--side-file", out / "side.parquet"), columns,
                 former=False)  # fmt: skip
    yield Writer("score --side-file --overwrite", "side.parquet",
                 lambda out, v: photo_scores(out, v, "--side-file", out / "side.parquet", "--overwrite"),
                 columns)  # fmt: skip
    yield Writer("add_scores_sharded", "parts",
                 lambda out, v: add_scores_sharded(scored(0).remove_columns("caption_length"), CaptionLength(),
                                                   out / "parts", part_rows=8),
                 lambda out: content_of(add_scores_sharded(scored(0).remove_columns("caption_length"), CaptionLength(),
                                                           out / "parts", part_rows=8)), former=False)  # fmt: skip


def of_orders(given: Path) -> Iterator[Writer]:
    """Orders of a plan."""
    data = [scored(v).add_column("uid", [f"{row * 2**70 + v:032x}" for row in range(24)]) for v in (0, 1)]
    plans = [make_plan(Phases(2), data[v], score_column="caption_length", global_batch_size=4) for v in (0, 1)]

    def exported(file: str, out: Path) -> Any:
        if file.endswith(".npy") and not file.startswith("uids"):
            order = ExportedOrder(out / file)
            return order.rows(0, order.known_samples).tolist(), order.facts
        return verify_order(out / file), files_in(out, file)

    for file, options in {"order.npy": {}, "order.txt": {}, "order.parquet": {"id_column": "image_id"},
                          "uids.npy": {"id_column": "uid", "datacomp": True}}.items():  # fmt: skip
        name = f"plan.export {file}"
        yield Writer(name, file, lambda out, v, file=file, options=options: plans[v].export(
            out / file, data[v], **options), partial(exported, file))  # fmt: skip
    yield Writer("plan --figure", "growth.png", lambda out, v: command(
        "plan", given / str(v) / "scored", "phases" if v else "iid", "--figure", out / "growth.png"),
        lambda out: np.asarray(Image.open(out / "growth.png")).tobytes())  # fmt: skip


def of_shards(given: Path) -> Iterator[Writer]:
    """Buckets, and scores of a crawl."""
    for format in ("parquet", "webdataset"):
        yield Writer(f"save_bucketed {format}", "buckets", lambda out, v, format=format: save_bucketed(
            scored(v), out / "buckets", 2, score_column="caption_length", format=format, overwrite=True),
            lambda out: bucketed(out / "buckets"))  # fmt: skip
    for format, overwrite in (("parquet", False), ("webdataset", True)):
        yield Writer(f"bucket_shards {format}{', overwrite' * overwrite}", "buckets",
                     lambda out, v, format=format, overwrite=overwrite: bucket_shards(
                         given / str(v) / "crawl", given / str(v) / "shards", out / "buckets", 2, format=format,
                         overwrite=overwrite), lambda out: bucketed(out / "buckets"), former=overwrite)  # fmt: skip
    yield Writer("bucket --overwrite", "buckets", lambda out, v: command(
        "bucket", given / str(v) / "crawl", given / str(v) / "shards", out / "buckets", "--overwrite"),
        lambda out: bucketed(out / "buckets"))  # fmt: skip
    yield Writer("score_shards", "scores", lambda out, v: score_shards(
        given / str(v) / "crawl", CaptionLength(), out / "scores"),
        lambda out: content_of(load_scored(out / "scores")), former=False)  # fmt: skip
    yield Writer("score --in-place", "scores", lambda out, v: command(
        "score", given / str(v) / "crawl", out / "scores", "--scorer", "caption_length", "--in-place"),
        lambda out: content_of(load_scored(out / "scores")), former=False)  # fmt: skip


def of_training(given: Path) -> Iterator[Writer]:
    """Checkpoints, studies, and what belongs to a model."""

    def study(out: Path, version: int) -> None:
        made = Study(lambda settings: {"eval_loss": settings["rate"] + settings["seed"]},
                     {"one": {"rate": 1.0}, "two": {"rate": 2.0 + version}}, [0, 1], out / "study")  # fmt: skip
        made.run()

    def runs(out: Path) -> Any:
        made = [Study(lambda settings: {}, {"one": {"rate": 1.0}, "two": {"rate": 2.0 + version}}, [0, 1],
                      out / "study").runs for version in (0, 1)]  # fmt: skip
        finished = [each for each in made if all(run.status == "finished" for run in each)]
        if not finished:
            raise FileNotFoundError("no study that came to its end")
        return [[(run.key, run.result) for run in each] for each in finished]

    def table(out: Path, version: int) -> None:
        made = Study(lambda settings: {"eval_loss": settings["rate"] + settings["seed"]},
                     {"one": {"rate": 1.0}, "two": {"rate": 2.0 + version}}, [0, 1],
                     out.parent / "study of table" / str(version))  # fmt: skip
        made.run()
        summarise(made.runs, ["eval_loss"]).write(out / "tables")

    yield Writer("train", "run", lambda out, v: train(out / "run", v), lambda out: trained(out / "run"), former=False,
                 most=8)  # fmt: skip
    yield Writer("Study.run", "study", study, runs, former=False)
    yield Writer("StudyTable.write", "tables", table, lambda out: files_in(out / "tables"))
    taggers = [PosTagger(given / str(v) / "tagger") for v in (0, 1)]
    yield Writer("PosTagger.save_pretrained", "tagger", lambda out, v: taggers[v].save_pretrained(out / "tagger"),
                 lambda out: PosTagger(out / "tagger").tag(["a dog"]) and files_in(out / "tagger"))  # fmt: skip
    pipelines = [tiny_pipeline(v) for v in (0, 1)]
    yield Writer("PixelDiffusion.save_pretrained", "pipeline",
                 lambda out, v: pipelines[v].save_pretrained(out / "pipeline"),
                 lambda out: files_in(out / "pipeline"))  # fmt: skip


def of_images(given: Path) -> Iterator[Writer]:
    """Features, regions and boxes of images."""
    yield Writer("pack_regions", "store", lambda out, v: pack_regions(
        given / str(v) / "regions", out / "store", standardise=True, progress=False),
        lambda out: regions(out / "store"), former=False)  # fmt: skip
    yield Writer("extract_regions", "store", lambda out, v: extract_regions(
        load_scored(given / str(v) / "scenes"), "scenes_clip", out / "store", grid=2, progress=False),
        lambda out: regions(out / "store"), former=False)  # fmt: skip
    torch.manual_seed(0)
    vit = ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16))
    processor = make_image_processor(32)
    yield Writer("cache_vision_features", "features", lambda out, v: cache_vision_features(
        vit, load_scored(given / str(v) / "scenes"), out / "features", processor, progress=False),
        lambda out: features(out / "features"), former=False)  # fmt: skip
    yield Writer("write_line_index", "regions.tsv", write_index(given),
                 lambda out: files_in(out, "regions.lineidx"))  # fmt: skip
    shapes = [shapes_data(4, v) for v in (0, 1)]
    yield Writer("write_proposals", "proposals", lambda out, v: write_proposals(shapes[v], out / "proposals"),
                 lambda out: files_in(out / "proposals"))  # fmt: skip
    yield Writer("add_proposals", "parts", lambda out, v: add_proposals(
        shapes[0].remove_columns("proposals"), SelectiveSearch(min_size=8), folder=out / "parts", part_images=2),
        lambda out: content_of(add_proposals(shapes[0].remove_columns("proposals"), SelectiveSearch(min_size=8),
                                             folder=out / "parts", part_images=2)), former=False)  # fmt: skip
    yield Writer("detect --output", "boxes", lambda out, v: command(
        "detect", given / "detector", given / str(v) / "photos", "--output", out / "boxes", "--threshold", 0.0),
        lambda out: files_in(out / "boxes", "boxes.json"), most=6)  # fmt: skip
    yield Writer("propose", "boxed", lambda out, v: command(
        "propose", given / str(v) / "photos", out / "boxed", "--min-size", 8),
        lambda out: content_of(load_scored(out / "boxed")) if (out / "boxed" / "scores.json").exists()
        else content_of(Dataset.load_from_disk(str(out / "boxed"))), former=False)  # fmt: skip
    yield Writer("load_captioned, log", "unreadable.txt", lambda out, v: unreadable(given, out, v),
                 lambda out: files_in(out, "unreadable.txt"))  # fmt: skip


def write_index(given: Path) -> Callable[[Path, int], None]:
    """`write_line_index` of a table that is written into the folder first."""

    def write(out: Path, version: int) -> None:
        if not (out / "regions.tsv").exists() or version:
            (out / "regions.tsv").write_bytes((given / str(version) / "regions.tsv").read_bytes())
        write_line_index(out / "regions.tsv")

    return write


def unreadable(given: Path, out: Path, version: int) -> None:
    """Loads images of which one is damaged."""
    folder = out.parent / "with damage" / str(version)
    if not folder.exists():
        photos(folder, version)
        (folder / f"{version}.png").write_bytes(b"no image")
    load_captioned(folder, unreadable_log=out / "unreadable.txt")


def space(folder: Path) -> dict[str, bytes]:
    """A Space: its page, its data, and the thumbnails that the data name."""
    thumbnails = re.findall(r"[0-9a-f]{16}\.jpg", (folder / "data.json").read_text())
    return files_in(folder, "index.html", "data.json", *(f"thumbnails/{name}" for name in thumbnails))


def of_pages(given: Path) -> Iterator[Writer]:
    """Pages."""
    yield Writer("Report.write", "page", lambda out, v: Report(f"Title {v}").add_image(
        "Image", Image.new("RGB", (9, 9), (v, 9, 9)), name="image").write(out / "page"),
        lambda out: files_in(out / "page"))  # fmt: skip
    yield Writer("report", "page", lambda out, v: command(
        "report", given / "run", out / "page", "--title", f"version {v}"), lambda out: files_in(out / "page"),
        most=3)  # fmt: skip
    yield Writer("inspect --html", "page", lambda out, v: command(
        "inspect", given / str(v) / "scenes", "--html", out / "page"), lambda out: files_in(out / "page"),
        most=6)  # fmt: skip
    yield Writer("space", "space", lambda out, v: command("space", given / str(v) / "scenes", out / "space"),
                 lambda out: space(out / "space"))  # fmt: skip


def of_suites(given: Path) -> Iterator[Writer]:
    """Results of evaluations, and ontologies."""
    data = scored(0)
    suite = CaptionSuite(data, ["bleu", "cider"], name="ours")
    results = [suite(sentences(12, v + 5)) for v in (0, 1)]

    def retrieved(version: int) -> Any:
        return RetrievalSuite(data)(ScoreMatrix(np.random.default_rng(version).random((24, 12))))

    ranked = [retrieved(v) for v in (0, 1)]
    nouns = [Ontology.induce(load_scored(given / str(v) / "scenes"), "objects", min_pairs=1, min_instances=1)
             for v in (0, 1)]  # fmt: skip
    yield Writer("CaptionSuite.write", "results", lambda out, v: results[v].write(out / "results"),
                 lambda out: files_in(out / "results"))  # fmt: skip
    yield Writer("RetrievalSuite.write", "results", lambda out, v: ranked[v].write(out / "results"),
                 lambda out: read_ranks(out / "results") and files_in(out / "results"))  # fmt: skip
    yield Writer("evaluate --suite captions", "results", lambda out, v: command(
        "evaluate", given / str(v) / "captions.json", "--suite", "captions", "--data", given / "0" / "scored",
        "--output", out / "results", "--metrics", "bleu", "--metrics", "cider"),
        lambda out: files_in(out / "results"), most=8)  # fmt: skip
    yield Writer("write_captions", "captions.json", lambda out, v: write_captions(
        out / "captions.json", [str(row) for row in range(12)], sentences(12, v)),
        lambda out: read_captions(out / "captions.json"))  # fmt: skip
    yield Writer("Ontology.save", "ontology.json", lambda out, v: nouns[v].save(out / "ontology.json"),
                 lambda out: Ontology.load(out / "ontology.json").to_dict())  # fmt: skip
    yield Writer("write_review", "review.yaml", lambda out, v: write_review(nouns[v], out / "review.yaml"),
                 lambda out: files_in(out, "review.yaml"), former=False)  # fmt: skip
    yield Writer("ontology", "ontology.json", lambda out, v: command(
        "ontology", given / str(v) / "scenes", "--objects", "objects", "--min-pairs", 1, "--min-instances", 1,
        "--output", out / "ontology.json"), lambda out: Ontology.load(out / "ontology.json").to_dict())  # fmt: skip


def of_generation(given: Path) -> Iterator[Writer]:
    """Generated images."""
    pipeline = tiny_pipeline()
    options: dict[str, Any] = {"prompts": "a {name}", "levels": (0.5,), "seeds": 2, "steps": 2, "part_images": 1}
    images = [labelled_scenes(4 + v, 2) for v in (0, 1)]

    def generated(out: Path, version: int) -> Dataset:
        return generate_spectrum(images[version], pipeline, folder=out / "spectrum", **options)

    made = generate_spectrum(images[0], pipeline, folder=given / "spectrum", **options)

    def filtered(out: Path, version: int) -> Dataset:
        return filter_spectrum(made, CLIPSimilarity("scenes_clip"), at_least=-1, folder=out / "filter", part_rows=2)

    yield Writer("generate_spectrum", "spectrum", generated, lambda out: content_of(generated(out, 1)), former=False)
    yield Writer("filter_spectrum", "filter", filtered, lambda out: content_of(filtered(out, 0)), former=False)
    for overwrite in (False, True):
        flags = ["--overwrite"] * overwrite
        yield Writer(f"generate{' --overwrite' * overwrite}", "generated", lambda out, v, flags=flags: command(
            "generate", given / str(v) / "hard", out / "generated", "--pipeline", given / "pipeline", "--levels",
            "0.5", "--seeds", 1 + v, "--steps", 2, "--prompt", "a {name}", *flags),
            lambda out: spectrum(out / "generated"), former=overwrite, most=6)  # fmt: skip


def quiet() -> None:
    """No progress bars, no log, one thread: processes are forked."""
    disable_progress_bars()
    logging.disable(logging.WARNING)
    os.environ.update(TQDM_DISABLE="1")
    torch.set_num_threads(1)
