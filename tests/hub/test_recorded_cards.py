"""The cards in `model_cards/`: rendered from the facts beside them, readable for the Hub, silent about machines."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard

import hf_curriculum
from hf_curriculum.hub.model_card import TAGS, eval_results, render_model_card
from hf_curriculum.hub.papers import PAPERS
from hf_curriculum.markdown import END, START, split_front_matter

ROOT = Path(hf_curriculum.__file__).parent.parent
FOLDER = ROOT / "model_cards"
FACTS = sorted(FOLDER.glob("*.json"))

EXPECTED = {  # paper, scorer, the metric whose last value while training stands in the card, the Hub's task
    "babylm": ("babylm", "NounCount", "loss", "image-text-to-text"),
    "simi_cl": ("simi_cl", "CLIPSimilarity", "pairs_loss", "image-text-to-text"),
    "wsod_wsddn": ("wsod", "CLIPSimilarity", "loss", "object-detection"),
    "tonics_aligner": ("tonics", None, "validation_image_r1", None),
    "discl_resnet": ("discl", "generate_spectrum", "level_1_loss", "image-classification"),
    "scenes_": (None, None, None, None),
}
"""By how a card's name begins."""

every_card = pytest.mark.parametrize("path", FACTS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def recipe():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "recipes" / "record_cards.py")))


def told(path):
    return json.loads(path.read_text(encoding="utf-8"))


def expected(path):
    return next(found for name, found in EXPECTED.items() if path.stem.startswith(name))


def texts(value):
    """All strings in a JSON value, keys too."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_there_is_a_card_for_every_recorded_system(recipe):
    names = {*recipe.SYSTEMS, *recipe.SHIPPED}
    assert {path.stem for path in FACTS} == names
    assert {path.stem for path in FOLDER.glob("*.md")} == {*names, "README"}
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in readme for name in names)
    assert "python recipes/record_cards.py" in readme


@every_card
def test_it_is_what_its_facts_say(path):
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert render_model_card(told(path), figures=f"figures/{path.stem}") == card


@every_card
def test_the_hub_can_read_it(path):
    card = ModelCard.load(path.with_suffix(".md"))
    assert card.data.library_name == told(path)["model"].get("library", "transformers")
    assert (card.data.license, card.data.language) == ("apache-2.0", "en")
    assert "hf_curriculum" in card.data.tags
    assert card.data.pipeline_tag == expected(path)[3]
    assert set(card.data.to_dict()) <= {"license", "language", "pipeline_tag", "library_name", "tags"}
    # Names of metadata that the Hub checks against its own lists; no data or model that is not there is named.
    assert card.data.datasets is None
    assert card.data.base_model is None


@every_card
def test_it_claims_no_result_on_a_benchmark_of_the_hub(path):
    assert told(path)["results"]
    assert eval_results(told(path)) == {}  # they were measured on scenes that were drawn for it


@every_card
def test_its_figures_are_there(path):
    drawn = [] if told(path)["plan"] is None else ["pool_growth", "validation_loss"]
    if path.stem == "tonics_aligner":  # whose loss is of a batch, and is not evaluated
        drawn.remove("validation_loss")
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.with_suffix(".md").read_text(encoding="utf-8"))
    assert named == [f"figures/{path.stem}/{name}.png" for name in drawn]
    for name in named:
        assert (FOLDER / name).read_bytes().startswith(b"\x89PNG")
        assert (FOLDER / name).stat().st_size <= 80_000


@every_card
def test_it_says_what_was_measured(path):
    facts = told(path)
    assert facts["cost"]["examples"] > 0
    assert facts["cost"]["seconds"] > 0
    assert facts["results"]
    assert all(isinstance(one["value"], (int, float)) for one in facts["results"])
    assert facts["versions"]["torch"]
    assert "seed" in facts["settings"]
    commits = [value for name, value in facts["versions"].items() if name.split()[-1] == "commit"]
    assert len(commits) == 1
    assert re.fullmatch(r"[0-9a-f]{7,40}", commits[0])
    if "recorded in commit" not in facts["versions"]:  # nobody kept the weights of cards made before
        assert [name for name in facts["versions"] if name.startswith("sha256 of ")]
    script = re.search(r"recipes/(\w+\.py)", facts["command"])[0]
    assert (ROOT / script).is_file()
    compile(re.search(r"```python\n(.*?)```", path.with_suffix(".md").read_text(), re.DOTALL)[1], path.name, "exec")
    if facts["curriculum"] is not None:
        paper, scorer, name, _ = expected(path)
        assert facts["paper"] == paper
        assert facts["paper"] in PAPERS
        assert ((facts["score"] or {}).get("provenance") or {}).get("scorer") == scorer
        steps, last = facts["cost"]["steps"], facts["history"][-1]
        assert last["step"] <= steps <= facts["settings"]["planned optimizer steps"]
        if paper != "discl":  # algorithm 3 evaluates before its epochs alone, and may draw less than planned
            assert last["step"] == facts["settings"]["planned optimizer steps"]
            assert last["examples"] == facts["cost"]["examples"]
        (loss,) = [one["value"] for one in facts["results"] if one["metric"] == name]
        assert loss == [one[f"eval_{name}"] for one in facts["history"] if f"eval_{name}" in one][-1]


@pytest.mark.parametrize("path", [path for path in FACTS if "simi_cl" in path.stem], ids=lambda path: path.stem)
def test_a_captioner_on_regions_says_what_it_reads_and_when_buckets_joined(path):
    facts, card = told(path), path.with_suffix(".md").read_text(encoding="utf-8")
    assert (facts["images"]["reads"], facts["images"]["detector"]) == ("region_features", "scenes_clip")
    assert facts["images"]["regions_per_image"] == facts["images"]["grid"] ** 2
    assert facts["words"]["tokens"] > 50
    assert [entry["decision"] for entry in facts["decisions"]].count("merge") >= 1
    (cider,) = [one["value"] for one in facts["results"] if one["metric"] == "cider"]
    assert cider > 0.4  # captions of the image that is shown; those dealt to other images have less than half
    assert 'processor.image_processor(images=image, return_tensors="pt")' in card
    assert f"| numbers per region | {facts['images']['numbers_per_region']} |" in card


@every_card
def test_it_names_no_machine_person_or_token(path):
    for text in texts(told(path)):
        assert not re.search(r"(?<![\w.:])/\w+/|[A-Za-z]:\\|\bhf_[A-Za-z0-9]{16,}|~/|\\\\", text), text
        assert "@" not in text, text
    assert set(told(path)["hardware"]) <= {"device", "processes", "system"}


def test_cards_are_written_from_a_run(recipe, tmp_path, monkeypatch):
    """A run's folder becomes facts and card; a folder with none or with two runs is refused."""
    facts = told(FACTS[0])
    run = tmp_path / "runs" / "babylm_git_c" / "curriculum-seed0"
    given = {name: value for name, value in facts.items() if name not in ("command", "language", "license")}
    done = []
    monkeypatch.setattr(recipe.subprocess, "run", lambda command, check: done.append((command, check)))
    with pytest.raises(FileNotFoundError, match=r"holds 0 runs with a training_facts\.json, and a card describes one"):
        recipe.record("babylm_git_c", tmp_path / "runs")
    run.mkdir(parents=True)
    (run / "training_facts.json").write_text(json.dumps(given), encoding="utf-8")
    (run / "model").mkdir()
    (run / "model" / "model.safetensors").write_bytes(b"weights")
    made = recipe.record("babylm_git_c", tmp_path / "runs")
    assert made["model"]["repo_id"] == "outputs/cards/babylm_git_c/curriculum-seed0/model"
    assert made["command"] == ("accelerate launch recipes/babylm_git.py --output_dir outputs/cards/babylm_git_c")
    digest = made["versions"]["sha256 of model.safetensors"]
    assert digest == hashlib.sha256(b"weights").hexdigest()
    recipe.write("babylm_git_c", made, tmp_path / "cards")
    assert digest in (tmp_path / "cards" / "babylm_git_c.md").read_text()
    assert told(tmp_path / "cards" / "babylm_git_c.json") == made
    assert (tmp_path / "cards" / "babylm_git_c.md").is_file()
    assert (tmp_path / "cards" / "figures" / "babylm_git_c" / "pool_growth.png").is_file()
    assert done[-1][0][1].endswith("recipes/babylm_git.py")
    assert done[-1][1] is True


def test_what_is_not_recorded_is_not_rendered(recipe, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"babylm_git_c\.json does not exist, so there is nothing to render"):
        recipe.render("babylm_git_c", tmp_path)


@pytest.mark.parametrize("name", ["scenes_clip", "scenes_diffusion"])
def test_a_shipped_model_is_told_from_its_own_record_and_its_weights(recipe, name):
    facts = told(FOLDER / f"{name}.json")
    assert recipe.shipped(name) == facts
    (weights,) = (ROOT / "hf_curriculum" / "models" / name).rglob("*.safetensors")
    assert facts["versions"][f"sha256 of {weights.name}"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"| shipped in commit | {recipe.SHIPPED[name]} |" in (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_what_recorded_cards_say_beyond_others_stays_in_its_place():
    bad = "<script>x</script>\n---\n```\n## y" + END
    facts = told(FOLDER / "babylm_git_tc.json")
    facts |= {"command": bad, "use": bad, "before": [{bad: bad}], "curriculum": None}
    facts["data"]["description"] = bad
    text = render_model_card(facts, figures="f")
    assert [line for line in text.splitlines() if line.startswith("---")][:2] == ["---", "---"]
    body = split_front_matter(text)[1]
    outside = re.sub(r"```\w*\n.*?\n```", "", body, flags=re.DOTALL)
    assert set(re.findall(r"<[^>]*>", outside)) == {START, END}
    assert [line for line in outside.splitlines() if line.startswith("## ")] == [
        f"## {name}" for name in ("Use", "Curriculum", "Training", "Results", "Cost and surroundings", "Citation")
    ]
    assert "without a curriculum" in body
    assert "No paper: no curriculum was used." in body
    assert TAGS[0] not in split_front_matter(text)[0]["tags"]


def test_a_trainer_tells_of_its_data_and_of_earlier_stages(tmp_path):
    make = runpy.run_path(str(Path(__file__).with_name("test_model_card.py")))["make"]
    stage = {"stage": "text alone", "examples": 640, "steps": 20, "seconds": 1.5}
    make(tmp_path).create_model_card(description="drawn scenes", before=[stage])
    facts = told(tmp_path / "out" / "training_facts.json")
    assert (facts["data"]["description"], facts["before"]) == ("drawn scenes", [stage])
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "trained on 8 examples (drawn scenes) with the curriculum phases" in card
    assert "| text alone | 640 | 20 | 1.5 |" in card


def test_a_card_tells_how_many_parameters_were_trained():
    facts = told(FOLDER / "babylm_git_c.json")
    facts["model"] |= {"parameters": 1200, "trainable": 700}
    assert "with 1,200 parameters (700 trained), trained on" in render_model_card(facts)
    facts["model"]["trainable"] = 1200
    assert "with 1,200 parameters, trained on" in render_model_card(facts)


def entry_of(bibtex):
    """An entry's kind, key and fields, braces balanced within each."""
    kind, key, body = re.fullmatch(r"@(\w+)\{(\w+),\n(.*)\}", bibtex, re.DOTALL).groups()
    fields = {}
    for line in body.splitlines():
        name, value = re.fullmatch(r"  (\w+) *= \{(.*)\},", line).groups()
        depth = 0
        for letter in value:
            depth += (letter == "{") - (letter == "}")
            assert depth >= 0, line
        assert depth == 0, line
        assert name not in fields, line
        fields[name] = value
    return kind, key, fields


def test_bibtex_can_be_read():
    keys = []
    for paper in PAPERS.values():
        kind, key, fields = entry_of(paper.bibtex)
        keys.append(key)
        venue = {"inproceedings": "booktitle", "article": "journal"}[kind]
        assert {"title", "author", "year", venue} <= set(fields)
        assert fields["title"] == paper.title
        authors = [author.partition(", ") for author in fields["author"].split(" and ")]
        assert all(family and given for family, _, given in authors)
        assert fields["year"] in paper.short
        assert paper.short.startswith(authors[0][0])
        assert key == f"{authors[0][0].lower()}{fields['year']}{re.match(r'[A-Za-z]+', paper.title)[0].lower()}"
        # What no bibliography style may read as its own.
        assert not re.search(r"[%#&_$~^\\]", re.sub(r"https?://\S+", "", " ".join(fields.values())))
    assert len(set(keys)) == len(keys)


AUTHORS = {
    "babylm": ["Saha, Rohan", "Fahim, Abrar", "Fyshe, Alona", "Murphy, Alex"],
    "simi_cl": [
        "Zhang, Hongkuan", "Sugawara, Saku", "Aizawa, Akiko", "Zhou, Lei", "Sasano, Ryohei", "Takeda, Koichi",
    ],
    "tonics": ["Srinivasan, Tejas", "Ren, Xiang", "Thomason, Jesse"],
    "discl": ["Liang, Yijun", "Bhardwaj, Shweta", "Zhou, Tianyi"],
    "wsod": ["Nebbia, Giacomo", "Kovashka, Adriana"],
}  # fmt: skip
"""As the papers' front pages have them, in their order; DisCL's from its entry on arXiv."""


def test_authors_are_those_of_the_front_pages():
    for name, paper in PAPERS.items():
        assert entry_of(paper.bibtex)[2]["author"].split(" and ") == AUTHORS[name]


def test_the_citation_file_lists_every_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    found = {
        one["title"]: (str(one["year"]), [f"{who['family-names']}, {who['given-names']}" for who in one["authors"]])
        for one in cited
    }
    for paper in PAPERS.values():
        fields = entry_of(paper.bibtex)[2]
        assert found[paper.title] == (fields["year"], fields["author"].split(" and "))


def test_every_paper_that_a_docstring_follows_is_in_the_bibliography():
    authors = re.compile(r"([A-Z][\w-]+)(?:(?:, [A-Z][\w-]+)* (?:&|and) [A-Z][\w-]+| et al\.)? \(?((?:19|20)\d\d)\b")
    bibliography = (ROOT / "hf_curriculum" / "hub" / "templates" / "papers.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\D+\d{4})\w+,", bibliography, re.MULTILINE)
    followed = {
        f"{family.lower()}{year}"
        for file in (ROOT / "hf_curriculum").rglob("*.py")
        for part in re.findall(r"Source:(.*?)(?:\n\s*\n|\"\"\")", file.read_text(encoding="utf-8"), re.DOTALL)
        for family, year in authors.findall(" ".join(part.split()))
    } - {"babylm2024", "cvpr2015"}  # a challenge and a venue
    assert len(followed) > 60
    assert sorted(followed - set(keys)) == []
    for family_and_year, line in zip(keys, re.findall(r"^@.*", bibliography, re.MULTILINE), strict=True):
        if "title" in line:  # an entry of one line
            assert f"year = {{{family_and_year[-4:]}}}}}" in line
            assert line.partition("author = {")[2].lower().startswith(family_and_year[:-4])
