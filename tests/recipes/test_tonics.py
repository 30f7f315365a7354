"""TOnICS's recipe: its presets, the rows of its tables, its data; and, slowly, a whole study on scenes."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tonics_alignment
from datasets import Dataset
from PIL import Image
from tonics.arguments import PARSER, PRESETS, DataArguments, ModelArguments, TonicsArguments
from tonics.data import SourceRegions, _captioned, _ontology, prepare, validate_files
from tonics.evaluation import make_suites
from tonics.model import build, readable
from tonics.report import masses, threshold_of
from tonics.scenes import _mean_inside, box_regions

from hf_curriculum import CurriculumTrainingArguments, curriculum_from, make_scenes
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.scored_data import FILE_NAME
from hf_curriculum.studies.grid import budget_of
from hf_curriculum.studies.recipe import read_preset, study_arms
from hf_curriculum.tasks.alignment import Ontology
from hf_curriculum.tasks.alignment.ontology.sources import StageCount

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, ModelArguments, TonicsArguments) for item in fields(kind)}
SHORT = ("--preset", "smoke", "--num_examples", "160", "--held_out", "6", "--min_instances", "4", "--min_pairs", "3")


def settings_of(*options):
    return PARSER.parse(options).settings


def arguments_of(*options, **changed):
    given = PARSER.parse(options)
    return PARSER.parse_dict({**given.shared, **given.settings, "output_dir": "out", "use_cpu": True, **changed})


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_complete(name):
    values = settings_of("--preset", name)
    assert set(read_preset(name, PRESETS)) - {"grid"} == set(values) >= OWN
    curriculum_from(values["curriculum"] or {"type": "iid"})
    assert set(values) - OWN <= {item.name for item in fields(CurriculumTrainingArguments)}


def test_every_number_of_the_paper_says_where_it_is_from():
    for name in ("paper", "paper_no_tr", "random"):
        for line in (PRESETS / f"{name}.yaml").read_text().splitlines():
            if re.match(r"\s*\w+: .*\d", line) and not line.startswith("#"):
                assert "#" in line, line


def test_the_papers_preset_is_the_papers_run():
    values = settings_of("--preset", "paper")
    rule = curriculum_from(values["curriculum"])
    assert (rule.threshold, rule.check_every, rule.decay, rule.floor) == (0.9, 5000, 0.9, 0.2)
    assert (values["max_steps"], values["global_batch_size"], values["held_out"]) == (500_000, 256, 100)
    assert (values["eval_steps"], values["metric_for_best_model"]) == (5000, "eval_validation_image_r1")
    assert (values["loss"], values["mask_false_negatives"], values["min_instances"]) == ("sum", False, 5000)
    counted = StageCount("all", "triplets", 2_840_000, 2_400_000, 5_800_000, 406, 244)._asdict()
    assert values["paper_counts"].items() <= counted.items()
    assert settings_of("--preset", "paper_no_tr") == {**values, "loss": "image"}
    assert settings_of("--preset", "random") == {**values, "curriculum": None}


def test_nouns_are_found_as_the_preset_says(monkeypatch):
    asked = []
    monkeypatch.setattr(Ontology, "induce", lambda pairs, objects, **options: asked.append(options))
    for preset in ("paper", "paper_no_tr", "random", "embedded", "clip", "photographs", "smoke"):
        options = ["--preset", preset, "--corrections", '{"man": "person"}', "--output_dir", "out", "--use_cpu"]
        _ontology(PARSER.parse_dict({**settings_of(*options), "use_cpu": True})[0], None, None)
        found = (asked[-1]["tagger"], asked[-1]["lemmas"])
        assert found == (
            ("nltk", "wordnet") if preset in ("paper", "paper_no_tr", "random") else ("pattern", "spelling")
        )
        assert asked[-1]["corrections"] == {"man": "person"}


COLUMNS = [f"{test}_{way}_r{k}" for test in ("flickr30k", "coco") for way in ("image", "text") for k in (1, 5)]
PAPER = {
    "Random, without L_TR": [58.18, 84.24, 22.2, 47.9, 42.67, 74.43, 15.5, 37.7],
    "TOnICS, without L_TR": [60.04, 84.72, 18.8, 43.1, 47.68, 77.14, 11.48, 27.3],
    "Random": [58.9, 84.6, 76.1, 93.3, 42.74, 74.37, 59.84, 86.46],
    "TOnICS": [59.68, 84.84, 77.4, 94, 47.15, 76.85, 63.7, 88.5],
}


def test_table_1_has_the_papers_rows_and_figures():
    options = PARSER.parse(["--preset", "paper", "--features", "store", "--table", "table1"])
    arms, controls, _ = study_arms(options)
    assert list(arms) == list(PAPER)  # without CLIP, which is not trained
    assert controls == {"TOnICS, without L_TR": "Random, without L_TR", "TOnICS": "Random"}
    for name, arm in options.arms.items():
        assert arm.paper == dict(zip(COLUMNS, PAPER[name], strict=True))
        assert arms[name]["loss"] == ("image" if "without" in name else "sum")
        assert (arms[name]["curriculum"] is None) == name.startswith("Random")
    rows = Dataset.from_dict({"caption": [""] * 1000})
    budgets = {
        budget_of(PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True, "bf16": False})[-1], rows)
        for arm in arms.values()
        if arm["curriculum"] is None
    }
    assert len(budgets) == 1
    assert "128,000,000 examples" in budgets.pop()


@pytest.mark.parametrize("grid", ["embedded", "clip"])
def test_arms_on_scenes_have_equal_examples(grid):
    arms, controls, _ = study_arms(PARSER.parse(["--grid", grid]))
    for name, arm in arms.items():
        PARSER.parse_dict({**arm, "output_dir": "out", "use_cpu": True})  # no field contradicts another
        if name in controls:
            control = arms[controls[name]]
            different = {field for field in arm if arm[field] != control[field]}
            assert different == {"curriculum"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    data_args, model_args, *_ = arguments_of(*SHORT, "--grid", "none")
    return prepare(data_args, model_args, folder), folder


def test_scenes_become_triplets_of_boxes(prepared):
    found, _ = prepared
    held = set(found.held_out["image_id"])
    assert len(held) == len(found.held_out) == 6
    assert held.isdisjoint(found.train["image_id"])
    rows = found.train.select(range(30)).remove_columns("image")
    for row in rows:
        noun = row["caption"][row["noun_start"] : row["noun_end"]].lower()
        assert noun.startswith(row["noun"][:3])
        shown = {thing["noun"] for thing in row["objects"]}
        assert row["node"] is None or row["node"] in shown
        regions = found.regions.read(row)
        assert len(regions["region_features"]) == len(row["objects"])
    assert set(found.tests) == {"test"}
    assert "background" not in found.ontology.nodes
    assert set(found.train["node"]) - {None} <= set(found.ontology.sizes)


CLIP = ("--model", "scenes_clip", "--text_config", "none", "--model_options", "{}", "--max_length", "none")
CLIP += ("--loss", "none")


@pytest.mark.parametrize("rank", [None, 4])
def test_a_clip_with_adapters_and_without(prepared, rank):
    _, model_args, *_ = arguments_of(*SHORT, "--grid", "none", *CLIP, "--lora_rank", str(rank).lower())
    found, _ = prepared
    built = build(model_args, found)
    trained = [name for name, part in built.model.named_parameters() if part.requires_grad]
    assert all("lora_" in name for name in trained) == (rank is not None)
    assert any("vision_model" in name for name in trained)
    assert any("text_model" in name for name in trained)
    batch = built.collator([found.train[row] for row in range(3)])
    assert batch["pixel_values"].shape[:2] == (3, 3)
    assert "noun_mask" not in batch


@pytest.mark.slow
def test_a_clip_is_fine_tuned_by_batches_of_a_node(tmp_path, monkeypatch, capsys):
    options = ("--grid", "none", "--lora_rank", "4", "--max_steps", "16", "--output_dir", str(tmp_path / "clip"))
    monkeypatch.setattr("sys.argv", ["tonics_alignment", "--preset", "smoke", *CLIP, *options])
    tonics_alignment.main()
    (run,) = json.loads((tmp_path / "clip" / "results.json").read_text())
    assert run["refreshes"] == 1  # it finds the images of its own scenes from the first step on
    assert run["test_image_r1"] > 0.2
    saved = tmp_path / "clip" / run["folder"] / "model" / "config.json"
    assert json.loads(saved.read_text())["model_type"] == "clip"
    assert "--features" not in capsys.readouterr().out


def test_rows_whose_noun_is_cut_off_are_left_out_and_counted(prepared, capsys):
    """One of them in a batch would end the training."""
    found, _ = prepared
    _, model_args, *_ = arguments_of(*SHORT, "--grid", "none", "--max_length", "8")
    collator = build(model_args, found).collator
    with pytest.raises(ValueError, match="stands beyond the 8 tokens that are kept of its caption"):
        collator([found.train[row] for row in range(len(found.train))])
    rows, numbers = readable(found.train, collator)
    assert 0 < len(rows) == len(numbers) < len(found.train)
    assert f"{len(found.train) - len(rows)} of {len(found.train)} rows are left out" in capsys.readouterr().out
    collator([rows[row] for row in range(len(rows))])
    assert rows["noun_start"][:] == [found.train[row]["noun_start"] for row in numbers.tolist()]
    assert numbers.tolist() == [row for row, one in enumerate(found.train) if collator.keeps_noun(one)]
    whole = build(replace(model_args, max_length=48), found).collator
    assert readable(found.train, whole)[0] is found.train
    whole.nouns = False
    assert readable(found.train, whole)[0] is found.train


def test_the_mean_of_states_in_a_box():
    cells = np.float32([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])
    patches = Regions("1", boxes=cells, features=np.float32([[1], [2], [3], [4]]), normalised=True)
    boxes = np.float32([[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.25, 0, 0.75, 0.5]])
    assert _mean_inside(boxes, patches).ravel().tolist() == [1, 2.5, 1.5]


def test_a_store_of_scenes_of_another_size(prepared):
    _, folder = prepared
    scenes = make_scenes(4, image_size=32, validation=0, test=0)["train"]
    with pytest.raises(ValueError, match="holds regions of scenes of 96 × 96 pixels, and these are of 32 × 32"):
        box_regions([scenes], folder)


def test_stores_of_several_sources_are_one(tmp_path):
    for name, dims in (("coco", 3), ("cc", 3), ("other", 4)):
        np.savez(tmp_path / f"{name}.npz", **{"9/features": np.full((2, dims), len(name))})
    coco, cc, other = (
        pack_regions(tmp_path / f"{name}.npz", tmp_path / name, progress=False) for name in ("coco", "cc", "other")
    )
    both = SourceRegions({"coco": coco, "cc": cc})
    assert list(both) == ["coco/9", "cc/9"]
    assert len(both) == 2
    assert both["cc/9"].features[0].tolist() == [2, 2, 2]
    assert "cc/9" in both
    assert "9" not in both
    with pytest.raises(ValueError, match=r"The regions' features have \{'coco': 3, 'other': 4\} dimensions"):
        SourceRegions({"coco": coco, "other": other})
    # What made the features is known of one: a model is saved with it, and regions of another are refused.
    known, third = (
        pack_regions(tmp_path / "cc.npz", tmp_path / name, made_by=name, progress=False) for name in ("detr", "yolo")
    )
    assert SourceRegions({"coco": coco, "known": known}).reference is known
    with pytest.raises(ValueError, match="were made by yolo, not standardised, and the model was trained on those of"):
        SourceRegions({"known": known, "coco": coco, "third": third})
    scaled = pack_regions(tmp_path / "cc.npz", tmp_path / "scaled", standardise=True, progress=False)
    with pytest.raises(ValueError, match="an unknown detector, standardised, and the model was trained on those of"):
        SourceRegions({"coco": coco, "scaled": scaled})


def write_source(folder, name, images, splits):
    """Karpathy's file, and VinVL's predictions with one region of a dog or of a cat an image."""
    folder = folder / name
    folder.mkdir()
    entries, regions, sizes = [], [], []
    for number in range(images):
        thing = "dog" if number % 2 else "cat"
        entry = {"filename": f"{number}.jpg", "imgid": number, "split": splits[number % len(splits)]}
        entries.append(entry | {"sentences": [{"raw": f"a {thing} in picture {number}"}]})
        feature = base64.b64encode(np.full(3, number, np.float32)).decode()
        found = {"rect": [0, 0, 9, 9], "class": thing, "conf": 0.9, "feature": feature}
        regions.append(f"{number}\t{json.dumps({'objects': [found]})}\n")
        sizes.append(f"{number}\t{json.dumps([{'height': 10, 'width': 10}])}\n")
    (folder.parent / f"{name}.json").write_text(json.dumps({"images": entries}))
    (folder / "predictions.tsv").write_text("".join(regions))
    (folder / "predictions.hw.tsv").write_text("".join(sizes))
    pack_regions(folder / "predictions.tsv", folder.parent / f"{name}_store", made_by="vinvl", progress=False)


def test_two_sources_and_a_validation_of_other_data(tmp_path):
    """As the paper trains on COCO and Conceptual Captions, and chooses the checkpoint by Flickr30k."""
    write_source(tmp_path, "coco", 12, ["train", "train", "test"])
    write_source(tmp_path, "cc3m", 8, ["train"])
    write_source(tmp_path, "flickr30k", 6, ["val", "test"])
    stores = f"{tmp_path}/coco_store,{tmp_path}/cc3m_store,flickr30k={tmp_path}/flickr30k_store"
    evaluations = {
        "validation": {"data": f"{tmp_path}/flickr30k.json", "split": "validation"},
        "flickr30k": {"data": f"{tmp_path}/flickr30k.json", "split": "test"},
        "coco": {"split": "test"},
    }
    options = ("--data", f"{tmp_path}/coco.json,{tmp_path}/cc3m.json", "--features", stores, "--held_out", "4")
    options += ("--evaluations", json.dumps(evaluations), "--corrections", "{picture: null}", "--box_values", "false")
    data_args, model_args, *_ = arguments_of("--preset", "smoke", "--min_pairs", "2", "--min_instances", "2", *options)
    found = prepare(data_args, model_args, tmp_path / "study")
    assert found.ontology.nodes == {"cat": "cat", "dog": "dog"}
    assert {image_id.split("/")[0] for image_id in found.train["image_id"]} == {"coco", "cc3m"}
    assert len(found.train) + len(found.held_out) == 16
    assert found.validation["image_id"][:] == ["flickr30k/0", "flickr30k/2", "flickr30k/4"]
    assert found.tests["coco"]["image_id"][:] == ["coco/2", "coco/5", "coco/8", "coco/11"]
    stages = {(count.source, count.stage): count.images for count in found.counts}
    assert (stages["coco", "pairs"], stages["cc3m", "pairs"], stages["all", "pairs"]) == (8, 8, 16)
    assert found.regions.read({"image_id": "coco/11"})["region_features"].tolist() == [[11, 11, 11]]
    # The saved processor is of the stores' own detector: the model is evaluated on each of them.
    processor = build(model_args, found).image_processor
    for store in found.regions.store.stores.values():
        RegionInputs.for_model(store, processor)
    for changed, text in (
        ({"features": f"{tmp_path}/coco_store,{tmp_path}/cc3m_store"}, "Of the 3 images of validation, 3 are not in"),
        ({"features": f"{stores},{tmp_path}/flickr30k_store"}, "has 3 stores for the 2 sources"),
        ({"features": None}, "No features were given for"),
    ):
        with pytest.raises(ValueError, match=text):
            prepare(replace(data_args, **changed), model_args, tmp_path / "study")


def test_a_clip_reads_the_images_beside_its_captions(tmp_path):
    """Only training images are annotated, as COCO's of 2014 are: of the others the captions say what they show."""
    write_source(tmp_path, "photos", 12, ["train", "train", "val", "test"])
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.jpg")
    annotated = [number for number in range(12) if number % 4 < 2]
    instances = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 8, "height": 8} for n in annotated],
        "annotations": [
            {"id": n, "image_id": n, "category_id": n % 2 + 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}
            for n in annotated
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    evaluations = {"validation": {"split": "validation"}, "test": {"split": "test"}}
    options = ("--data", f"{tmp_path}/photos.json", "--objects", f"{tmp_path}/instances.json", "--held_out", "2")
    options += ("--evaluations", json.dumps(evaluations), "--corrections", "{picture: null}", *CLIP)
    options += ("--preset", "smoke", "--min_pairs", "2", "--min_instances", "2")
    data_args, model_args, args, _ = arguments_of(*options)
    found = prepare(data_args, model_args, tmp_path / "study")
    assert found.train[0]["image"].size == (8, 8)
    (suite,) = make_suites("run", found, args, evaluations).values()
    assert suite.classes == [["dog"]] * 3
    assert suite.notes[0].startswith("Classes are what captions name")
    # What a protocol lacks is said before training.
    evaluations["test"]["protocol"] = "coco_5k"
    with pytest.raises(ValueError, match="3 images with captions were found, and the protocol is of 5,000"):
        make_suites("run", found, args, evaluations)
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "photos.json", tmp_path / "bare")
    with pytest.raises(
        ValueError, match=r"A CLIP reads the images of train\. Name the folder of its images, `--images"
    ):
        prepare(replace(data_args, data=f"{tmp_path}/bare/photos.json"), model_args, tmp_path / "study")


def test_an_aligner_needs_no_images_of_img2dataset(tmp_path, monkeypatch):
    (tmp_path / "cc3m").mkdir()
    (tmp_path / "cc3m" / "00000_stats.json").write_text("{}")
    rows = Dataset.from_dict({"image_id": ["1"], "caption": ["a dog"], "image": ["1.jpg"]})
    monkeypatch.setattr("tonics.data.load_captioned", lambda source, *, objects, check_images: rows)
    assert _captioned(f"{tmp_path}/cc3m", None, None, reads_regions=True).column_names == ["image_id", "caption"]


def test_masses_are_what_is_logged():
    decisions = [{"random_share": 0.9}, {"random_share": 0.81}]
    found = masses(decisions, {f"n{number:02}": 1 for number in range(10)})
    assert list(found) == ["entity", *(f"n{number:02}" for number in range(8)), "2 others"]
    np.testing.assert_allclose(np.sum(list(found.values()), axis=0), 1)
    assert found["n00"] == [0.01, 0.019]


def test_the_threshold_is_that_of_the_arm_that_decides():
    def run(curriculum, *decisions):
        return SimpleNamespace(settings={"curriculum": curriculum}, result={"decisions": decisions})

    rule = {"type": "node_sampling", "node_column": "node", "threshold": 0.3}
    assert threshold_of([run(None), run(rule, {"step": 1})]) == 0.3
    assert threshold_of([run(None), run({"type": "node_sampling", "node_column": "node"}, {"step": 1})]) == 0.9
    assert threshold_of([run(None)]) is None


def test_files_of_all_runs_are_looked_for_before_the_first(tmp_path):
    (tmp_path / "there.json").write_text("{}")
    shared = {"objects": None, "ontology": None, "corrections": {"background": None}}
    evaluations = {"validation": {"data": "flickr.json"}, "test": {"split": "test"}}
    settings = {**shared, "data": f"{tmp_path / 'there.json'},coco.json,cc3m", "evaluations": evaluations}
    with pytest.raises(
        FileNotFoundError, match=r"\['coco.json', 'flickr.json'\] are read by these runs and are no files"
    ):
        validate_files(SimpleNamespace(runs=[SimpleNamespace(settings=settings)] * 2))
    validate_files(SimpleNamespace(runs=[SimpleNamespace(settings={**shared, "data": "scenes", "evaluations": {}})]))


def test_mistakes(tmp_path):
    for options, text in (
        (("--text_model", "bert"), "the aligner has one text encoder"),
        (("--lora_rank", "4"), "lora_rank=4 was given with the aligner"),
        (("--loss", "max"), "loss='max' is not known"),
        (("--ontology", "mine.json"), r"corrections=\{'background': None\} would do nothing"),
        (("--resamples", "0"), "resamples=0 gives no interval"),
        (("--model", "scenes_clip"), r"\['text_config', 'model_options'\] would do nothing"),
        (("--evaluations", "{test: {split: test}}"), "`validation` chooses the checkpoint"),
        (("--evaluations", "{validation: {}, test: {splits: test}}"), r"the fields \['splits'\]"),
        (("--evaluations", "{validation: {}, test: {protocol: coco}}"), "the protocol 'coco', which is none of"),
    ):
        with pytest.raises(ValueError, match=text):
            arguments_of("--preset", "smoke", *options)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / FILE_NAME).write_text("{}")
    for options, text in (
        (("--data", str(tmp_path / "saved"), "--objects", "boxes.json"), "'boxes.json'} would do nothing"),
        (("--evaluations", "{validation: {split: dev}, test: {split: test}}"), "no 'dev', of which 'validation'"),
        (("--held_out", "5000"), "5000 held-out instances were asked for"),
        (("--data", "scenes,scenes"), "two sources of one name"),
        (
            ("--data", "a/coco.json", "--evaluations", "{validation: {data: b/coco.json}, test: {}}"),
            "two sources of one name, 'a/coco.json' and 'b/coco.json'",
        ),
        (("--min_instances", "100000"), "None of .* classes has 100,000 instances"),
    ):
        data_args, model_args, *_ = arguments_of(*SHORT, *options)
        with pytest.raises(ValueError, match=text):
            prepare(data_args, model_args, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_figures")
def test_a_study_on_scenes(tmp_path, monkeypatch, capsys):
    """Both arms, their report, and the run's model evaluated again by the command."""
    from typer.testing import CliRunner

    from hf_curriculum.cli import app

    folder = tmp_path / "smoke"
    monkeypatch.setattr("sys.argv", ["tonics_alignment", "--preset", "smoke", "--output_dir", str(folder)])
    tonics_alignment.main()
    printed = capsys.readouterr().out
    assert "| TOnICS - Random | image R@1 |" in printed
    assert re.search(r"^nouns: \d+\nclasses: \d+$", printed, re.MULTILINE)
    runs = {run["name"]: run for run in json.loads((folder / "results.json").read_text())}
    assert list(runs) == ["Random", "TOnICS"]
    assert runs["Random"]["examples"] == runs["TOnICS"]["examples"] == 384
    assert (runs["Random"]["refreshes"], runs["Random"]["random_share"]) == (0, 1.0)
    decisions = runs["TOnICS"]["decisions"]
    assert [entry["step"] for entry in decisions] == [8, 16]
    for entry in decisions:
        refreshed = entry["decision"] == "refresh"
        assert refreshed == (np.float32(entry["value"]) >= np.float32(0.05))
    assert runs["TOnICS"]["random_share"] == pytest.approx(0.9 ** runs["TOnICS"]["refreshes"])
    page = (folder / "report" / "report.html").read_text()
    for heading in ("Ontology", "Held-out retrieval", "Mass of each node: TOnICS", "A random batch: TOnICS"):
        assert f">{heading}</h2>" in page

    (typed,) = re.findall("try the model: +hf-curriculum (evaluate .*)", printed)
    out = ("--output", str(tmp_path / "again"), "--protocol", "all")
    done = CliRunner().invoke(app, [*typed.replace("Random-seed0", "TOnICS-seed0").split(), *out])
    assert done.exit_code == 0, done.output
    again = json.loads((tmp_path / "again" / "results.json").read_text())["systems"]["TOnICS-seed0"]
    assert {f"test_{name}": value for name, value in again.items()}.items() <= runs["TOnICS"].items()
