from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from PIL import Image

from hf_curriculum import (
    CaptionLength,
    NounCount,
    Scorer,
    add_scores,
    add_scores_from,
    load_captioned,
    load_scores,
    read_provenance,
    save_scores,
)
from hf_curriculum.provenance import score_values
from tests.helpers.failing_files import failing_files, interrupted


@pytest.fixture
def bare():
    captions = [f"{'word ' * (i % 9)}number {i}" for i in range(60)]
    captions[7] = None
    return Dataset.from_dict({"caption": captions, "image_id": [str(i // 5) for i in range(60)], "pixels": ["x"] * 60})


@pytest.fixture
def scored(bare):
    return add_scores(bare, [CaptionLength(), NounCount()])


def test_scores_come_back_to_their_rows_in_any_order(bare, scored, tmp_path):
    file = save_scores(scored, tmp_path / "scores.parquet")
    assert pq.read_schema(file).names == ["image_id", "caption", "caption_length", "noun_count"]
    for view in (bare, bare.shuffle(seed=4), bare.filter(lambda row: row["image_id"] > "3"), bare.select([5, 5, 1])):
        loaded = load_scores(view, file)
        expected = [len(text.split()) if text else np.nan for text in view["caption"]]
        np.testing.assert_array_equal(score_values(loaded, "caption_length"), np.float32(expected))
        assert read_provenance(loaded) == read_provenance(scored)


def test_a_score_per_image_needs_a_row_per_image_only(bare, tmp_path):
    scored = add_scores(bare, CaptionLength(), per_image="max")
    file = save_scores(scored, tmp_path / "s.parquet", key="image_id")
    assert pq.read_metadata(file).num_rows == 12
    loaded = load_scores(bare.shuffle(seed=1), file)
    assert read_provenance(loaded)["caption_length"].per_image == "max"
    pairs = [dict(zip(part["caption"][:], part["caption_length"][:], strict=True)) for part in (loaded, scored)]
    assert pairs[0] == pairs[1]


def test_a_key_that_does_not_name_a_row_is_refused(scored, tmp_path):
    with pytest.raises(
        ValueError, match=r"rows share their key .* with a row of another `caption_length`, such as '0'"
    ):
        save_scores(scored, tmp_path / "s.parquet", key="image_id")
    assert not (tmp_path / "s.parquet").exists()


def test_rows_that_the_file_does_not_have(bare, scored, tmp_path):
    file = save_scores(scored.select(range(50)), tmp_path / "s.parquet")
    with pytest.raises(ValueError, match=r"10 of 60 rows have a key .* does not have, such as .*'10'"):
        load_scores(bare, file)
    loaded = load_scores(bare, file, partial=True)
    assert np.isnan(score_values(loaded, "noun_count")[50:]).all()
    assert score_values(loaded, "noun_count")[:7].tolist() == score_values(scored, "noun_count")[:7].tolist()
    changed = bare.map(lambda row: {"caption": (row["caption"] or "") + "!"})
    with pytest.raises(ValueError, match="60 of 60 rows"):
        load_scores(changed, file)


def test_scores_of_all_splits_go_into_one_file(bare, tmp_path):
    splits = DatasetDict(bare.train_test_split(0.2, seed=0))
    scored = add_scores(splits, CaptionLength())
    file = save_scores(scored, tmp_path / "s.parquet")
    assert pq.read_metadata(file).num_rows == 60
    loaded = load_scores(splits, file)
    for name, part in scored.items():
        np.testing.assert_array_equal(
            score_values(loaded[name], "caption_length"), score_values(part, "caption_length")
        )
    half = DatasetDict(train=scored["train"], test=splits["test"])
    with pytest.raises(ValueError, match=r"`caption_length` is not in the data.*Score every split"):
        save_scores(half, tmp_path / "half.parquet")


def test_splits_share_a_file(bare, scored, tmp_path):
    file = save_scores(scored, tmp_path / "s.parquet", columns=["noun_count"])
    loaded = load_scores(DatasetDict(bare.train_test_split(0.2, seed=0)), file)
    assert loaded["test"].column_names[-1] == "noun_count"
    assert len(loaded["test"]) == 12
    with pytest.raises(ValueError, match="already has `noun_count`"):
        load_scores(loaded, file)
    assert load_scores(loaded, file, overwrite=True)["test"]["noun_count"][:] == loaded["test"]["noun_count"][:]


def test_damaged_and_other_files(bare, scored, tmp_path):
    file = tmp_path / "s.parquet"
    with pytest.raises(FileNotFoundError, match="`save_scores` writes such a file"):
        load_scores(bare, file)
    for content in (b"", b"PAR1 and nothing else"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"s\.parquet is damaged \(.*Save the scores again"):
            load_scores(bare, file)
        found = load_scores(bare, save_scores(scored, file))
        np.testing.assert_array_equal(found["noun_count"][:], scored["noun_count"][:])
    scored.remove_columns("pixels").to_parquet(str(file))
    with pytest.raises(ValueError, match=r"has no digest of itself.*other programs are joined with `add_scores_from`"):
        load_scores(bare, file)
    with pytest.raises(FileExistsError, match=r"is no side file of scores, so it is not replaced"):
        save_scores(scored, file)
    file.unlink()
    save_scores(scored, file)
    table = pq.read_table(file)
    pq.write_table(table.slice(0, 30), file)
    with pytest.raises(ValueError, match="has no digest of itself"):
        load_scores(bare, file)
    about = json.loads(table.schema.metadata[b"hf_curriculum_scores"])
    assert about == {"key": ["image_id", "caption"], "scores": ["caption_length", "noun_count"]}


def test_any_changed_byte_is_noticed(bare, scored, tmp_path):
    file = save_scores(scored, tmp_path / "s.parquet")
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"s\.parquet (is damaged \(|was damaged, or changed)"):
            load_scores(bare, file)
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"s\.parquet (is damaged \(|was damaged, or changed)"):
            load_scores(bare, file)
    file.write_bytes(whole)
    np.testing.assert_array_equal(load_scores(bare, file)["noun_count"][:], scored["noun_count"][:])
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"s\.parquet is damaged \(.*a table with a row per key"):
        add_scores_from(bare, file, on="image_id")


def test_a_side_file_is_the_old_one_or_the_new_one(bare, scored, tmp_path):
    other, file = add_scores(bare, CaptionLength("regex")), tmp_path / "s.parquet"
    before = [None, save_scores(other, file).read_bytes()]
    with failing_files() as done:
        save_scores(scored, file)
    new = file.read_bytes()
    for former in before:
        for end in (False, True):
            for at in range(len(done)):
                file.unlink()
                if former is not None:
                    file.write_bytes(former)
                interrupted(lambda: save_scores(scored, file), at, end)
                assert (file.read_bytes() if file.exists() else None) in (former, new)
                save_scores(scored, file)
                assert file.read_bytes() == new
                assert list(tmp_path.iterdir()) == [file]
    assert len(done) > 4


def test_a_full_disk_is_told_with_the_file(scored, tmp_path):
    with failing_files(at=1), pytest.raises(OSError, match=r"No space left.*nothing was replaced.*s\.parquet"):
        save_scores(scored, tmp_path / "s.parquet")


def test_a_link_that_the_user_names_is_followed(scored, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "s.parquet").symlink_to("disk/real.parquet")
    save_scores(scored, tmp_path / "s.parquet")
    assert (tmp_path / "s.parquet").is_symlink()
    assert pq.read_metadata(tmp_path / "disk" / "real.parquet").num_rows == 60


def test_keys_of_another_type(scored, bare, tmp_path):
    file = save_scores(scored.select([0]), tmp_path / "s.parquet", key="image_id")
    numbers = bare.map(lambda row: {"image_id": int(row["image_id"])}, remove_columns="image_id")
    with pytest.raises(ValueError, match="these are not the rows the scores were made for"):
        load_scores(numbers, file)


def test_wrong_arguments(bare, scored, tmp_path):
    with pytest.raises(ValueError, match="No column of the data set carries the provenance"):
        save_scores(bare, tmp_path / "s.parquet")
    with pytest.raises(TypeError, match="`save_scores` was given a dict"):
        save_scores({"train": scored}, tmp_path / "s.parquet")
    file = save_scores(scored, tmp_path / "s.parquet")
    with pytest.raises(TypeError, match="`load_scores` was given an IterableDataset"):
        load_scores(bare.to_iterable_dataset(), file)
    with pytest.raises(ValueError, match="The key is empty"):
        save_scores(scored, tmp_path / "s.parquet", key=[])
    with pytest.raises(ValueError, match="`pixels` is not in the data"):
        save_scores(scored, tmp_path / "s.parquet", columns=["pixels"])
    with pytest.raises(ValueError, match="`url` is not in the data"):
        save_scores(scored, tmp_path / "s.parquet", key="url")


class Brightness(Scorer):
    columns, name = ("image",), "brightness"

    def score(self, batch, rank):
        return np.array([np.asarray(image.convert("L")).mean() for image in batch["image"]])


def test_scores_do_not_go_to_an_image_or_text_that_was_replaced(tmp_path):
    for name, colour in (("0.png", "red"), ("1.png", "blue")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / name)
    table = tmp_path / "m.csv"
    table.write_text("file_name,caption\n0.png,a\n1.png,b\n")
    data = load_captioned(table)
    looks = save_scores(add_scores(data, Brightness()), tmp_path / "looks.parquet", key="image_id")
    splits = DatasetDict(train=data.select([1]), test=data.select([0]))
    texts = save_scores(add_scores(splits, CaptionLength()), tmp_path / "texts.parquet", key="image_id")
    assert pq.read_schema(looks).names == ["image_id", "brightness", "checked_image"]
    Image.new("RGB", (8, 8), "green").save(tmp_path / "1.png")
    table.write_text("file_name,caption\n0.png,a b\n1.png,b\n")
    now = load_captioned(table)
    with pytest.raises(ValueError, match=r"1 of 2 rows have a key \['image_id'\].* another `caption` .*'0\.png'"):
        load_scores(now, texts)
    assert load_scores(now.select([1]), texts)["caption_length"][:] == [1.0]  # whose image is not scored
    with pytest.raises(ValueError, match=r"1 of 2 rows .* another `image` .*'1\.png'"):
        load_scores(now, looks)
    for source in (looks, Dataset.from_parquet(str(looks))):
        by_key = add_scores_from(now, source, on="image_id")
        assert by_key["brightness"][:] == [76.0, 29.0]
        assert "checked_image" not in by_key.column_names


def test_size_per_row(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(500)]
    captions = [" ".join(rng.choice(words, 10)) for _ in range(5000)]
    data = Dataset.from_dict({"caption": captions, "image_id": [str(i // 5) for i in range(5000)]})
    file = save_scores(add_scores(data, NounCount(), per_image="max"), tmp_path / "s.parquet", key="image_id")
    assert file.stat().st_size <= 4 * 5000
    columns = pq.read_metadata(file).row_group(0)
    assert {columns.column(number).compression for number in range(columns.num_columns)} == {"ZSTD"}
