import json
import shutil

import pytest
from datasets import Dataset, Image
from PIL import Image as Pil

from hf_curriculum.tasks.babylm.files import RowImage, find_images, load_benchmark_split
from hf_curriculum.tasks.babylm.image_tasks import paired_scores, run_vqa, run_winoground, vqa_item
from hf_curriculum.tasks.babylm.scorer import Item


def winoground_lines(folder):
    return [json.loads(line) for line in (folder / "winoground_filtered" / "winoground.jsonl").open()]


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_winoground_is_as_a_naive_loop_finds_it(name, models, run_of, miniature, naive):
    model = models[name]
    result = run_winoground(run_of(model=model))
    score = {}
    rows = winoground_lines(miniature)
    for row in rows:
        image = miniature / "winoground_filtered" / "images" / f"ex_{row['image_idx']}_img_{row['image_key'][-1]}.png"
        for caption in (row["caption_0"], row["caption_1"]):
            score[row["image_idx"], row["image_key"], caption] = naive.choice(model, "", caption, image)
    unpaired = text = picture = group = 0
    for row in rows:
        own, foreign = ((row["image_idx"], row["image_key"], row[caption]) for caption in ("caption_0", "caption_1"))
        unpaired += score[own] >= score[foreign]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        at, a, b = first["image_idx"], first["caption_0"], second["caption_0"]
        by_text = (
            score[at, "image_0", a] > score[at, "image_0", b] and score[at, "image_1", b] > score[at, "image_1", a]
        )
        by_image = (
            score[at, "image_0", a] > score[at, "image_1", a] and score[at, "image_1", b] > score[at, "image_0", b]
        )
        text, picture, group = text + by_text, picture + by_image, group + (by_text and by_image)
    wanted = {"accuracy": unpaired / 8, "text": text / 4, "image": picture / 4, "group": group / 4}
    assert result.averages == wanted
    assert result.counts == {"winoground": 8}
    assert [entry["id"] for entry in result.predictions["winoground"]["predictions"][:2]] == [
        "winoground_0",
        "winoground_1",
    ]


def quadruple(right_0, wrong_0, right_1, wrong_1):
    rows = [
        {"image_idx": 3, "image_key": "image_0", "caption_0": "a", "caption_1": "b"},
        {"image_idx": 3, "image_key": "image_1", "caption_0": "b", "caption_1": "a"},
    ]
    return paired_scores(rows, [[right_0, wrong_0], [right_1, wrong_1]])[0]


def test_paired_scores_by_hand():
    assert quadruple(4, 1, 4, 1) == {"text": 1, "image": 1, "group": 1}
    assert quadruple(4, 3, 2, 1) == {"text": 1, "image": 0, "group": 0}  # caption b suits image 0 better
    assert quadruple(4, 4, 4, 1) == {"text": 0, "image": 0, "group": 0}  # ties are wrong
    assert quadruple(2, 3, 4, 1) == {"text": 0, "image": 1, "group": 0}
    assert quadruple(4, 1, 2, 2) == {"text": 0, "image": 1, "group": 0}
    assert quadruple(2, 1, 3, 2) == quadruple(4, 3, 3, 1) == {"text": 1, "image": 0, "group": 0}


def test_images_without_their_partner_make_no_pair():
    alone = [{"image_idx": 1, "image_key": "image_0", "caption_0": "a", "caption_1": "b"}]
    scores, pairs = paired_scores(alone, [[1.0, 0.0]])
    assert pairs == 0
    assert all(value != value for value in scores.values())
    others = [*alone, {"image_idx": 1, "image_key": "image_1", "caption_0": "c", "caption_1": "a"}]
    assert paired_scores(others, [[1.0, 0.0], [1.0, 0.0]])[1] == 0


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_vqa_is_as_a_naive_loop_finds_it(name, models, run_of, miniature, naive):
    model = models[name]
    result = run_vqa(run_of(model=model, limit=4))
    rows = json.loads((miniature / "vqa_filtered" / "vqa_distractors_info.json").read_text())[:4]
    right = 0
    for row, found in zip(rows, result.predictions["vqa"]["predictions"], strict=True):
        image = miniature / "vqa_filtered" / "images" / f"COCO_val2014_{row['image_id']:012d}.jpg"
        choices = [row["target_ans"], *row["distractors"]]
        assert len(choices) == 8
        scores = [naive.choice(model, f"Question: {row['question']} Answer:", choice, image) for choice in choices]
        best = scores.index(max(scores))
        assert found["pred"] == f" {choices[best]}"
        right += best == 0
    assert result.averages == {"accuracy": right / 4}


def test_a_question_is_asked_in_these_words():
    row = {"question": "What colour is the ball?", "target_ans": "red", "distractors": ["blue", 2]}
    item = vqa_item(row, "photo.jpg")
    assert item == Item(("red", "blue", "2"), "Question: What colour is the ball? Answer:", "photo.jpg")


@pytest.mark.parametrize("name", ["git", "flamingo"])
def test_what_the_model_reads_of_a_question(name, models, run_of, miniature, monkeypatch):
    run, asked = run_of(model=models[name], limit=1), []
    real = run.scorer.log_probs
    monkeypatch.setattr(run.scorer, "log_probs", lambda rows: (asked.extend(rows), real(rows))[1])
    run_vqa(run)
    row = json.loads((miniature / "vqa_filtered" / "vqa_distractors_info.json").read_text())[0]
    texts = {run.scorer.tokenizer.decode(one.ids, skip_special_tokens=True) for one in asked}
    prompt = f"Question: {row['question']} Answer:"
    choices = [row["target_ans"], *row["distractors"]]
    wanted = {"".join(f"{prompt} {choice}".lower().split()) for choice in choices}
    assert {"".join(text.split()).replace("<image>", "") for text in texts} == wanted


@pytest.fixture
def copied(miniature, tmp_path):
    return shutil.copytree(miniature, tmp_path / "data")


def test_images_may_come_from_a_named_data_set(run_of, miniature, copied, tmp_path):
    rows = winoground_lines(miniature)
    pictures = [miniature / "winoground_filtered" / "images" / f"ex_{at}_img_{{}}.png" for at in range(4)]
    columns = {f"image_{side}": [str(path).format(side) for path in pictures] for side in (0, 1)}
    hub = Dataset.from_dict(columns).cast_column("image_0", Image()).cast_column("image_1", Image())
    hub.save_to_disk(str(tmp_path / "hub"))
    shutil.rmtree(copied / "winoground_filtered" / "images")
    named = run_winoground(run_of(data_dir=copied, sources={"winoground": str(tmp_path / "hub")}))
    assert named == run_winoground(run_of())
    assert len(rows) == 8


def test_vqa_images_of_a_data_set_are_found_by_their_row(run_of, miniature, copied, tmp_path):
    names = [f"COCO_val2014_{at:012d}.jpg" for at in range(1, 9)]
    hub = Dataset.from_dict({"image": [str(miniature / "vqa_filtered" / "images" / name) for name in names]})
    hub.cast_column("image", Image()).save_to_disk(str(tmp_path / "hub"))
    shutil.rmtree(copied / "vqa_filtered" / "images")
    named = run_vqa(run_of(data_dir=copied, sources={"vqa": str(tmp_path / "hub")}))
    assert named == run_vqa(run_of())


def test_rows_and_splits_that_are_not_there(tmp_path):
    rows = Dataset.from_dict({"image": [1, 2]})
    assert RowImage(rows, 1, "image")() == 2
    for row, column in ((2, "image"), (-1, "image"), (0, "image_0")):
        with pytest.raises(ValueError, match="the data set has 2 rows"):
            RowImage(rows, row, column)
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"has no split 'test'; it has \['train'\]"):
        load_benchmark_split(str(tmp_path), "test")
    (tmp_path / "set[1]").mkdir()
    (tmp_path / "train.jsonl").rename(tmp_path / "set[1]" / "train.jsonl")
    with pytest.raises(ValueError, match="in a folder's name as a pattern"):
        load_benchmark_split(str(tmp_path / "set[1]"), "train")


def test_missing_and_unreadable_images_are_named(run_of, copied):
    from hf_curriculum.data.images import UnreadableImageError

    picture = copied / "winoground_filtered" / "images" / "ex_1_img_0.png"
    Pil.open(picture).convert("RGB").save(picture.with_suffix(".jpg"), quality=100)
    picture.unlink()
    assert run_winoground(run_of(data_dir=copied)).counts == {"winoground": 8}  # another format will do
    picture.with_suffix(".webp").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"both ex_1_img_0\.jpg and ex_1_img_0\.webp could be it"):
        run_winoground(run_of(data_dir=copied))
    picture.with_suffix(".webp").unlink()
    picture.with_suffix(".jpg").write_bytes(b"no picture")
    with pytest.raises(UnreadableImageError, match="ex_1_img_0"):
        run_winoground(run_of(data_dir=copied))
    picture.with_suffix(".jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 8 images are not in .*'ex_1_img_0\.png'"):
        run_winoground(run_of(data_dir=copied))


def test_an_example_of_winoground_that_stands_twice_is_refused():
    row = {"image_idx": 0, "image_key": "image_0", "caption_0": "a", "caption_1": "b"}
    with pytest.raises(ValueError, match="Example 0 has image_0 twice"):
        paired_scores([row, row], [[1, 0], [0, 1]])


def test_dots_of_a_name_are_no_ending(tmp_path):
    for name in ("v1.png", "v1.5.png"):
        Pil.new("RGB", (8, 8)).save(tmp_path / name)
    assert find_images(tmp_path, ["v1.5.jpg", "v1.5"], task="t") == [tmp_path / "v1.5.png"] * 2
    with pytest.raises(FileNotFoundError, match=r"the first is 'v1\.0'"):
        find_images(tmp_path, ["v1.0"], task="t")


def test_damaged_files_of_image_tasks_are_named(run_of, copied):
    lines = copied / "winoground_filtered" / "winoground.jsonl"
    lines.write_text('{"image_idx": 0, "image_key": "image_2", "caption_0": "a", "caption_1": "b"}\n')
    with pytest.raises(ValueError, match="row 1: image_key is 'image_2'"):
        run_winoground(run_of(data_dir=copied))
    lines.unlink()
    with pytest.raises(FileNotFoundError, match=r"winoground\.jsonl, which does not exist"):
        run_winoground(run_of(data_dir=copied))
    questions = copied / "vqa_filtered" / "vqa_distractors_info.json"
    for content, message in (
        ({"question": "?"}, "holds a dict"),
        ([], "has no items"),
        ([{"question": "?", "target_ans": "a"}], r"question 0 has no \['distractors', 'image_id'\]"),
        ([{"question": "?", "target_ans": "a", "distractors": ["b"], "image_id": 1}], "has 1 distractors"),
    ):
        questions.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            run_vqa(run_of(data_dir=copied))
    questions.unlink()
    with pytest.raises(FileNotFoundError, match=r"vqa_distractors_info\.json, which does not exist"):
        run_vqa(run_of(data_dir=copied))


def test_scores_of_other_images_are_not_taken(run_of, copied, tmp_path, caplog):
    run = run_of(data_dir=copied, scores_dir=tmp_path / "scores", limit=2)
    before = run_winoground(run)
    picture = copied / "winoground_filtered" / "images" / "ex_0_img_0.png"
    Pil.new("RGB", (32, 32), "red").save(picture)
    assert run_winoground(run) == run_winoground(run_of(data_dir=copied, limit=2))
    assert "it is made again" in caplog.text
    assert before.counts == {"winoground": 2}
    for number in (1, 2):  # the same questions on the images of two data sets
        hub = Dataset.from_dict({f"image_{side}": [Pil.new("RGB", (32, 32), (99 * number, 0, 0))] for side in (0, 1)})
        hub.save_to_disk(str(tmp_path / f"hub{number}"))
        caplog.clear()
        named = {"data_dir": copied, "limit": 2, "sources": {"winoground": str(tmp_path / f"hub{number}")}}
        assert run_winoground(run_of(**named, scores_dir=tmp_path / "scores")) == run_winoground(run_of(**named))
        assert "it is made again" in caplog.text
