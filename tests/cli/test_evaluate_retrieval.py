"""`hf-curriculum evaluate --suite retrieval`: a CLIP's and an aligner's retrieval on a data set."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tiny_models
import torch
from datasets import Dataset
from transformers import BertConfig
from typed_commands import result

from hf_curriculum import make_scenes
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.tasks.alignment import (
    AlignerConfig,
    AlignerModel,
    AlignerProcessor,
    Ontology,
    RetrievalSuite,
    aligner_scores,
    clip_similarities,
    noun_spans,
)
from hf_curriculum.tasks.alignment.cli import is_aligner
from hf_curriculum.tasks.alignment.retrieval.score_captions import class_notes

IMAGES, CAPTIONS = 6, 12


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder of scenes with two captions each."""
    folder = tmp_path_factory.mktemp("data") / "scenes"
    folder.mkdir()
    rows = make_scenes(CAPTIONS, validation=0, test=0, captions_per_image=2)["train"]
    lines = ["file_name,caption"]
    for row in rows:
        row["image"].save(folder / f"{row['image_id']}.png")
        lines.append(f'{row["image_id"]}.png,"{row["caption"]}"')
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder, rows


@pytest.fixture(scope="module")
def aligner(scenes, tmp_path_factory):
    """The folder of a run with a tiny aligner, and the store of its regions."""
    rows = scenes[1]
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    tokenizer = tiny_models.train_wordpiece(rows["caption"][:], 80, min_frequency=1)
    tokenizer.model_max_length = 40
    model = AlignerModel(AlignerConfig(BertConfig(vocab_size=len(tokenizer), **sizes), region_feature_size=5))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    generator, out = np.random.default_rng(0), tmp_path_factory.mktemp("run")
    ids = dict.fromkeys(f"{image_id}.png" for image_id in rows["image_id"])
    np.savez(out / "regions.npz", **{f"{one}/features": generator.standard_normal((3, 5)) for one in ids})
    store = out / "store"
    pack_regions(out / "regions.npz", store, progress=False)
    inputs = RegionInputs(RegionStore(store))
    model.save_pretrained(out / "run" / "model")
    AlignerProcessor(inputs.image_processor, tokenizer).save_pretrained(out / "run" / "model")
    return out / "run", store, model.eval(), tokenizer, inputs


def test_a_clip(scenes, tmp_path):
    folder, rows = scenes
    words = ("--suite", "retrieval", "--data", folder, "--output", tmp_path / "out", "--html", tmp_path / "page")
    done = result("evaluate", "scenes_clip", *words)
    assert done.exit_code == 0, done.output
    suite = RetrievalSuite(rows)
    expected = suite(clip_similarities(suite.captions, suite.images["image"])).values
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (found["systems"], found["about"]["protocol"]) == ({"scenes_clip": expected}, "all")
    assert f"| image R@1 | {100 * expected['image_r1']:.2f} |" in done.stdout
    assert "Images found" in (tmp_path / "page" / "report.html").read_text()
    assert f"tables and ranks in {tmp_path / 'out'}" in done.stderr

    done = result("evaluate", "scenes_clip", *words[:-2], "--compare", f"before={tmp_path / 'out'}", "--json")
    assert done.exit_code == 0, done.output
    assert {each["difference"] for each in json.loads(done.stdout)["comparison"]} == {0.0}


def test_an_aligner_with_its_store_and_ontology(scenes, aligner, tmp_path):
    folder, rows = scenes
    run, store, model, tokenizer, inputs = aligner
    words = ("--suite", "retrieval", "--data", folder, "--features", store, "--output", tmp_path / "out")
    done = result("evaluate", run, *words)
    assert done.exit_code == 0, done.output
    names = Dataset.from_dict(
        {"image_id": [f"{image_id}.png" for image_id in rows["image_id"]], "caption": rows["caption"][:]}
    )
    suite = RetrievalSuite(names)
    spans = noun_spans(suite.captions)
    scores = aligner_scores(model, tokenizer, suite.captions, spans, suite.images, inputs)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["systems"] == {run.name: suite(scores.similarities).values}
    assert (found["notes"], found["about"]["nouns"]) == (list(scores.notes), "mean")

    with_run = shutil.copytree(run, tmp_path / "with")  # as a recipe leaves it: the ontology beside the model
    with_objects = names.add_column("objects", [[{"name": thing["noun"]} for thing in own] for own in rows["objects"]])
    ontology = Ontology.induce(with_objects, min_pairs=1, min_instances=1)
    ontology.save(with_run / "ontology.json")
    done = result("evaluate", with_run, *words, "--nouns", "max", "--limit", "4")
    assert done.exit_code == 0, done.output
    four = RetrievalSuite(names, limit=4)
    spans = noun_spans(four.captions, ontology)
    scores = aligner_scores(model, tokenizer, four.captions, spans, four.images, inputs, over="max")
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (again["systems"], again["about"]["nouns"]) == ({"with": four(scores.similarities).values}, "max")
    assert again["notes"][-1].startswith("Nothing is ranked within classes")
    assert class_notes(names)[0] in again["notes"]


def test_models_of_the_hub(monkeypatch):
    def find(name):
        if name == "me/nothing":
            raise OSError("There is no such repository.")
        return {"model_type": "clip" if name == "me/clip" else "curriculum_aligner"}, {}

    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", find)
    names = ("me/aligner", "me/clip", "me/nothing", "scenes_clip", "open_clip:ViT-B-32/openai")
    assert [is_aligner(name) for name in names] == [True, False, False, False, False]


def test_mistakes(scenes, aligner, tmp_path):
    folder, _ = scenes
    run, store, *_ = aligner
    suite = ("--suite", "retrieval", "--output", tmp_path / "out")
    for words, text in (
        (("scenes_clip", *suite), "Captions and images are those of a data set"),
        (("scenes_clip", *suite, "--data", folder, "--features", store), "is no aligner"),
        (("scenes_clip", *suite, "--data", folder, "--nouns", "max"), "is no aligner"),
        (("scenes_clip", *suite, "--data", folder, "--beams", "2"), "has no effect with `--suite retrieval`"),
        (("scenes_clip", *suite, "--data", folder, "--ontology", tmp_path / "none.json"), "There is no file"),
        (("scenes_clip", *suite, "--data", folder, "--protocol", "coco"), "There is no protocol 'coco'"),
        (("scenes_clip", *suite, "--data", folder, "--protocol", "flickr30k"), "the protocol is of 1,000"),
        ((run, *suite, "--data", folder), "is an aligner, which reads regions"),
        ((run, *suite, "--data", folder, "--features", store, "--nouns", "sum"), "is neither mean nor max"),
        (
            ("scenes_clip", "--suite", "captions", "--data", folder, "--protocol", "all"),
            "has no effect with `--suite captions`",
        ),
        (("scenes_clip", "--suite", "coco"), "There are babylm, captions, retrieval"),
    ):
        done = result("evaluate", *words)
        assert done.exit_code in (1, 2), words
        assert text in " ".join(done.output.replace("│", " ").split()), (words, done.output)
