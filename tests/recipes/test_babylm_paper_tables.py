"""The paper's numbers in `paper_tables.yaml`: its arithmetic, which an error of copying would break."""

from __future__ import annotations

from statistics import fmean

import pytest
from babylm.tables import PAPER_COLUMNS
from babylm.tables_paper import read_paper_tables

PAPER = read_paper_tables()
TABLES = PAPER.tables
ROUNDED = 0.01 + 1e-9  # the mean of printed numbers against a printed mean, each off by half of the last digit at most
SUBTASKS = {
    "BLiMP filtered": ("11", "12", "13", "14"),
    "BLiMP supplement": ("10",),
    "(Super)GLUE": ("9",),
    "EWoK": ("9",),
}
ITEMS = {
    ("1", "Winoground"): 746,
    ("6", "Winoground"): 3 * 746,
    ("2", "lex-viz_vocab"): 119,
    ("2", "gram-trog"): 76,
    ("7", "lex-viz_vocab"): 3 * 119,
    ("7", "gram-trog"): 3 * 76,
    ("9", "rte"): 139,
    ("9", "sst2"): 436,
    ("9", "wsc"): 52,
    ("9", "mat-dynam"): 770,
    ("9", "mat-prop"): 170,
    ("9", "phy-dynam"): 120,
    ("9", "phy-inter"): 556,
    ("9", "phy-relation"): 818,
    ("9", "quant-prop"): 314,
    ("9", "social-interac"): 294,
    ("9", "social-prop"): 328,
    ("9", "spatial-relation"): 490,
    ("10", "hypernym"): 842,
    ("10", "qa_congruence_easy"): 64,
    ("10", "qa_congruence_tricky"): 165,
    ("10", "subject_aux_inversion"): 3867,
    ("10", "turn_taking"): 280,
}
MISPRINTS = {("2", "gram-trog"): {32.29}, ("7", "lex-viz_vocab"): {72.93}, ("7", "gram-trog"): {32.26}}
"""What is no whole number of the items; the notes of the tables say so."""


def rows_of(number):
    """Label → numbers, without the average."""
    return {label: dict(values) for label, values in TABLES[number].rows.items() if label != "average"}


def column_means(rows):
    return {column: fmean(values[column] for values in rows) for column in rows[0]}


def subtask_rows(label):
    rows = [values for number in SUBTASKS[label] for values in rows_of(number).values()]
    return {"(Super)GLUE": rows[:11], "EWoK": rows[11:]}.get(label, rows)


def test_shape():
    sizes = {number: len(table.rows) for number, table in TABLES.items()}
    assert sizes == dict(zip(map(str, range(1, 15)), [2, 4, 4, 4, 2, 2, 4, 4, 22, 6, 22, 13, 25, 7], strict=True))
    names = [name for number in SUBTASKS["BLiMP filtered"] for name in TABLES[number].rows]
    assert len(set(names)) == 67
    assert not any(" " in name or "-" in name for name in names)
    for number, table in TABLES.items():
        assert table.columns == (PAPER_COLUMNS[:4] if number in ("6", "7", "8") else PAPER_COLUMNS)
        if number != "5":
            assert all(len(values) == len(table.columns) for values in table.rows.values())


@pytest.mark.parametrize("number", ["2", "3", "7", "8", "10"])
def test_averages_are_the_means_of_their_rows(number):
    rows = rows_of(number)
    if number == "2":  # the misprint, which the printed average does not share
        (wrong,) = (column for column, value in rows["gram-trog"].items() if value == 32.29)
        assert abs(column_means(list(rows.values()))[wrong] - TABLES["2"].rows["average"][wrong]) > 0.1
        rows["gram-trog"][wrong] = 32.89
    assert column_means(list(rows.values())) == pytest.approx(TABLES[number].rows["average"], abs=ROUNDED)


@pytest.mark.parametrize("label", list(SUBTASKS))
def test_table_4_has_the_means_of_tables_9_to_14(label):
    assert len(subtask_rows(label)) == {"BLiMP filtered": 67, "BLiMP supplement": 5}.get(label, 11)
    assert column_means(subtask_rows(label)) == pytest.approx(TABLES["4"].rows[label], abs=ROUNDED)


@pytest.mark.parametrize(("number", "label"), list(ITEMS))
def test_shares_are_whole_numbers_of_items(number, label):
    items = ITEMS[number, label]
    values = TABLES[number].rows[label].values()
    # Printed numbers are rounded or, here and there, cut off.
    wrong = {value for value in values if abs(round(value / 100 * items) / items * 100 - value) > 0.005 + 1e-9}
    assert wrong == MISPRINTS.get((number, label), set())
    assert all(f"{value:.2f}" in TABLES[number].note for value in wrong)


def test_the_correlation_stands_in_both_tables_of_devbench():
    for accuracy, similarity in (("2", "3"), ("7", "8")):
        assert TABLES[accuracy].rows["sem-things"] == TABLES[similarity].rows["sem-things"]


def test_hours_add_up():
    hours = {column.label: value for column, value in TABLES["5"].rows["all"].items()}
    text = {column.label: value for column, value in TABLES["5"].rows["text stage"].items()}
    assert list(hours.values()) == [80, 109, 50, 79, 79, 105, 46, 72]
    assert text == {"GIT T+C": 29, "GIT CL T+C": 29, "Flamingo T+C": 26, "Flamingo CL T+C": 26}
    for label, spent in text.items():
        assert hours[label] - spent == hours[label.replace("T+C", "C")]


def test_the_source_is_named():
    assert "Saha et al. 2024" in PAPER.source
    assert TABLES["1"].block().title == "paper: Saha et al. 2024, Table 1"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("[GIT C, CLIP C]", "Table 1 has the columns \\['CLIP C'\\]"),
        ("[GIT C]", "row 'a' has 2 numbers for 1 columns"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path, columns, message):
    file = tmp_path / "tables.yaml"
    table = "{title: t, note: n, rows: {a: [1.0, 2.0]}}"
    file.write_text(f'source: s\ncolumns: {columns}\ntables: {{"1": {table}}}\n')
    with pytest.raises(ValueError, match=message):
        read_paper_tables(file)
