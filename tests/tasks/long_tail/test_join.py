"""Real and generated images together, and the validation set of all levels."""

from __future__ import annotations

import io
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Value
from PIL import Image
from spectrum_data import labelled_scenes, tiny_pipeline

from hf_curriculum.tasks.long_tail import (
    AdaptiveGuidance,
    distance_to_source,
    generate_spectrum,
    hold_out_levels,
    join_spectrum,
    spectrum_grid,
)
from hf_curriculum.tasks.long_tail.generation import filter as grid

LEVELS = (0.1, 0.5)


@pytest.fixture(scope="module")
def real():
    return labelled_scenes(10, 4)


@pytest.fixture(scope="module")
def drawn(real, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spectrum")
    return generate_spectrum(real, tiny_pipeline(), prompts="a {name}", levels=LEVELS, seeds=3, steps=2, folder=folder)


@pytest.fixture(scope="module")
def joined(real, drawn):
    return join_spectrum(real, drawn)


def level_of(data):
    return [round(level, 6) for level in data["guidance"][:]]


def test_real_images_come_first_at_level_1(real, drawn, joined):
    assert len(joined) == 10 + 4 * 2 * 3
    assert level_of(joined)[:10] == [1] * 10
    assert joined["hard"][:10] == real["hard"][:]
    assert joined["source_id"][:10] == joined["image_id"][:10] == real["image_id"][:]
    assert joined["prompt"][:10] == joined["seed"][:10] == [None] * 10
    assert joined["name"][10:] == [None] * 24
    assert joined["image_id"][10:] == drawn["image_id"][:]
    assert joined.features["guidance"] == drawn.features["guidance"]
    assert joined.features["label"] == real.features["label"]


def test_without_a_mark_the_sources_are_hard(real, drawn, joined, caplog):
    plain = real.remove_columns("hard").shuffle(seed=1)
    found = join_spectrum(plain, drawn).select(range(10))
    hard = {name for name, is_hard in zip(found["image_id"][:], found["hard"][:], strict=True) if is_hard}
    assert hard == set(real["image_id"][:4])
    assert "have no generated image left" not in caplog.text
    fewer = drawn.filter(lambda source: source != real["image_id"][0], input_columns="source_id")
    assert sum(join_spectrum(plain, fewer)["hard"][:10]) == 3
    assert "1 of 4 hard images have no generated image left" in caplog.text
    assert sum(join_spectrum(real, fewer)["hard"][:10]) == 4


def test_real_images_that_were_joined_before(real, drawn, joined):
    again = join_spectrum(joined.select(range(10)), drawn)
    assert again.column_names == joined.column_names
    assert again["guidance"][:] == joined["guidance"][:]
    assert again.features["seed"] == drawn.features["seed"]


def test_a_spectrum_without_provenance_and_without_classes(real, drawn, caplog):
    plain = drawn.cast_column("guidance", Value("float32")).remove_columns("label")
    found = join_spectrum(real.remove_columns(["hard", "label"]), plain)
    assert sum(found["hard"][:10]) == 4
    assert level_of(found)[:10] == [1] * 10
    assert not caplog.records


def test_captions_go_along_where_the_real_images_have_some(real, drawn):
    assert "caption" not in join_spectrum(real, drawn).column_names
    captioned = join_spectrum(real.add_column("caption", [f"caption {row}" for row in range(10)]), drawn)
    assert captioned["caption"][:10] == [f"caption {row}" for row in range(10)]
    assert captioned["caption"][10:] == drawn["caption"][:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda real: real.select(range(3, 10)), r"3 of 4 sources of the spectrum are not among the real images"),
        (lambda real: real.remove_columns("image_id"), "`image_id` is not in the data"),
        (lambda real: real.add_column("guidance", [0.5] * 10), "holds generated ones already"),
        (lambda real: real.rename_column("label", "species"), r"`train` has no such column .* train.rename_column"),
        (lambda real: real.map(lambda row: {"hard": False}), r"4 real images .* not marked `hard`"),
        (
            lambda real: real.cast_column("label", ClassLabel(names=[f"class {n}" for n in range(14)])),
            "would mean other classes",
        ),
    ],
)
def test_what_cannot_be_joined(real, drawn, change, message):
    with pytest.raises(ValueError, match=message):
        join_spectrum(change(real), drawn)


def test_a_spectrum_without_its_columns(real, drawn):
    with pytest.raises(ValueError, match=r"`source_id` is not in the data"):
        join_spectrum(real, drawn.remove_columns("source_id"))


@pytest.fixture
def plain(joined):
    """One class, so that none is emptied."""
    return joined.remove_columns("label")


def test_held_out_levels_are_disjoint_equal_and_complete(plain):
    train, levels = hold_out_levels(plain, 2)
    assert list(levels) == ["level_0.1", "level_0.5", "level_1"]
    chosen = levels["level_1"]["source_id"][:]
    assert len(set(chosen)) == 2
    for name, held in levels.items():
        assert held["source_id"][:] == chosen
        assert {f"level_{level:g}" for level in level_of(held)} == {name}
    assert not set(chosen) & set(train["source_id"][:])  # the siblings are gone, too
    assert len(train) == len(plain) - 2 * (1 + 2 * 3)
    gone = {*train["image_id"][:], *(each for held in levels.values() for each in held["image_id"][:])}
    assert len(gone) == len(train) + 2 * 3
    again = hold_out_levels(plain.shuffle(seed=3), 2)[1]
    assert {name: held["image_id"][:] for name, held in again.items()} == {
        name: held["image_id"][:] for name, held in levels.items()
    }
    others = {tuple(hold_out_levels(plain, 2, seed=seed)[1]["level_1"]["source_id"][:]) for seed in range(8)}
    assert len(others) > 1


def test_the_names_are_those_that_the_curriculum_asks_for(plain):
    _, levels = hold_out_levels(plain, 1)
    wanted = {AdaptiveGuidance().metric.format(level=level) for level in (*LEVELS, 1)}
    assert {f"{name}_probability" for name in levels} == wanted


def test_sources_own_all_levels_or_are_not_taken(plain):
    lone = plain["source_id"][0]
    without = plain.filter(lambda row: not (row["source_id"] == lone and round(row["guidance"], 6) == 0.5))
    train, levels = hold_out_levels(without, 3)
    assert lone not in levels["level_1"]["source_id"][:]
    assert lone in train["source_id"][:]
    message = r"4 sources were asked for and 3 can be held out: .*0\.1: 4, 0\.5: 3, 1: 10.*at most 3"
    with pytest.raises(ValueError, match=message):
        hold_out_levels(without, 4)
    assert len(hold_out_levels(without, 4, levels=(0.1, 1))[1]["level_0.1"]) == 4


def test_the_last_real_image_of_a_class_stays(joined):
    rows = joined.remove_columns("label")
    by_source = {name: 0 if number < 2 else 1 for number, name in enumerate(rows["source_id"][:10])}
    rows = rows.add_column("label", [by_source[source] for source in rows["source_id"][:]])
    train, levels = hold_out_levels(rows, 3)
    assert Counter(levels["level_1"]["label"][:])[0] == 1
    real = np.array(level_of(train)) == 1
    assert set(np.array(train["label"][:])[real]) == {0, 1}
    with pytest.raises(ValueError, match=r"3 can be held out: .*\(4 do, but some are the last real image of their"):
        hold_out_levels(rows, 4)


def test_levels_that_are_not_there(plain):
    with pytest.raises(ValueError, match=r"No image has level 0\.3; the data has the levels 0\.1, 0\.5, 1"):
        hold_out_levels(plain, 1, levels=(0.1, 0.3))
    with pytest.raises(ValueError, match=r"No image has level ; the data has"):
        hold_out_levels(plain, 1, levels=())
    odd = Dataset.from_dict({"image_id": ["a", "b", "c"], "guidance": [1.0, 0.5, None], "source_id": ["a", "a", "c"]})
    train, levels = hold_out_levels(odd, 1)
    assert (list(levels), train["image_id"][:]) == (["level_0.5", "level_1"], ["c"])
    with pytest.raises(ValueError, match="`images=0` holds nothing out"):
        hold_out_levels(plain, 0)
    with pytest.raises(ValueError, match="`guidance` is not in the data"):
        hold_out_levels(plain.remove_columns("guidance"), 1)


def test_distance_is_the_root_mean_square_to_the_source(real, drawn, joined):
    sources = {row["image_id"]: np.asarray(row["image"], np.float64) / 255 for row in real}
    wanted = {level: [] for level in LEVELS}
    for row in drawn:
        apart = np.asarray(row["image"], np.float64) / 255 - sources[row["source_id"]]
        wanted[round(row["guidance"], 6)].append(np.sqrt((apart**2).mean()))
    found = distance_to_source(joined)
    assert list(found) == list(LEVELS)
    assert found == pytest.approx({level: np.mean(each) for level, each in wanted.items()})
    images = [Image.effect_noise(size, 50).convert("RGB") for size in ((8, 8), (16, 16), (16, 16))]
    rows = {"image": images, "guidance": [0.5, 1.0, 1.0], "source_id": ["a", "a", "b"]}
    apart = np.asarray(images[0], np.float64) - np.asarray(images[1].resize((8, 8), Image.Resampling.LANCZOS))
    assert distance_to_source(Dataset.from_dict(rows)) == pytest.approx({0.5: np.sqrt((apart**2).mean()) / 255})
    with pytest.raises(ValueError, match=r"4 sources, .* are not among the real images"):
        distance_to_source(drawn)


def test_the_grid_shows_levels_from_prompt_to_photograph(joined, drawn):
    sheet = np.asarray(spectrum_grid(joined, sources=2, tile=16))
    first = drawn["source_id"][0]
    rows = [
        next(row for row in joined if row["source_id"] == first and round(row["guidance"], 6) == level)
        for level in (*LEVELS, 1)
    ]
    for column, row in enumerate(rows):
        left = 18 + column * (16 + 6)
        assert (sheet[18 + 22 : 18 + 22 + 16, left : left + 16] == np.asarray(row["image"])).all()
    above, below = sheet[18 : 18 + 22], sheet[18 + 22 + 16 + 3 : 18 + 22 + 16 + 22]  # the levels, the first prompt
    assert above.min() < 100
    assert below.min() < 100
    assert spectrum_grid(drawn, sources=[first]).size[0] < spectrum_grid(joined, sources=[first]).size[0]
    assert spectrum_grid(joined, sources=2, tile=16).size == (18 * 2 + 3 * 22 - 6, 18 * 2 + 22 + 2 * (22 + 22))
    with pytest.raises(ValueError, match="No image was generated from 'nobody'"):
        spectrum_grid(joined, sources=["nobody"])
    with pytest.raises(ValueError, match="There are no generated images"):
        spectrum_grid(joined.select(range(10)))
    with pytest.raises(ValueError, match="`source_id` is not in the data"):
        spectrum_grid(Dataset.from_dict({"image": [], "guidance": []}))


class Font:
    """Each letter is ten pixels wide."""

    def getlength(self, text):
        return 10 * len(text)


def test_what_is_written_and_pasted_where(monkeypatch):
    written, sizes = [], []
    monkeypatch.setattr(grid.ImageFont, "load_default", lambda size: sizes.append(size) or Font())
    pen = SimpleNamespace(text=lambda *place, **how: written.append((*place, how)))
    monkeypatch.setattr(grid.ImageDraw, "Draw", lambda sheet: pen)
    noise = [Image.effect_noise((9, 6), 60 + number).convert("RGB") for number in range(6)]
    noise[3] = Image.effect_noise((64, 1), 50).convert("RGB")
    noise[4] = Image.effect_noise((16, 16), 50).convert("RGB")
    rows = {
        "image": noise,
        "guidance": [0.5, 0.1, 0.1, 0.5, 1.0, 0.5],
        "source_id": ["a", "b", "b", "b", "b", "c"],
        "prompt": [None, "a prompt of 22 letters", "other", "third", None, "not shown"],
    }
    data = Dataset.from_dict(rows)
    made = spectrum_grid(data, 2, tile=16)
    how = {"fill": (62, 64, 78), "font": written[0][2]["font"]}
    assert isinstance(how["font"], Font)
    width, height = 2 * 18 + 3 * 22 - 6, 2 * 18 + 22 + 2 * 44
    assert (sizes, made.size) == ([12], (width, height))
    assert written == [
        *(((18, 18), "guidance 0.1", how), ((40, 18), "guidance 0.5", how), ((62, 18), "photograph", how)),
        *(((18, 18 + 22 + 19), "a pro…", how), ((18, 18 + 22 + 44 + 19), "", how)),
    ]
    wanted = Image.new("RGB", made.size, (251, 250, 247))
    near, smooth = Image.Resampling.NEAREST, Image.Resampling.LANCZOS
    wanted.paste(noise[1].resize((16, 11), near), (18, 40))
    wanted.paste(noise[3].resize((16, 1), smooth), (40, 40))
    wanted.paste(noise[4], (62, 40))
    wanted.paste(noise[0].resize((16, 11), near), (40, 84))
    assert made.tobytes() == wanted.tobytes()
    written.clear()
    named = spectrum_grid(data.remove_columns("prompt"), ["c", "b"], tile=16)
    assert named.crop((40, 40, 56, 51)).tobytes() == noise[5].resize((16, 11), near).tobytes()
    assert [text for _, text, _ in written[3:]] == ["", ""]


def test_the_card_shows_the_grid_and_photographs_only_when_asked(real, drawn, joined):
    from hf_curriculum.hub.data_card import DataCard

    for data, thumbnails in ((drawn, False), (joined, False), (joined, True)):
        card = DataCard("me/spectrum", {"train": data}, "train", thumbnails=thumbnails)
        assert "from the prompt to the photograph:\n\n![grid](figures/spectrum.png)" in card.render()
        shown = Image.open(io.BytesIO(card.files()["figures/spectrum.png"]))
        assert shown.size == spectrum_grid(data if thumbnails else drawn).size
    scored = real.add_column("noun_count", [0.0] * 10)
    assert "spectrum.png" not in DataCard("me/real", {"train": scored}, "train")._summary()
