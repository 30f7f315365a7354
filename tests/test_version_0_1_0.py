"""What version 0.1.0 wrote still loads, resumes bit for bit and continues; what it was imported by still imports.

`fixtures/version_0_1_0/make.py` made the files with that version installed; its functions build the same here.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_curriculum import (
    BucketIndex,
    CurriculumTrainer,
    NounCount,
    PosTagger,
    VisionFeatures,
    add_scores_from,
    cache_vision_features,
    generate_captions,
    load_scored,
    load_scores,
    make_miniature_benchmarks,
    read_provenance,
    summarise,
    verify_bucketed,
)

FIXTURES = Path(__file__).parent / "fixtures" / "version_0_1_0"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("desk"),
]


def expected(name):
    return json.loads((FIXTURES / f"{name}_expected.json").read_text(encoding="utf-8"))


def plain(value):
    return json.loads(json.dumps(value))


def check_numbers(found, wanted, versions):
    """To the last digit where the recording machine's libraries run, else as near as other kernels come."""
    here = {name: importlib.import_module(name).__version__ for name in ("torch", "numpy", "transformers")}
    if all(versions.get(name, number) == number for name, number in here.items()):
        assert found == wanted
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-3)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a copy of the fixtures, to work in."""
    shutil.copytree(FIXTURES, tmp_path / "fixtures")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "fixtures"


@pytest.fixture
def make(desk):
    spec = importlib.util.spec_from_file_location("make_0_1_0", desk / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HERE = desk
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_scored_data(make, desk):
    wanted = expected("scored")
    for name, part in {**load_scored(desk / "scored"), "scored_flat": load_scored(desk / "scored_flat")}.items():
        values = make.values_of(part, list(wanted[name]["values"]))
        assert plain(values) == {key: wanted[name][key] for key in ("values", "provenance")}
        assert part.column_names == wanted[name]["columns"]


def without_passes(text):
    """A plan as it was printed before it said how many passes over the data it makes."""
    return re.sub(r": [\d.]+ × the data in ", ": ", text)


@pytest.mark.parametrize("name", ["run", "rounds", "self_paced"])
def test_a_run_resumes_bit_for_bit(make, desk, name):
    wanted = expected(name)
    shutil.copytree(desk / name, name)
    arguments = torch.load(f"{name}/checkpoint-5/training_args.bin", weights_only=False)
    trainer = CurriculumTrainer(**make.build_parts(name, load_scored(desk / "scored")))
    # What was printed then is printed first, passes over the data beside it; lines on exposure follow.
    assert without_passes(trainer.plan.describe()).startswith(wanted["described_before"] + "\n")
    assert arguments.curriculum == trainer.args.curriculum
    trainer.train(resume_from_checkpoint=f"{name}/checkpoint-5")
    found = plain(make.run_facts(trainer))
    assert without_passes(found.pop("describe")).startswith(wanted["describe"] + "\n")
    for key in ("steps", "rows", "fingerprint", "plan"):
        if key in found:
            assert found[key] == wanted[key], key
    for entry, before in zip(found.get("decisions", ()), wanted.get("decisions", ()), strict=True):
        losses = {key: before[key] for key in ("value", "best") if key in before}  # the plan follows from the others
        check_numbers([entry[key] for key in losses], [*losses.values()], wanted["versions"])
        assert {**entry, **losses} == before
    check_numbers(found["losses"], wanted["losses"], wanted["versions"])
    if wanted["versions"].get("torch") == torch.__version__:
        assert found["weights"] == wanted["weights"]


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_bucketed_shards(make, desk, kind):
    wanted = expected("buckets")[kind]
    assert [row["row"] for row in make.build_stream(kind)] == [row for step in wanted["rows"] for row in step]
    stream = make.build_stream(kind)
    stream.load_state_dict(wanted["state_after_18"])
    assert [row["row"] for row in stream] == [row for step in wanted["rows"] for row in step][18:]
    assert plain(make.build_stream(kind).state_at(4)) == wanted["state_at_4"]
    verify_bucketed(desk / f"buckets_{kind}")


def test_side_files_and_finished_parts(make, desk):
    wanted, data = expected("side"), load_scored(desk / "scored")
    for name, values in wanted["saved"].items():
        loaded = load_scores(make.build_side_data(data), desk / "side" / name)
        assert plain(make.values_of(loaded, list(values["values"]))) == values
    for name, values in wanted["joined"].items():
        easy = {"a": "low", "b": "high"}
        loaded = add_scores_from(make.build_side_data(data), desk / "side" / name, on="image_id", easy=easy)
        assert plain(make.values_of(loaded, ["a", "b"])) == values
    parts = desk / "side" / "parts"
    before = {path: path.stat().st_mtime_ns for path in parts.rglob("*") if path.suffix in (".parquet", ".arrow")}
    done = make.build_shards(parts, data)
    values = make.values_of(done, list(wanted["parts"]["values"]))
    assert plain(values) == {key: wanted["parts"][key] for key in ("values", "provenance")}
    assert before
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    cached = make.values_of(make.build_cached(desk / "side" / "cache", data), ["caption_length"])
    assert plain(cached) == {key: wanted["cache"][key] for key in ("values", "provenance")}


def test_pickled_scorers(desk):
    wanted = expected("pickles")
    for name, known in wanted["scorers"].items():
        scorer = pickle.loads((desk / "pickles" / name).read_bytes())
        assert [type(scorer).__name__, repr(scorer)] == [known["class"], known["repr"]]
        assert scorer.describe(known["column"]).to_json() == known["provenance"]
        assert scorer(wanted["batch"])[known["column"]].tolist() == known["scores"]


def test_pushed_data_and_model(make, desk):
    wanted = expected("pushed")
    loaded = load_dataset(str(desk / "pushed_data"))
    for name, part in loaded.items():
        assert part["caption"][:] == wanted["pushed_data"]["rows"][name]["caption"]
        assert part["noun_count"][:] == wanted["pushed_data"]["rows"][name]["noun_count"]
    found = {name: value.to_json() for name, value in read_provenance(loaded).items()}
    assert found == wanted["pushed_data"]["provenance"]
    assert list(BucketIndex.read(desk / "pushed_data").sizes) == [8, 8, 8]
    model = AutoModelForImageTextToText.from_pretrained(desk / "pushed_model")
    processor = AutoProcessor.from_pretrained(desk / "pushed_model")
    assert make.weights_digest(model) == wanted["pushed_model"]["weights"]
    images = load_scored(desk / "scored")["validation"]
    assert generate_captions(model, images, processor, max_new_tokens=8) == wanted["pushed_model"]["captions"]


def test_a_finished_study_is_read_back(make, desk):
    def train(settings):
        raise AssertionError("a finished run was made again")

    wanted = expected("study")
    study, controls = make.build_study(desk / "study", train)
    study.run()
    table = summarise(study.runs, ["eval_loss", "steps"], control=controls)
    text = table.to_markdown().replace("| n/a |", "| – |").replace(" n/a: every run of the arm diverged.", "")
    assert [study.describe(), text] == [wanted["describe"], wanted["markdown"]]
    rows, recorded = (list(csv.DictReader(text.splitlines())) for text in (table.to_csv(), wanted["csv"]))
    ends = ("lower", "upper", "difference_lower", "difference_upper", "p_t")  # scipy's t in place of a bisection
    for row, before in zip(rows, recorded, strict=True):
        for name in ends:
            one, other = row.pop(name), before.pop(name)
            assert (one == other) or float(one) == pytest.approx(float(other), rel=1e-12)
    assert rows == recorded


def test_other_models_features_and_taggers(make, desk):
    wanted, data = expected("more"), load_scored(desk / "scored")
    model = AutoModelForImageTextToText.from_pretrained(desk / "flamingo")
    processor = AutoProcessor.from_pretrained(desk / "flamingo")
    assert make.weights_digest(model) == wanted["flamingo"]["weights"]
    assert generate_captions(model, data["validation"], processor, max_new_tokens=8) == wanted["flamingo"]["captions"]
    features = desk / "features" / "features.npy"
    before = features.stat().st_mtime_ns
    cache_vision_features(model, data, desk / "features", processor.image_processor, batch_size=4)
    assert features.stat().st_mtime_ns == before
    stored = VisionFeatures(desk / "features")
    for image, digest in wanted["features"]["sha256"].items():
        assert hashlib.sha256(stored[image].tobytes()).hexdigest()[:16] == digest
    captions = {"caption": list(data["train"]["caption"])}
    assert NounCount(PosTagger(desk / "tagger"))(captions)["noun_count"].tolist() == wanted["tagger"]["noun_count"]


def test_an_evaluated_suite_is_read_back(make, desk):
    make_miniature_benchmarks("benchmarks", size=4, image_size=32)
    shutil.copytree(desk / "pushed_model", "pushed_model")
    result = make.build_suite(desk / "suite", "pushed_model", "benchmarks")
    wanted = expected("more")["suite"]
    assert plain(result.averages) == wanted["averages"]
    table = wanted["table"].replace("|---|---|---|---|---|---|", "| --- | --- | --- | --- | --- | --- |")
    assert result.table == table.replace("both pictures", "both images")


PUBLIC = json.loads((FIXTURES / "public_names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", sorted({*PUBLIC, *PUBLIC["documented"]} - {"modules", "documented"}))
def test_public_names_still_import(module):
    names = {*PUBLIC.get(module, ()), *PUBLIC["documented"].get(module, ())}
    loaded = importlib.import_module(module)
    assert sorted(name for name in names if not hasattr(loaded, name)) == []


def test_a_moved_name_says_where_it_went():
    with pytest.warns(DeprecationWarning, match=r"hf_curriculum\.pacing\.phases\.Phases has moved: `from hf_curric"):
        from hf_curriculum.pacing.phases import Phases  # noqa: F401
    with pytest.warns(DeprecationWarning, match=r"hf_curriculum\.TextBeside has moved: .*JointText"):
        from hf_curriculum import TextBeside  # noqa: F401
