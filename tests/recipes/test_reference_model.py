"""The recipe of a reference model: its presets, its halves, what it refuses, and small runs in both ways."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import reference_model
import tiny_models as TINY
from datasets import Dataset, DatasetDict, Features, Image, Value
from reference.arguments import PARSER, PRESETS, DataArguments, ModelArguments, ReferenceArguments
from reference.data import halves, load_splits, take_trusted
from reference.scores import cross_fitted, mismatch_auc
from reference_model import FACTS

from hf_curriculum import ModelLoss, curriculum_from, load_scored, read_provenance
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.fingerprint import share_trained_on
from hf_curriculum.provenance import ScoreProvenance, attach_provenance, score_values
from hf_curriculum.studies.recipe import read_preset

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
OWN = {item.name for kind in (DataArguments, ModelArguments, ReferenceArguments) for item in fields(kind)}


def arguments_of(*options, **changed):
    given = PARSER.parse(["--preset", "smoke", *options])
    return PARSER.parse_dict({**given.shared, **given.settings, "output_dir": "out", **changed})


def run(monkeypatch, folder, *options):
    """The recipe as a command, on scenes that take seconds; what it came to, and the scored splits."""
    small = ("--preset", "smoke", "--num_examples", "120", "--output_dir", str(folder))
    monkeypatch.setattr("sys.argv", ["reference_model", *small, *options])
    reference_model.main()
    return json.loads((folder / FACTS).read_text()), load_scored(folder / "scored")


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_complete(name):
    values = PARSER.parse(["--preset", name]).settings
    assert set(read_preset(name, PRESETS)) == set(values) >= OWN
    curriculum_from(values["curriculum"])
    arguments_of("--preset", name)


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_halves_share_no_image(count):
    images = [f"{number % count}" for number in range(3 * count + 1)]
    rows = Dataset.from_dict({"image_id": images})
    first, second = halves(rows, 0)
    assert sorted([*first, *second]) == list(range(len(rows)))
    sides = [{images[row] for row in part} for part in (first, second)]
    assert not sides[0] & sides[1]
    assert [len(side) for side in sides] == [-(-count // 2), count // 2]
    if count == 40:
        assert first.tolist() == halves(rows, 0)[0].tolist() != halves(rows, 1)[0].tolist()
    by_row = halves(rows.rename_column("image_id", "caption"), 0)
    assert [len(part) for part in by_row] == [-(-len(rows) // 2), len(rows) // 2]


def test_one_image_has_no_halves():
    with pytest.raises(ValueError, match="The data has 1 image: a model that is trained on one half"):
        halves(Dataset.from_dict({"image_id": ["a", "a"]}), 0)


def test_scenes_are_mismatched_where_they_are_trained_on_alone():
    splits = load_splits(arguments_of("--num_examples", "80", "--mismatched", "0.5")[0])
    assert {name: np.mean(part["mismatched"][:]) for name, part in splits.items()} == {"train": 0.5, "validation": 0}
    assert not set(splits["train"]["image_id"][:]) & set(splits["validation"]["image_id"][:])


def test_what_is_trusted(tmp_path):
    rows = Dataset.from_dict(
        {"image": [TINY.png(8, 8)], "caption": ["a dog"], "image_id": ["1"]},
        features=Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")}),
    )
    splits = DatasetDict(train=rows, checked=rows)
    assert take_trusted("checked", splits, images=True)["caption"][:] == ["a dog"]
    assert list(splits) == ["train"]  # it is not scored, nor trained on again
    rows.save_to_disk(str(tmp_path / "one"))
    assert len(take_trusted(str(tmp_path / "one"), splits, images=True)) == 1
    DatasetDict(only=rows).save_to_disk(str(tmp_path / "only"))
    assert len(take_trusted(str(tmp_path / "only"), splits, images=False)) == 1
    DatasetDict(a=rows, b=rows).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(ValueError, match=r"has the splits \['a', 'b'\], and which of them is trusted is not said"):
        take_trusted(str(tmp_path / "two"), splits, images=True)
    with pytest.raises(ValueError, match=r"trusted='none' is none of the splits \['train'\], nor a file or folder"):
        take_trusted("none", splits, images=True)
    given = arguments_of("--data", str(tmp_path / "two"))[0]
    with pytest.raises(ValueError, match=r"has the splits \['a', 'b'\] and no 'train'"):
        load_splits(given)
    assert len(load_splits(replace(given, data=str(tmp_path / "one"), limit=1))["train"]) == 1


def test_a_column_of_two_models():
    ways = [
        ScoreProvenance(
            "grounding",
            "Grounding",
            {"k": 2, "fitted": digest},
            model=model,
            revision=digest,
            easy="high",
            trained_on={"examples": examples, "captions": "AAAA"},
        )
        for model, digest, examples in (("a", "1", 10), ("b", "2", 12))
    ]
    made = cross_fitted(ways)
    assert (made.model, made.revision, made.easy) == ("a, b", "1, 2", "high")
    assert made.arguments == {"k": 2, "fitted": ["1", "2"]}
    assert made.trained_on == {"cross_fitted": True, "examples": 22}


def test_the_auc_is_of_the_end_that_is_hard():
    scores = np.float32([1, 2, 2, 3, np.nan])
    rows = Dataset.from_dict({"score": scores, "mismatched": [False, False, True, True, False]})
    for easy, expected in (("low", 0.875), ("high", 0.125)):
        made = attach_provenance(rows, {"score": ScoreProvenance("score", "by hand", easy=easy)})
        assert mismatch_auc(made, "score") == expected
    assert mismatch_auc(made.select([0, 1]), "score") is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--trusted", "validation", "--cross_fit"), "trusted='validation' and cross_fit=True were given"),
        (("--trusted", "train"), "trusted='train' was given, the rows that are scored"),
        (("--model", "gti"), "model='gti' is none of"),
        (("--model", "updown"), "model='updown' reads stored regions, and features=None was given"),
        (("--features", "store"), "model='git' reads images, and features='store' was given"),
        (("--model", "updown", "--features", "store"), "vision_weights='scenes_clip' was given, and model='updown'"),
        (("--k", "0"), "k=0 was given"),
        (("--push_to_hub",), "push_to_hub=True was given, and this recipe sends nothing"),
    ],
)
def test_mistakes(options, text):
    with pytest.raises(ValueError, match=text):
        arguments_of(*options)


@pytest.mark.parametrize("options", [("--seeds", "0,1"), ("--grid", "k=1,2"), ("--compare",), ("--control",)])
def test_it_has_one_run(monkeypatch, tmp_path, options):
    with pytest.raises(ValueError, match="This recipe makes one column of scores, so it has one run"):
        run(monkeypatch, tmp_path, *options)


@pytest.mark.slow
def test_halves_score_each_other(monkeypatch, tmp_path, capsys):
    facts, scored = run(monkeypatch, tmp_path, "--grounding")
    rows = scored["train"]
    assert list(scored) == ["train", "validation"]
    assert rows.column_names[-2:] == ["reference_loss", "grounding"]
    parts = halves(rows, 0)
    for number, part in enumerate(parts):
        # the half that the model was not trained on
        own, others = ModelLoss(facts["models"][number], reduction="mean"), rows.select(parts[1 - number])
        found = own(rows.select(part)[:])["model_loss"]
        np.testing.assert_allclose(score_values(rows, "reference_loss")[part], found, rtol=1e-4)
        assert share_trained_on(own.describe(), others) == 1.0
        assert share_trained_on(own.describe(), rows.select(part)) < 0.5  # a mismatched caption is another image's own
    for made in read_provenance(rows).values():
        assert made.trained_on == {"cross_fitted": True, "examples": facts["examples"]}
        assert share_trained_on(made, rows) == 0.0
    examples = 2 * 3 * 32  # two epochs of 36 captions are three steps
    assert facts["examples"] == examples
    assert facts["forward_passes"] == {"training": 3 * examples, "scoring": len(rows) * (1 + 3)}
    assert set(facts["auc"]) == {"reference_loss", "grounding"}
    printed = capsys.readouterr().out
    assert f"{3 * examples + 4 * len(rows):,} forward passes" in printed
    assert printed.rstrip().endswith("reference: reference_loss}'")


@pytest.mark.parametrize("weights", [None, "scenes_clip"])
def test_a_vision_tower_of_its_own_is_trained_and_a_pretrained_one_is_not(weights, caplog):
    words = Dataset.from_dict({"caption": ["a dog runs", "a cat sleeps"] * 4})
    data_args, model_args, *_ = arguments_of(data="photos")
    model, processor = reference_model.new_git(words, data_args, replace(model_args, vision_weights=weights))
    trained = {name.split(".")[1] for name, part in model.named_parameters() if part.requires_grad}
    assert ("image_encoder" in trained) is (weights is None)
    assert processor.image_processor.size["height"] == 64
    assert ("has seen drawn scenes alone, and the data is photos" in caplog.text) is (weights is not None)


@pytest.mark.slow
def test_a_reference_of_a_trusted_split(monkeypatch, tmp_path, capsys):
    facts, scored = run(monkeypatch, tmp_path, "--trusted", "validation")
    assert list(scored) == ["train"]  # what was trained on is not there to be evaluated on
    made = read_provenance(scored["train"])["reference_loss"]
    assert made.trained_on["examples"] == facts["examples"] == 96
    assert share_trained_on(made, scored["train"]) < 0.2  # scenes' captions repeat now and then
    assert facts["models"] == [str(tmp_path / "trusted" / "model")]
    before = score_values(scored["train"], "reference_loss")
    again, scored = run(monkeypatch, tmp_path, "--trusted", "validation")  # resumes at its end
    np.testing.assert_array_equal(score_values(scored["train"], "reference_loss"), before)
    assert again["examples"] == 96
    assert "an AUC of" in capsys.readouterr().out


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_an_eager_one(monkeypatch, tmp_path):
    found = []
    compiled = ("--torch_compile", "true")
    for options in ((), compiled, compiled):  # the third resumes the second at its end
        folder = tmp_path / ("compiled" if options else "eager")
        _, scored = run(monkeypatch, folder, "--trusted", "validation", *options)
        found.append(score_values(scored["train"], "reference_loss"))
    np.testing.assert_allclose(found[1], found[0], rtol=0.02)
    np.testing.assert_array_equal(found[2], found[1])


@pytest.mark.slow
def test_a_captioner_on_regions(monkeypatch, tmp_path):
    rng, ids = np.random.default_rng(0), [f"{number}" for number in range(16)]
    np.savez(tmp_path / "regions.npz", **{f"{name}/features": rng.normal(size=(3, 6)).astype("f4") for name in ids})
    pack_regions(tmp_path / "regions.npz", tmp_path / "store", progress=False)
    captions = [f"a {'red' if number % 2 else 'blue'} ball and {TINY.TEXTS[number % 4]}" for number in range(16)]
    Dataset.from_dict({"image_id": ids, "caption": captions}).save_to_disk(str(tmp_path / "data"))
    sizes = "{hidden_size: 16, num_encoder_layers: 1, num_decoder_layers: 1, num_attention_heads: 2}"
    options = ("--data", str(tmp_path / "data"), "--features", str(tmp_path / "store"), "--model", "transformer")
    options += ("--model_options", sizes, "--min_count", "1", "--grounding", "--vision_weights", "none")
    facts, scored = run(monkeypatch, tmp_path / "out", *options)
    assert "auc" not in facts
    assert np.isfinite(score_values(scored["train"], "reference_loss")).all()
    assert np.isfinite(score_values(scored["train"], "grounding")).all()
