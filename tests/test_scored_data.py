from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Image, load_from_disk
from typer.testing import CliRunner

from hf_curriculum import (
    CaptionLength,
    Phases,
    add_scores,
    concat_scored,
    load_scored,
    make_plan,
    read_provenance,
    save_bucketed,
    save_scored,
)
from hf_curriculum.cli import app
from hf_curriculum.files import write_sealed
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.scored_data import (
    FILE_NAME,
    load_provenance,
    provenance_markdown,
    verify_scored,
    write_provenance,
)

MADE = ScoreProvenance("noun_count", "NounCount", {"tagger": "pattern"}, easy="low")


def scored(values, made=MADE):
    data = Dataset.from_dict({"caption": ["x"] * len(values), made.column: np.float32(values)})
    return attach_provenance(data, {made.column: made})


@pytest.fixture
def splits():
    return DatasetDict(train=scored([0, 1, 2, 3, np.nan]), test=scored([7, 9]))


def test_scores_json_has_counts_and_quantiles_per_split(splits, tmp_path):
    file = write_provenance(splits, tmp_path)
    content = json.loads(file.read_text())
    train = content["splits"]["train"]
    assert file == tmp_path / FILE_NAME
    assert train["rows"] == 5
    assert train["scores"]["noun_count"]["share_unscored"] == 0.2
    assert train["scores"]["noun_count"]["median"] == 1.5
    assert content["splits"]["test"]["scores"]["noun_count"]["max"] == 9
    assert load_provenance(tmp_path) == load_provenance(file, "test") == {"noun_count": MADE}


def test_saved_and_loaded_data_and_provenance_are_the_same(splits, tmp_path):
    save_scored(splits, tmp_path / "data")
    loaded = load_scored(tmp_path / "data")
    assert read_provenance(loaded) == {"noun_count": MADE}
    np.testing.assert_array_equal(loaded["train"]["noun_count"][:], splits["train"]["noun_count"][:])
    assert "## Scores" in (tmp_path / "data" / "README.md").read_text()
    save_scored(splits["test"], tmp_path / "one")
    assert load_scored(tmp_path / "one")["noun_count"][:] == [7.0, 9.0]


def test_saving_again_replaces_the_section_and_keeps_the_rest_of_the_card(splits, tmp_path):
    save_scored(splits, tmp_path)
    card = tmp_path / "README.md"
    card.write_text("# Mine\n\n" + card.read_text() + "\n## Licence\n\nCC0\n")
    save_scored(DatasetDict(train=scored([5, 5])), tmp_path)
    text = card.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith("## Licence\n\nCC0\n")
    assert text.count("## Scores") == 1
    assert "| train | 2 |" in text


def test_lost_provenance_is_read_back_from_the_file(splits, tmp_path):
    save_scored(splits["test"], tmp_path)
    bare = Dataset.from_dict({"caption": ["x", "x"], "noun_count": np.float32([7, 9])})
    assert read_provenance(bare) == {}
    bare.save_to_disk(str(tmp_path / "bare"))
    write_provenance(splits["test"], tmp_path / "bare")
    assert read_provenance(load_scored(tmp_path / "bare")) == {"noun_count": MADE}
    bare.save_to_disk(str(tmp_path / "later"))
    for file in (tmp_path / "later").iterdir():  # recorded before there was data
        file.rename(tmp_path / "later" / f"{file.name}.aside")
    write_provenance(splits["test"], tmp_path / "later")
    for file in (tmp_path / "later").glob("*.aside"):
        file.rename(file.with_suffix(""))
    assert read_provenance(load_scored(tmp_path / "later")) == {"noun_count": MADE}


def test_a_file_that_does_not_belong_to_the_data_is_refused(splits, tmp_path):
    save_scored(splits, tmp_path / "a")
    write_provenance(DatasetDict(train=scored([1]), test=scored([1, 2])), tmp_path / "a")
    with pytest.raises(ValueError, match="it is stale"):
        load_scored(tmp_path / "a")
    other = ScoreProvenance("noun_count", "by hand")
    write_provenance(DatasetDict(train=scored([1] * 5, other), test=scored([1, 2])), tmp_path / "a")
    with pytest.raises(ValueError, match="disagree on where the scores came from"):
        load_scored(tmp_path / "a")


def test_missing_and_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist. `save_scored` and `write_provenance` write it"):
        load_provenance(tmp_path)
    (tmp_path / FILE_NAME).write_text("[]")
    with pytest.raises(ValueError, match=r"scores\.json is damaged \(.*`write_provenance`"):
        load_provenance(tmp_path)
    write_sealed(tmp_path / FILE_NAME, {"format": 2})
    with pytest.raises(ValueError, match="not a score file of format 1"):
        load_provenance(tmp_path)


def test_splits_scored_differently_are_kept_apart(tmp_path):
    other = ScoreProvenance("noun_count", "by hand")
    write_provenance(DatasetDict(train=scored([1]), test=scored([1], other)), tmp_path)
    assert load_provenance(tmp_path, "test") == {"noun_count": other}
    with pytest.raises(ValueError, match="scored differently in the splits"):
        load_provenance(tmp_path)


def test_nothing_to_write_is_an_error(tmp_path):
    bare = Dataset.from_dict({"caption": ["x"]})
    with pytest.raises(ValueError, match="No column of this data set carries the provenance"):
        write_provenance(bare, tmp_path)
    with pytest.raises(ValueError, match="No column of this data set carries the provenance"):
        save_scored(bare, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match="was given an IterableDataset as `dataset`"):
        write_provenance(scored([1]).to_iterable_dataset(), tmp_path)


def test_an_argument_cannot_break_the_card(tmp_path):
    evil = "a|b\n---\n<script>x</script> [l](http://x) `c` *d* ![i](j) <!-- scores: end -->\u202e\u2028é"
    made = ScoreProvenance("noun_count", evil, {evil: evil}, model=evil, revision=evil, backend=evil)
    data = scored([1, 2], made)
    text = provenance_markdown(data)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3 + 3  # two tables, each of a head, a rule and one row
    for line in rows[:3]:
        assert line.replace("\\|", "").count("|") == 11  # 10 columns
    assert "<" not in text
    assert "\u202e" not in text
    assert "é" in text
    assert not any(mark in text.replace("\\" + mark, "") for mark in "[*!")
    save_scored(data, tmp_path)
    save_scored(data, tmp_path / "again")
    assert (tmp_path / "README.md").read_text().count("<!-- scores: end -->") == 1
    assert read_provenance(load_scored(tmp_path)) == {"noun_count": made}


def test_the_card_names_quantiles_and_share_by_split(splits):
    text = provenance_markdown(splits)
    assert "| noun\\_count | train | 5 | 20.00% | 0 | 0.75 | 1.5 | 2.25 | 3 |" in text
    assert "| noun\\_count | test | 2 | 0.00% | 7 | 7.5 | 8 | 8.5 | 9 |" in text
    assert text.count("NounCount") == 1  # splits that agree share a row
    all_nan = provenance_markdown(scored([np.nan]))
    assert "| 1 | 100.00% | – | – | – | – | – |" in all_nan


def test_splits_are_not_saved_where_a_data_set_without_would_hide_them(splits, tmp_path):
    save_scored(splits["train"], tmp_path / "scored")
    with pytest.raises(ValueError, match=r"without splits, which would hide the splits \['train'.*\]\. Delete it"):
        save_scored(splits, tmp_path / "scored")
    assert load_scored(tmp_path / "scored").num_rows == splits["train"].num_rows


def versions(number, **changes):
    made = {"scorer": "WordRarity", "versions": {"hf-curriculum": number}, "arguments": {"fitted": f"f{number}"}}
    return ScoreProvenance("word_rarity", **(made | changes))


def test_sets_scored_by_other_versions_are_joined_and_what_differs_is_said(caplog):
    parts = [scored([1, 2], versions("0.1.0")), scored([3, np.nan], versions("0.2.0")), scored([5], versions("0.1.0"))]
    joined = concat_scored(parts)
    np.testing.assert_array_equal(joined["word_rarity"][:], [1, 2, 3, np.nan, 5])
    made = read_provenance(joined)["word_rarity"]
    assert (made.scorer, made.easy) == ("WordRarity", "low")
    assert made.versions == {"hf-curriculum": "0.1.0, 0.2.0"}
    assert made.arguments == {"fitted": ["f0.1.0", "f0.2.0"]}
    assert "`word_rarity` was not made in one way" in caplog.text
    assert "versions: {'hf-curriculum': '0.1.0'} | {'hf-curriculum': '0.2.0'}" in caplog.text
    assert make_plan(Phases(2), joined, score_column="word_rarity", global_batch_size=1).step_rows(0).tolist() != [3]


def test_sets_scored_in_one_way_are_joined_without_a_word(caplog):
    joined = concat_scored([scored([1, 2]), scored([3]).shuffle(seed=0)])
    assert read_provenance(joined) == {"noun_count": MADE}
    assert caplog.text == ""
    joined = concat_scored([scored([1, 2]), Dataset.from_dict({"caption": ["x"]})])
    assert joined["noun_count"][:] == [1, 2, None]
    joined = concat_scored([scored([1, 2]), scored([3], versions("1"))])
    assert sorted(read_provenance(joined)) == ["noun_count", "word_rarity"]


@pytest.mark.parametrize(
    "changes",
    [
        {"scorer": "Mine"},
        {"model": "a/model"},
        {"arguments": {"smooth": 2}},
        {"per_image": "max"},
        {"source": "joined"},
    ],
    ids=str,
)
def test_scores_of_other_scorers_are_joined_only_when_asked(changes, caplog):
    parts = [scored([1, 2], versions("1", arguments={"smooth": 1})), scored([3], versions("1", **changes))]
    with pytest.raises(ValueError, match=f"by another scorer .*{next(iter(changes))}: .*same_scorer=False"):
        concat_scored(parts)
    joined = concat_scored(parts, same_scorer=False)
    assert joined["word_rarity"][:] == [1, 2, 3]
    assert next(iter(changes)) in caplog.text
    made = read_provenance(joined)["word_rarity"]
    if "model" in changes:
        assert made.model == "none, a/model"
    if "scorer" in changes:
        assert made.scorer == "WordRarity, Mine"


def test_what_is_not_joined():
    with pytest.raises(ValueError, match="low is easy in one of them and high in another"):
        concat_scored([scored([1], versions("1")), scored([2], versions("1", easy="high"))], same_scorer=False)
    bare = Dataset.from_dict({"caption": ["x"], "noun_count": np.float32([1])})
    with pytest.raises(ValueError, match="`noun_count` of data set 1 has no record of where it came from"):
        concat_scored([scored([1]), bare])
    with pytest.raises(TypeError, match="`concat_scored` was given a list that holds a DatasetDict"):
        concat_scored([DatasetDict(train=scored([1]))])
    for first, second, told in (
        ([7], ["007"], r"Value\('int64'\), and of data set 2 Value\('string'\)"),
        ([1], [1.5], r"Value\('int64'\), and of data set 2 Value\('float64'\)"),
    ):
        parts = [scored([1]).add_column("id", first), scored([1]), scored([1]).add_column("id", second)]
        with pytest.raises(ValueError, match=f"`id` of data set 0 is {told}.*cast_column\\('id'"):
            concat_scored(parts)
    unknown = scored([1]).add_column("id", [None])
    assert concat_scored([unknown, scored([1]).add_column("id", ["a"])])["id"][:] == [None, "a"]
    with pytest.raises(ValueError, match="no data set"):
        concat_scored([])
    changed = scored([1, 2]).map(lambda row: {"noun_count": -row["noun_count"]})
    with pytest.raises(ValueError, match="has changed since NounCount wrote it"):
        concat_scored([changed, scored([1], ScoreProvenance("noun_count", "NounCount", {"tagger": "nltk"}))])


# ---- What lies there is what was saved ----


def pictures(count=3):
    image = {"bytes": b"\x89PNG" + bytes(range(200)) * 5, "path": None}
    data = Dataset.from_dict(
        {
            "image": [{**image, "path": f"{number}.png"} for number in range(count)],
            "caption": [f"a dog {number} é" if number else None for number in range(count)],
            "names": [["a", "b"][:number] for number in range(count)],
            "vector": [[float(number), 2.0] for number in range(count)],
            "noun_count": np.float32(range(count)),
        }
    ).cast_column("image", Image(decode=False))
    return attach_provenance(data, {"noun_count": MADE})


def changed(file, content, place):
    file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])


def test_each_byte_of_the_data_is_compared(tmp_path):
    save_scored(pictures(), tmp_path / "set")
    (file,) = (tmp_path / "set").glob("*.arrow")
    content = file.read_bytes()
    wanted, padding = load_scored(tmp_path / "set").to_dict(), 0
    start = content.index(b"\x89PNG")
    bytes_of_images = range(start, start + 3 * 1004)
    for place in range(0, len(content), 19):
        changed(file, content, place)
        if place in bytes_of_images:
            load_scored(tmp_path / "set")
            with pytest.raises(ValueError, match=rf"{file.name} is damaged: `image` holds something else"):
                verify_scored(tmp_path / "set")
            continue
        try:
            assert load_scored(tmp_path / "set").to_dict() == wanted, place
            padding += 1
        except ValueError as error:
            assert f"{file.name} is damaged" in str(error)  # noqa: PT017
    assert padding < 0.2 * len(content) / 19  # between buffers
    for text, column in ((b"a dog 1", "caption"), (np.float32([0, 1]).tobytes(), "noun_count")):
        changed(file, content, content.index(text) + 5)
        with pytest.raises(ValueError, match=rf"{file.name} is damaged: `{column}` holds something else than"):
            load_scored(tmp_path / "set")
    file.write_bytes(content)
    verify_scored(tmp_path / "set")


@pytest.mark.parametrize("of_splits", [False, True])
def test_files_that_were_changed_exchanged_added_or_lost(tmp_path, of_splits):
    data = DatasetDict(train=pictures(3), test=pictures(4)) if of_splits else pictures(3)
    folder = tmp_path / "set"
    save_scored(data, folder, **({} if of_splits else {"num_shards": 3}))
    names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*.*")) if file.name != "README.md"]
    assert len(names) == (8 if of_splits else 6)
    for name in names:
        content = (folder / name).read_bytes()
        for place in range(0, len(content) if name.endswith("json") else 0, 79):
            changed(folder / name, content, place)
            with pytest.raises(ValueError, match=rf"{name} (is damaged|was damaged|holds something else)"):
                load_scored(folder)
        (folder / name).unlink()
        with pytest.raises((ValueError, FileNotFoundError), match=r"is missing|does not exist|was added"):
            load_scored(folder)
        (folder / name).write_bytes(content)
        load_scored(folder)
    for one in names:
        for other in names:
            if one < other:
                contents = [(folder / name).read_bytes() for name in (one, other)]
                (folder / one).write_bytes(contents[1])
                (folder / other).write_bytes(contents[0])
                with pytest.raises(ValueError, match=r"damaged|something else|missing|added"):
                    load_scored(folder)
                (folder / one).write_bytes(contents[0])
                (folder / other).write_bytes(contents[1])
    (folder / "README.md").write_text("# My own words\n")
    load_scored(folder)
    verify_scored(folder)
    if of_splits:
        shutil.copy(folder / "train" / "state.json", folder / "state.json")
        with pytest.raises(ValueError, match=r"state\.json was added since the data was saved"):
            load_scored(folder)


def test_data_that_was_saved_again_is_recorded_again(tmp_path):
    save_scored(scored([1, 2]), tmp_path / "set")
    scored([1, 3]).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(ValueError, match=r"something else than was written.*record it: `write_provenance`"):
        load_scored(tmp_path / "set")
    write_provenance(scored([1, 3]), tmp_path / "set")
    assert load_scored(tmp_path / "set")["noun_count"][:] == [1, 3]


def test_links_in_the_folder_are_copied_or_replaced_and_never_written_through(tmp_path):
    thesis, folder = tmp_path / "thesis.txt", tmp_path / "set"
    thesis.write_text("years of work")
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    ours = ("README.md", "scores.json", "state.json", "dataset_info.json", "data-00000-of-00001.arrow")
    for name in (*ours, "notes.txt"):
        (folder / name).symlink_to(thesis)
    for name in (".set.lock", ".set.unfinished-x", ".set.replaced-x"):
        (tmp_path / name).symlink_to(thesis if name.endswith("lock") else tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"\.set\.lock is a link to .*thesis"):
        save_scored(scored([1, 2]), folder)
    (tmp_path / ".set.lock").unlink()
    save_scored(scored([1, 2]), folder)
    save_scored(scored([1, 2]), folder)
    assert thesis.read_text() == "years of work"
    assert [name for name in ours if (folder / name).is_symlink()] == []
    assert (folder / "notes.txt").readlink() == thesis
    assert "years" not in (folder / "README.md").read_text()
    assert load_scored(folder, allow_outside=True)["noun_count"][:] == [1, 2]
    (tmp_path / "named").symlink_to("set")
    save_scored(scored([5]), tmp_path / "named")
    assert load_scored(folder, allow_outside=True)["noun_count"][:] == [5]
    assert (tmp_path / "named").is_symlink()
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "train").symlink_to(tmp_path / "elsewhere")
    save_scored(DatasetDict(train=scored([1])), splits)
    assert not (splits / "train").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o002, 0o775), (0o022, 0o755)])
def test_permissions_are_those_that_the_user_asks_for(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save_scored(DatasetDict(train=scored([1, 2])), tmp_path / "set")
        save_scored(DatasetDict(train=scored([1, 2])), tmp_path / "set")
    finally:
        os.umask(before)
    for file in (tmp_path / "set", *(tmp_path / "set").rglob("*")):
        assert file.stat().st_mode & 0o777 == (mode if file.is_dir() else mode & 0o666), file


def test_a_file_that_cannot_be_kept_is_named(tmp_path):
    save_scored(scored([1]), tmp_path / "set")
    os.mkfifo(tmp_path / "set" / "pipe")
    with pytest.raises(OSError, match=r"set/pipe cannot be copied .*is unchanged. Move that file elsewhere"):
        save_scored(scored([2]), tmp_path / "set")
    (tmp_path / "set" / "pipe").unlink()
    assert load_scored(tmp_path / "set")["noun_count"][:] == [1]


def test_a_folder_of_buckets_is_named(tmp_path):
    data = add_scores(Dataset.from_dict({"caption": ["a", "b c"]}), CaptionLength())
    save_bucketed(data, tmp_path / "buckets", 2, score_column="caption_length")
    with pytest.raises(ValueError, match="holds buckets, whose shards are read in their order: by `BucketedStream`"):
        load_scored(tmp_path / "buckets")
    told = CliRunner().invoke(app, ["plan", str(tmp_path / "buckets"), "phases"])
    assert (told.exit_code, "holds buckets" in told.output) == (1, True)


def test_saved_sets_and_notes_of_the_user_below_a_set_stay(tmp_path):
    """Only what the older set wrote goes with it: a backup in its folder has a `state.json` too."""
    one = add_scores(Dataset.from_dict({"caption": ["a dog", "two red dogs"]}), CaptionLength())
    for data, place in ((one, "set"), (DatasetDict(train=one, test=one), "splits")):
        save_scored(data, tmp_path / place)
        notes = [tmp_path / place / "backup/notes.txt", tmp_path / place / "backup/old/notes.txt"]
        for note in notes:
            one.save_to_disk(str(note.parent))
            note.write_text("mine")
        if place == "splits":
            notes.append(tmp_path / "splits/train/notes.txt")
            notes[-1].write_text("mine")
        save_scored(data, tmp_path / place)
        assert [note.read_text() for note in notes] == ["mine"] * len(notes)
        assert load_from_disk(str(tmp_path / place / "backup/old"))[:] == one[:]
    save_scored(DatasetDict(test=one), tmp_path / "splits")
    assert os.listdir(tmp_path / "splits/train") == ["notes.txt"]
    assert list(load_scored(tmp_path / "splits")) == ["test"]
