"""`hf-curriculum evaluate --suite captions`: a captioner's captions on a data set, by every metric."""

from __future__ import annotations

import csv
import json
import re

import pytest
import tiny_models
from datasets import Dataset
from typed_commands import result

from hf_curriculum import CaptionCollator, NounCount, add_scores, generate_captions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.models.captioner import load_captioner
from hf_curriculum.scored_data import save_scored
from hf_curriculum.tasks.captioning import CaptionEvaluator

COUNTED = ("--metrics", "bleu", "--metrics", "cider", "--metrics", "rouge")
SHORT = ("--max-new-tokens", "5", "--beams", "2")
IMAGES = 5


def plain(text):
    return " ".join(text.replace("│", " ").split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of images with two captions each, and their rows as a test would write them down."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    lines = ["file_name,caption"]
    for number in range(IMAGES):
        (folder / f"{number}.png").write_bytes(tiny_models.png(24, 20, number)["bytes"])
        lines += [f"{number}.png,{tiny_models.TEXTS[number % 4]}", f"{number}.png,a dog number {number}"]
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def references():
    return [[tiny_models.TEXTS[number % 4], f"a dog number {number}"] for number in range(IMAGES)]


@pytest.fixture(scope="module")
def evaluated(photos, tmp_path_factory):
    """The folder of an evaluation, and what the command printed."""
    out = tmp_path_factory.mktemp("evaluated") / "vanilla"
    done = result(
        "evaluate", tiny_models.git(), "--suite", "captions", "--data", photos, "--output", out, *SHORT, *COUNTED
    )
    assert done.exit_code == 0, done.output
    return out, done


def test_captions_and_values_are_those_of_the_functions(photos, references, evaluated):
    out, done = evaluated
    model, processor = load_captioner(tiny_models.git())
    rows = Dataset.from_dict({"image": [str(photos / f"{number}.png") for number in range(IMAGES)]})
    expected = generate_captions(model, rows, processor, max_new_tokens=5, num_beams=2)
    entries = json.loads((out / "captions.json").read_text())
    assert [(entry["image_id"], entry["caption"]) for entry in entries] == [
        (f"{number}.png", caption) for number, caption in enumerate(expected)
    ]
    values = CaptionEvaluator(references)(expected)
    results = json.loads((out / "results.json").read_text())
    assert results["systems"] == {"git": values.corpus}
    about = results["about"]
    assert about["split"] is None
    assert (about["num_beams"], about["max_new_tokens"], about["data"]) == (2, 5, str(photos))
    assert f"| ROUGE-L | {100 * values.corpus['rouge_l']:.1f} |" in done.stdout
    assert done.stdout.strip() == (out / "results.md").read_text().strip()
    assert f"tables and captions in {out}" in done.stderr


def test_missing_metrics_are_named_and_json_is_all_there_is(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    words = ("--suite", "captions", "--data", photos, "--output", tmp_path / "out", *SHORT)
    done = result("evaluate", tiny_models.git(), *words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["unavailable"]) == {"meteor", "spice", "clip_score"}
    assert set(found["systems"]["git"]) == {"bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider", "rouge_l"}
    done = result("evaluate", tiny_models.git(), *words, "--metrics", "meteor")
    assert (done.exit_code, "METEOR runs in Java, and there is no `java`" in done.stderr) == (1, True)


def test_another_system_beside_it_by_difficulty_and_on_a_page(photos, references, evaluated, tmp_path):
    vanilla, _ = evaluated
    written = [{"image_id": f"{number}.png", "caption": texts[0]} for number, texts in enumerate(references)]
    (tmp_path / "perfect").mkdir()
    (tmp_path / "perfect" / "captions.json").write_text(json.dumps(written))
    words = ("--suite", "captions", "--data", photos, "--output", tmp_path / "out", "--compare", vanilla)
    words += ("--difficulty-from", vanilla, "--html", tmp_path / "page", "--limit", "4", *COUNTED)
    done = result("evaluate", tmp_path / "perfect" / "captions.json", *words)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(found["systems"]) == ["vanilla", "perfect"]
    difference = next(one for one in found["comparison"] if one["metric"] == "rouge_l")
    assert difference["p"] == pytest.approx(2 / 1001)
    assert difference["difference"] == pytest.approx(1 - found["systems"]["vanilla"]["rouge_l"])
    with (vanilla / "per_image.csv").open(newline="") as lines:
        bleu = [float(row["bleu_4"]) for row in csv.DictReader(lines)][:4]
    assert len(set(bleu)) > 1
    order = sorted(range(4), key=lambda row: -bleu[row])
    sets = found["sets"]["difficulty"].values()
    entries = {entry["image_id"]: entry["caption"] for entry in json.loads((vanilla / "captions.json").read_text())}
    for row, own in zip(order, sets, strict=True):
        expected = CaptionEvaluator([references[row]], ["rouge"])([entries[f"{row}.png"]])
        assert (own["images"], own["vanilla"]["rouge_l"]) == (1, expected.corpus["rouge_l"])
    assert "Only the first 4 of 5 images" in done.stdout
    page = (tmp_path / "page" / "report.html").read_text()
    assert page.count('<ul class="captioned">') == 4
    assert f"page: {tmp_path / 'page' / 'report.html'}" in done.stderr


def karpathy(folder, split="test"):
    """A Karpathy file of the three images of `tiny_models.region_store`, whose image files are not here."""
    images = [
        {
            "filename": f"{number}.jpg",
            "split": "train" if number == 9 else split,
            "cocoid": number,
            "sentences": [{"raw": text, "tokens": text.split()} for text in tiny_models.TEXTS[:2]],
        }
        for number in (0, 1, 2, 9)
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images}))
    return folder / "dataset_coco.json"


def test_a_karpathy_file_with_stored_regions(tmp_path):
    model, store = tiny_models.region_transformer(), tiny_models.region_archive()
    words = ("--suite", "captions", "--data", karpathy(tmp_path), "--features", store, *SHORT, *COUNTED)
    done = result("evaluate", model, *words, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    captioner, processor = load_captioner(model)
    collator = CaptionCollator(processor.tokenizer, regions=open_regions(store))
    rows = Dataset.from_dict({"image_id": ["0", "1", "2"]})
    expected = generate_captions(captioner, rows, collator, max_new_tokens=5, num_beams=2)
    assert json.loads((tmp_path / "out" / "captions.json").read_text()) == [
        {"image_id": number, "caption": caption} for number, caption in enumerate(expected)
    ]
    about = json.loads((tmp_path / "out" / "results.json").read_text())["about"]
    assert (about["features"], about["split"]) == (store, "test")
    done = result("evaluate", model, *words, "--split", "train", "--output", tmp_path / "train")
    assert done.exit_code == 1
    assert "holds nothing of 1 of the 1 images, the first '9'" in plain(done.stderr)
    assert not (tmp_path / "train").exists()


def test_nocaps_by_domain_from_captions_alone(tmp_path):
    """A COCO file whose images say their domain and are not here; captions of a system that nobody has here either."""
    domains = {1: "in-domain", 2: "near-domain", 3: "in-domain", 4: "near-domain"}
    images = [{"id": number, "file_name": f"{number}.jpg", "domain": domain} for number, domain in domains.items()]
    annotations = [
        {"id": 10 * number + at, "image_id": number, "caption": f"{tiny_models.TEXTS[number - 1]} {at}"}
        for number in domains
        for at in range(2)
    ]
    (tmp_path / "nocaps.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    written = [{"image_id": number, "caption": tiny_models.TEXTS[number % 4]} for number in domains]
    (tmp_path / "theirs.json").write_text(json.dumps(written))
    words = ("--suite", "captions", "--data", tmp_path / "nocaps.json", "--output", tmp_path / "out", *COUNTED)
    done = result("evaluate", tmp_path / "theirs.json", *words)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())["sets"]["domain"]
    captions = [entry["caption"] for entry in written]
    for domain, rows in (("in-domain", [0, 2]), ("near-domain", [1, 3])):
        texts = [[annotations[2 * row]["caption"], annotations[2 * row + 1]["caption"]] for row in rows]
        expected = CaptionEvaluator(texts)([captions[row] for row in rows])
        assert found[domain] == {"images": 2, "theirs": pytest.approx(expected.corpus)}


def test_captions_are_kept_when_a_metric_fails(photos, tmp_path, monkeypatch):
    """They took hours: what fails afterwards can be computed from the file."""
    from hf_curriculum.tasks.captioning.metrics import metrics
    from hf_curriculum.tasks.captioning.metrics.jars import JavaError

    def fail(*given):
        raise JavaError("SPICE ran out of memory.")

    monkeypatch.setattr(metrics, "validate_spice", lambda: None)
    monkeypatch.setattr(metrics, "spice", fail)
    words = ("--suite", "captions", "--data", photos, "--output", tmp_path, *SHORT)
    done = result("evaluate", tiny_models.git(), *words, "--metrics", "spice")
    assert (done.exit_code, "SPICE ran out of memory." in done.stderr) == (1, True)
    done = result("evaluate", tmp_path / "captions.json", *words[:-4], *COUNTED)
    assert done.exit_code == 0, done.output


def test_scored_data_and_a_domain(photos, tmp_path):
    from hf_curriculum import load_captioned

    data = load_captioned(photos)
    domains = ["in-domain" if name < "2" else "out-of-domain" for name in data["image_id"]]
    save_scored(add_scores(data.add_column("domain", domains), NounCount()), tmp_path / "scored")
    words = ("--suite", "captions", "--data", tmp_path / "scored", "--output", tmp_path / "out", *SHORT, *COUNTED)
    done = result("evaluate", tiny_models.git(), *words)
    assert done.exit_code == 0, done.output
    assert re.search(r"\| in-domain \| 2 \| git \|", done.stdout)
    assert re.search(r"\| out-of-domain \| 3 \| git \|", done.stdout)


def test_an_image_that_cannot_be_read_is_left_out_and_said(photos, tmp_path, caplog):
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in photos.iterdir():
        (folder / file.name).write_bytes(b"" if file.name == "3.png" else file.read_bytes())
    words = ("--suite", "captions", "--data", folder, "--output", tmp_path / "out", *SHORT, *COUNTED)
    done = result("evaluate", tiny_models.git(), *words)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / "results.json").read_text())["images"] == IMAGES - 1
    assert "3.png" in caplog.text


def test_mistakes(photos, evaluated, tmp_path):
    vanilla, _ = evaluated
    git, suite = tiny_models.git(), ("--suite", "captions", "--output", tmp_path / "out")
    for words, status, message in (
        ((git, *suite), 2, "Captions are compared with those of a data set. Name one."),
        ((git, *suite, "--data", photos, "--task", "blimp"), 2, "It has no effect with `--suite captions`"),
        ((git, "--beams", "3"), 2, "It has no effect with `--suite babylm`"),
        ((git, "--suite", "coco"), 2, "'coco' is not known. There are babylm, captions, retrieval."),
        ((git, *suite, "--data", photos, "--split", "val"), 2, "has no splits, and so not 'val'"),
        (
            (git, *suite, "--data", karpathy(tmp_path, "val")),
            2,
            "has the splits ['train', 'validation'], and not 'test'",
        ),
        (
            (vanilla / "captions.json", *suite, "--data", photos, "--beams", "3"),
            2,
            "holds captions, and none are gener",
        ),
        ((git, *suite, "--data", photos, "--metrics", "blue"), 1, "['blue'] in `metrics` is not known"),
        ((git, *suite, "--data", photos, "--compare", tmp_path / "gone"), 1, "There is no file"),
        ((git, *suite, "--data", photos, "--compare", f"a={vanilla}", "--compare", f"a={vanilla}"), 2, "called 'a'"),
        ((git, *suite, "--data", photos, "--compare", f"git={vanilla}"), 1, "called 'git', as is the evaluated one"),
        ((tiny_models.gpt2(), *suite, "--data", photos, *COUNTED), 1, "no model that writes text to images"),
        ((tmp_path / "gone", *suite, "--data", photos, *COUNTED), 1, "There is no captioner"),
        ((git, *suite, "--data", tmp_path / "gone.json"), 1, "gone.json"),
    ):
        done = result("evaluate", *words)
        assert done.exit_code == status, (words, done.output)
        assert message in plain(done.output), (words, done.output)
        assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()
