"""The tables of Simi-CL's paper beside made-up runs: whose numbers stand where, means over seeds, what is missing."""

from __future__ import annotations

import json

import pytest
import simi_cl_tables
from common.tables import read_paper_tables
from simi_cl.tables import PAPER, make_tables, read_study, to_markdown

from hf_curriculum.tasks.captioning import caption_metrics

CAPTIONS = [
    {"image_id": str(number), "generated": text, "references": [f"a {colour} dog runs on the grass", "a dog outside"]}
    for number, (text, colour) in enumerate(
        [("a red dog runs on the grass", "red"), ("a dog", "blue"), ("a cat", "green"), ("two birds", "brown")] * 2
    )
]


@pytest.fixture
def study(tmp_path):
    """`study(name, data, (arm, seed, cider), ...)` writes a study's results."""

    def write(name, data, *runs):
        folder, entries = tmp_path / name, []
        for arm, seed, cider in runs:
            own = folder / f"{arm}-{seed}"
            own.mkdir(parents=True)
            (own / "result.json").write_text(json.dumps({"settings": {"data": data}}))
            facts = {"name": arm, "seed": seed, "folder": own.name, "curriculum": arm not in ("Transformer", "BUTD")}
            entries.append({**facts, "cider": cider, "bleu_4": 0.25, "captions": CAPTIONS})
        (folder / "results.json").write_text(json.dumps(entries))
        return folder

    return write


def rows_of(tables, number, block):
    (one,) = (table for table in tables if table["number"] == number)
    return {row[0]: row[1:] for row in one["blocks"][block]["rows"]}


def test_the_papers_numbers():
    tables = read_paper_tables(PAPER)["tables"]
    assert tables["1 COCO"]["rows"]["Simi-CL (ViLT-CC)"] == [36.4, 28.2, 117.1, 21.4]
    assert tables["1 Flickr30k"]["rows"]["Simi-CL (ViLT-FL)"] == [28.5, 22.1, 61.8, 16.2]
    assert tables["2"]["rows"]["Transformer"] == [71.0, 199.5, 36.5, 120.9, 4.5, 84.0, 0.7, 47.8]
    assert tables["3"]["rows"]["Bootstrap-CL"] == [18.1, 17.5, 38.3, 11.4]
    assert tables["4"]["rows"]["AoANet + Simi-CL"] == [37.3, 28.2, 117.0, 21.4]
    by_metric = dict(zip(tables["App. B"]["columns"], tables["App. B"]["rows"]["p"], strict=True))
    assert by_metric == {"B@4": 0.032, "C": 0.005, "M": 0.001, "S": 0.001}


def test_a_study_on_coco_stands_beside_the_papers_and_is_told_apart(study):
    folder = study(
        "mine", "x/dataset_coco.json", ("Transformer", 0, 1.0), ("Transformer", 1, 1.1), ("Simi-CL (CLIP)", 0, 1.2)
    )
    paper = read_paper_tables(PAPER)
    tables = make_tables([read_study(folder)], paper)
    assert rows_of(tables, "1 COCO", 0)["Transformer"] == ["35.7", "27.9", "113.0", "20.9"]
    ours = rows_of(tables, "1 COCO", 1)
    assert ours["Transformer"] == ["25.0 ± 0.0", "–", "105.0 ± 7.1", "–"]
    assert ours["Simi-CL (CLIP)"] == ["25.0", "–", "120.0", "–"]
    assert ours["Addup-CL"] == ["–"] * 4
    blocks = {table["number"]: [block["title"] for block in table["blocks"]] for table in tables}
    assert blocks["1 COCO"] == ["the paper's", "ours: mine (trained on x/dataset_coco.json)"]
    assert blocks["1 Flickr30k"] == blocks["4"] == blocks["3"] == ["the paper's"]
    text = to_markdown(tables, paper["source"])
    assert (
        text.index("the paper's") < text.index("| Transformer | 35.7") < text.index("ours: mine") < text.index("105.0")
    )


def test_other_captioners_stand_in_table_4(study):
    folder = study("four", "dataset_coco.json", ("BUTD", 0, 1.0), ("BUTD + Simi-CL", 0, 1.1))
    tables = make_tables([read_study(folder)], read_paper_tables(PAPER))
    assert rows_of(tables, "4", 1)["BUTD + Simi-CL"] == ["25.0", "–", "110.0", "–"]
    assert len(next(table for table in tables if table["number"] == "1 COCO")["blocks"]) == 1


def test_scenes_stand_alone_with_sets_by_difficulty(study):
    folder = study("embedded", "scenes", ("Transformer", 0, 1.0), ("Simi-CL", 0, 1.2))
    tables = make_tables([read_study(folder)], read_paper_tables(PAPER))
    assert all(len(table["blocks"]) == 1 for table in tables)
    own, by_difficulty = tables[-2:]
    assert own["blocks"][0]["rows"] == [
        ["Transformer", "25.0", "–", "100.0", "–"],
        ["Simi-CL", "25.0", "–", "120.0", "–"],
    ]
    assert "which the paper has not" in own["blocks"][0]["title"]
    values = [float(value) for value in by_difficulty["blocks"][0]["rows"][0][1:]]
    easiest = [entry for entry in CAPTIONS if entry["generated"].startswith("a red")]  # one of four is, so one set
    found = caption_metrics([one["generated"] for one in easiest], [one["references"] for one in easiest])
    assert values[:2] == [pytest.approx(100 * found[name], abs=0.06) for name in ("bleu_4", "cider")]
    assert values[0] == 100
    assert values[6] < 1


def test_errors_and_the_command(study, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, message in {
        (): "outputs/simi_cl_captioning holds no study with a results.json",
        ("nowhere",): "nowhere has no results.json",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            simi_cl_tables.main(options)
        assert message in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "results.json").write_text('[{"name": "control"}]')
    with pytest.raises(ValueError, match="has runs without captions, cider"):
        read_study(other)
    (tmp_path / "paper.yaml").write_text("tables: {'1': {columns: [C], rows: {a: [1, 2]}}}")
    with pytest.raises(ValueError, match=r"Table 1 of .* has 2 numbers in the row 'a' for 1 columns"):
        read_paper_tables(tmp_path / "paper.yaml")
    folder = study("outputs/simi_cl_captioning/embedded", "scenes", ("Transformer", 0, 1.0))
    simi_cl_tables.main(["--output_dir", "tables"])
    assert "embedded (trained on scenes" in capsys.readouterr().out
    assert json.loads((tmp_path / "tables" / "tables.json").read_text())[-1]["title"] == folder.name
