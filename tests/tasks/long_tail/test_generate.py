"""Algorithm 1: which images are drawn, from what noise, at which strength, whatever the batches and the processes."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import ClassLabel, Dataset, Value
from datasets import Image as ImageFeature
from spectrum_data import labelled_scenes, tiny_pipeline

from hf_curriculum import CaptionLength, CLIPSimilarity
from hf_curriculum.config import digest
from hf_curriculum.provenance import column_provenance
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.tasks.long_tail import Retry, SpectrumPlan, generate_spectrum
from hf_curriculum.tasks.long_tail.generation import generate
from hf_curriculum.tasks.long_tail.generation.generate import hard_images, noise_seed

LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def pipeline():
    return tiny_pipeline()


@pytest.fixture(scope="module")
def data():
    return labelled_scenes(10, 4)


def spectrum(data, pipeline, folder, **options):
    given = {"prompts": "a {name}", "levels": LEVELS, "seeds": (10, 20), "steps": 10, **options}
    return generate_spectrum(data, pipeline, folder=folder, **given)


def pixels(made):
    """Image id → pixels."""
    return {name: np.asarray(image) for name, image in zip(made["image_id"][:], made["image"][:], strict=True)}


def assert_alike(one, other, apart=0):
    one, other = pixels(one), pixels(other)
    assert one.keys() == other.keys()
    assert max(int(np.abs(one[name].astype(int) - other[name]).max()) for name in one) <= apart


def test_a_damaged_spectrum_is_made_again_from_its_parts(data, pipeline, tmp_path):
    options = {"levels": (0.5,), "seeds": 1, "steps": 2}
    wanted = pixels(spectrum(data, pipeline, tmp_path, **options))
    file = tmp_path / generate.FILE
    whole = file.read_bytes()
    for place in (40, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        again = pixels(spectrum(data, pipeline, tmp_path, **options))
        assert all(np.array_equal(again[name], wanted[name]) for name in wanted)
        assert file.read_bytes() == whole


def test_every_hard_image_at_every_level_with_every_seed(data, pipeline, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "hf_curriculum.tasks.long_tail.generation"):
        made = spectrum(data, pipeline, tmp_path)
    assert len(made) == 4 * 3 * 2
    assert "4 hard × 3 levels × 2 seeds = 24 images, 120 denoising steps" in caplog.text
    assert "The first batch says: about" in caplog.text
    columns = ["image", "label", "caption", "image_id", "guidance", "hard", "source_id", "seed", "prompt"]
    assert made.column_names == columns
    found = {(row["source_id"], round(row["guidance"], 6), row["seed"]) for row in made.remove_columns("image")}
    hard = data.select(range(4))
    assert found == {(name, level, seed) for name in hard["image_id"][:] for level in LEVELS for seed in (10, 20)}
    assert len(set(made["image_id"][:])) == 24
    names = dict(zip(hard["image_id"][:], hard["name"][:], strict=True))
    labels = dict(zip(hard["image_id"][:], hard["label"][:], strict=True))
    for row in made:
        assert row["prompt"] == row["caption"] == f"a {names[row['source_id']]}"
        assert (row["label"], row["hard"], row["image"].size) == (labels[row["source_id"]], True, (16, 16))
    assert made.features["label"] == data.features["label"]
    assert np.float32(0.1) in made.with_format("numpy")["guidance"][:]


def test_an_image_is_what_the_pipeline_draws_alone(data, pipeline, tmp_path):
    """The reference: one call for one image, its noise by BLAKE2b of its source and its seed alone."""
    made = spectrum(data, pipeline, tmp_path)
    sources = {row["image_id"]: row for row in data}
    for row in made:
        key = json.dumps(["noise", row["source_id"], row["seed"], 0]).encode()
        seed = int(hashlib.blake2b(key, digest_size=8).hexdigest(), 16) >> 1
        assert seed == noise_seed(row["source_id"], row["seed"])
        alone = pipeline(
            row["prompt"],
            image=sources[row["source_id"]]["image"],
            strength={0.1: 0.9, 0.5: 0.5, 0.9: 0.1}[round(row["guidance"], 6)],
            num_inference_steps=10,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        assert np.abs(np.asarray(alone).astype(int) - np.asarray(row["image"])).max() <= 1


def test_batches_change_nothing(data, pipeline, tmp_path):
    one = spectrum(data, pipeline, tmp_path / "1", batch_size=1)
    sixteen = spectrum(data, pipeline, tmp_path / "16", batch_size=16)
    assert_alike(one, sixteen, apart=1)
    assert_alike(spectrum(data, pipeline, tmp_path / "parts", batch_size=16, part_images=5), sixteen, apart=1)


def test_the_order_of_the_data_changes_nothing(data, pipeline, tmp_path):
    shuffled = data.select([9, 3, 1, 8, 0, 2, 7])
    assert_alike(spectrum(shuffled, pipeline, tmp_path / "a"), spectrum(data, pipeline, tmp_path / "b"), apart=1)


def test_noise_is_the_same_at_every_level_and_differs_by_source_and_seed(data, pipeline, tmp_path, monkeypatch):
    drawn = []
    inner = type(pipeline).__call__

    def spy(self, prompt, image=None, strength=0.8, num_inference_steps=20, guidance_scale=2.5, generator=None):
        drawn.append((strength, [one.initial_seed() for one in generator]))
        assert all(one.device.type == "cpu" for one in generator)
        return inner(self, prompt, image, strength, num_inference_steps, guidance_scale, generator=generator)

    monkeypatch.setattr(type(pipeline), "__call__", spy)
    spectrum(data, pipeline, tmp_path)
    assert [strength for strength, _ in drawn] == [0.9, 0.5, 0.1]
    assert drawn[0][1] == drawn[1][1] == drawn[2][1]
    assert len(set(drawn[0][1])) == 8


def test_sizes_are_not_mixed(pipeline, tmp_path):
    images = [PIL.Image.new("RGB", size, "red") for size in [(16, 8), (8, 8), (16, 8), (8, 16), (8, 8)]]
    rows = {"image": images, "image_id": list("abcde"), "hard": [True] * 5}
    made = spectrum(Dataset.from_dict(rows), pipeline, tmp_path, prompts="a ball", allow_all_hard=True)
    sizes = {name: image.size for name, image in zip(made["source_id"][:], made["image"][:], strict=True)}
    assert sizes == {"a": (16, 8), "b": (8, 8), "c": (16, 8), "d": (8, 16), "e": (8, 8)}
    assert "label" not in made.column_names


def test_sources_are_resized_only_when_asked(pipeline, tmp_path):
    images = [PIL.Image.new("RGB", (45, 30), "red"), PIL.Image.new("RGB", (30, 61), "red")]
    data = Dataset.from_dict({"image": images, "image_id": ["a", "b"], "hard": [True, True]})
    options = {"prompts": "a ball", "allow_all_hard": True, "seeds": 1, "levels": (0.5,)}
    with pytest.raises(ValueError, match=r"2 of 2 hard images, .* 'a' with 45 × 30 .* no multiples of 2"):
        spectrum(data, pipeline, tmp_path / "none", **options)
    made = spectrum(data, pipeline, tmp_path / "short", resize=8, **options)
    assert [image.size for image in made.sort("source_id")["image"]] == [(12, 8), (8, 16)]
    made = spectrum(data, pipeline, tmp_path / "both", resize=(12, 10), **options)
    assert [image.size for image in made["image"]] == [(12, 10)] * 2


def test_level_0_from_text_alone_does_not_see_its_source(data, pipeline, tmp_path):
    other = data.map(lambda row: {"image": row["image"].rotate(180)})
    for from_text in (False, True):
        options = {"levels": (0, 0.5), "from_text": from_text, "seeds": 1}
        one = pixels(spectrum(data, pipeline, tmp_path / f"{from_text} one", **options))
        two = pixels(spectrum(other, pipeline, tmp_path / f"{from_text} two", **options))
        apart = {name: int(np.abs(one[name].astype(int) - two[name]).max()) for name in one}
        assert all(distance > 0 for name, distance in apart.items() if "guidance-0.5" in name)
        assert (max(distance for name, distance in apart.items() if "guidance-0/" in name) == 0) == from_text


def test_several_captions_of_an_image_are_several_sources(pipeline, tmp_path):
    image = PIL.Image.new("RGB", (8, 8), "red")
    rows = {"image": [image] * 2, "image_id": ["a"] * 2, "hard": [True] * 2, "caption": ["a ball", "a red ball"]}
    made = spectrum(
        Dataset.from_dict(rows), pipeline, tmp_path, prompts="{caption}", seeds=1, levels=(0.5,), allow_all_hard=True
    )
    assert made["caption"][:] == made["prompt"][:] == ["a ball", "a red ball"]
    assert made["image_id"][:] == ["a/guidance-0.5/seed-0", "a#1/guidance-0.5/seed-0"]
    assert made["source_id"][:] == ["a", "a"]


def test_provenance_is_in_the_column(data, pipeline, tmp_path):
    made = column_provenance(spectrum(data, pipeline, tmp_path, seeds=1), "guidance")
    assert (made.scorer, made.model, made.easy) == ("generate_spectrum", "PixelDiffusionPipeline", "low")
    facts = {"pipeline": "PixelDiffusionPipeline", "scheduler": "DDIMScheduler", "steps": 10, "lora": None, "hard": 4}
    assert facts.items() <= made.arguments.items()
    assert {"torch", "diffusers", "transformers"} <= set(made.versions)


class Brightness(Scorer):
    """Mean brightness, for tests of tries."""

    columns, name, easy = ("image", "caption"), "brightness", "high"
    image_column, caption_column = "image", "caption"
    texts: tuple[str, ...] = ()

    def score(self, batch, rank):
        Brightness.texts += tuple(batch["caption"])
        return np.array([np.asarray(image).mean() for image in batch["image"]], np.float32)


def test_the_best_of_several_tries_is_kept(data, pipeline, tmp_path):
    def brightness(made):
        return {name: image.mean() for name, image in pixels(made).items()}

    options = {"levels": (0.1,), "seeds": 4}
    first = brightness(spectrum(data, pipeline, tmp_path / "first", **options))
    middle = float(np.median(list(first.values())))
    retry = Retry(Brightness(), at_least=middle, tries=4, prompt="a photo of {label}")
    Brightness.texts = ()
    made = brightness(spectrum(data, pipeline, tmp_path / "retry", retry=retry, **options))
    assert {text.removeprefix("a photo of ") for text in Brightness.texts} <= set(data.features["label"].names)
    never = brightness(
        spectrum(data, pipeline, tmp_path / "never", retry=Retry(Brightness(), at_least=1e9, tries=4), **options)
    )
    improved = 0
    for name, value in first.items():
        assert never[name] >= made[name] - 1e-6
        if value >= middle:
            assert made[name] == value
        else:
            assert made[name] >= value
            improved += made[name] > value
    assert improved > 0
    assert len(Brightness.texts) > len(first)


def test_a_try_without_a_score_is_worse_than_any(data, pipeline, tmp_path):
    class First(Brightness):
        """No score for a first try, one below 0 for all others."""

        seen = 0

        def score(self, batch, rank):
            First.seen += 1
            return np.full(len(batch["image"]), np.nan if First.seen == 1 else -1.0)

    options = {"levels": (0.1,), "seeds": 1}
    first = pixels(spectrum(data, pipeline, tmp_path / "first", **options))
    made = spectrum(data, pipeline, tmp_path / "made", retry=Retry(First(), at_least=0, tries=2), **options)
    assert First.seen == 2
    assert not any(np.array_equal(image, first[name]) for name, image in pixels(made).items())


def test_a_run_goes_on_where_it_stopped_and_another_plan_is_refused(data, pipeline, tmp_path, monkeypatch):
    whole = spectrum(data, pipeline, tmp_path / "whole", part_images=8)
    inner, calls = type(pipeline).__call__, []

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inner(self, *args, **kwargs)

    failing.__signature__ = inspect.signature(inner)
    monkeypatch.setattr(type(pipeline), "__call__", failing)
    with pytest.raises(KeyboardInterrupt):
        spectrum(data, pipeline, tmp_path / "stopped", part_images=8)
    assert [file.name for file in sorted((tmp_path / "stopped").glob("part*"))] == ["part-00000-of-00003.parquet"]
    calls.clear()
    calls.extend([1, 1])
    again = spectrum(data, pipeline, tmp_path / "stopped", part_images=8)
    assert len(calls) == 2 + 2
    assert (tmp_path / "stopped" / "spectrum.arrow").read_bytes() == (tmp_path / "whole/spectrum.arrow").read_bytes()
    assert_alike(again, whole)
    for change in (
        {"levels": (0.1, 0.5)},
        {"steps": 20},
        {"prompts": "a photo of {label}"},
        {"seeds": 2},
        {"batch_size": 3},
    ):
        with pytest.raises(ValueError, match="holds parts of another run"):
            spectrum(data, pipeline, tmp_path / "stopped", part_images=8, **change)
    with pytest.raises(ValueError, match=r"holds parts of another run: .*weights was"):
        spectrum(data, tiny_pipeline(seed=1), tmp_path / "stopped", part_images=8)
    shutil.rmtree(tmp_path / "stopped")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "a second"), (1.5, "2 seconds"), (59, "59 seconds"), (90, "1.5 minutes")),
        *((5400, "90.0 minutes"), (5401, "1.5 hours"), (7200, "2.0 hours")),
    ],
)
def test_an_estimate_is_in_a_unit_that_says_something(seconds, text, caplog, monkeypatch):
    now = iter([0.0, seconds / 10])
    monkeypatch.setattr(generate, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    with caplog.at_level(logging.INFO):
        clock = generate._Clock(100, SimpleNamespace(update=lambda images: None))
        clock.tick(1, 10)
        clock.tick(1, 10)
    assert caplog.messages == [f"The first batch says: about {text} for the 100 denoising steps of this process."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.remove_columns("hard"), "`hard` is not in the data.*mark_hard"),
        (lambda data: data.remove_columns("image_id"), "`image_id` is not in the data"),
        (lambda data: data.select(range(4, 10)), "None of 6 images is hard"),
        (lambda data: data.select(range(4)), "All 4 images are hard.*allow_all_hard"),
        (lambda data: data.add_column("guidance", [0.5] * 10), "images have a `guidance` below 1"),
        (lambda data: data.map(lambda row: {"image_id": ""}), "`image_id` is empty"),
        (lambda data: data.remove_columns("image_id").add_column("image_id", [*range(10)]), "or no text"),
        (lambda data: data.add_column("guidance", [None] + [1.0] * 9), "images have a `guidance` below 1"),
    ],
)
def test_data_that_cannot_be_drawn_from(data, change, message):
    with pytest.raises(ValueError, match=message):
        hard_images(change(data))


def test_hard_images_of_real_ones_that_were_joined_once(data):
    assert hard_images(data.add_column("guidance", [1.0] * 10))["image_id"][:] == data["image_id"][:4]
    assert len(hard_images(data.select([0]), allow_all_hard=True)) == 1


def test_a_source_that_cannot_be_read_is_named_before_anything_is_drawn(data, pipeline, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    rows = {"image": [str(tmp_path / "broken.png")] * 2, "image_id": ["x", "y"], "hard": [True, False]}
    broken = Dataset.from_dict(rows).cast_column("image", ImageFeature())
    with pytest.raises(ValueError, match=r"The hard image 'x' cannot be read: .*broken\.png"):
        spectrum(broken, pipeline, tmp_path / "out", prompts="a ball")
    assert not (tmp_path / "out").exists()


def test_options_that_cannot_be(data, pipeline, tmp_path, monkeypatch):
    with pytest.raises(TypeError, match=r"was given a dict of the splits .* as `data`"):
        spectrum({"train": data}, pipeline, tmp_path)
    for wrong in ({"batch_size": 0}, {"part_images": 0}):
        with pytest.raises(ValueError, match="are at least 1 image"):
            spectrum(data, pipeline, tmp_path, **wrong)
    for resize in (None, 1, (1, 1), [1, 1]):
        generate._validate_options(data, 1, 1, resize)
    for resize in (0, (), (16,), (16, 0), (16, 16, 16)):
        with pytest.raises(ValueError, match=rf"`resize={re.escape(repr(resize))}` was given"):
            spectrum(data, pipeline, tmp_path, resize=resize)
    several = data.add_column("caption", [["a ball", "a cup"]] * len(data))
    with pytest.raises(ValueError, match=r"each generated image takes the one caption .*remove_columns\('caption'\)"):
        spectrum(several, pipeline, tmp_path)
    with pytest.raises(ValueError, match=r"CaptionLength.* was given to compare generated images"):
        Retry(CaptionLength(), at_least=1)
    for strange in (None, Brightness, type("Two", (Brightness,), {"outputs": ("one", "two")})()):
        with pytest.raises(ValueError, match="was given to compare generated images"):
            Retry(strange, at_least=1)
    with pytest.raises(ValueError, match="`tries=1` draws nothing again"):
        Retry(CLIPSimilarity(), at_least=0.3, tries=1)
    with pytest.raises(ValueError, match="1 classes have no prompt"):
        spectrum(data, pipeline, tmp_path, prompts=dict.fromkeys(data.features["label"].names[1:], "a"))
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"hf-curriculum\[diffusion\]"):
        spectrum(data, "scenes_diffusion", tmp_path)


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {helpers!r})
import torch
torch.set_num_threads(1)
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline, generate_spectrum
from spectrum_data import labelled_scenes, tiny_pipeline

folder, after = sys.argv[1], int(sys.argv[2])
inner, calls = PixelDiffusionPipeline.encode_prompt, []

def encode_prompt(self, prompts):
    calls.append(1)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(self, prompts)

PixelDiffusionPipeline.encode_prompt = encode_prompt
made = generate_spectrum(
    labelled_scenes(10, 4), tiny_pipeline(), prompts="a {{name}}", levels=(0.1, 0.5, 0.9), seeds=2, steps=10,
    folder=folder, part_images=4, timeout=60,
)
print(len(made), len(calls))
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "draw.py"
    file.write_text(PROGRAM.format(helpers=str(Path(__file__).parents[2] / "helpers")))
    return file


@pytest.mark.slow
def test_killed_and_ended_by_two_processes_the_same_bytes(program, launch, tmp_path):
    assert launch(program, tmp_path / "one", -1).stdout.split() == ["24", "6"]
    killed = launch(program, tmp_path / "killed", 3, check=False)
    assert killed.returncode == -9
    assert len(list((tmp_path / "killed").glob("part*"))) == 2
    both = launch(program, tmp_path / "killed", -1, processes=2)
    assert sorted(both.stdout.split()) == ["2", "2", "24", "24"]
    one, other = (tmp_path / name / "spectrum.arrow" for name in ("one", "killed"))
    assert one.read_bytes() == other.read_bytes()


def test_other_classes_are_another_run(data, pipeline, tmp_path):
    options = {"prompts": "{name}", "levels": (0.5,), "seeds": 1, "steps": 2, "label_column": "species"}
    species = data.rename_column("label", "species")
    made = spectrum(species.with_format("arrow"), pipeline, tmp_path, **options)
    assert made.features["label"] == data.features["label"]
    other = species.cast_column("species", ClassLabel(names=data.features["label"].names[::-1]))
    with pytest.raises(ValueError, match="holds parts of another run: classes was"):
        spectrum(other, pipeline, tmp_path, **options)


def test_features_of_the_columns(data, pipeline, tmp_path):
    made = spectrum(data, pipeline, tmp_path, seeds=1, levels=(0.5,))
    assert made.features["guidance"].dtype == "float32"
    assert made.features["seed"] == Value("int64")
    assert made.features["hard"] == Value("bool")


class Drawer:
    """In place of `ImageToImage`: grey images as bright as their number, or as `shades` say, and what it was given."""

    name, revision, steps, factor, flagged = "drawer", "r1", 4, 2, 0
    made: ClassVar[list] = []

    def __init__(self, pipeline, **options):
        self.given, self.calls, self.checked, self.shades = (pipeline, options), [], [], iter(range(1, 256))
        Drawer.made.append(self)

    def __call__(self, prompts, images, size, strength, seeds):
        self.calls.append((prompts, None if images is None else len(images), size, strength, seeds))
        return [PIL.Image.new("RGB", size, (next(self.shades),) * 3) for _ in prompts]

    def validate_distribution(self, prompts, images):
        self.checked.append((prompts, [image.size for image in images]))

    def describe(self):
        return {"weights": "w", "steps": self.steps}

    def versions(self):
        return {"torch": "2"}


@pytest.fixture
def drawer(monkeypatch):
    monkeypatch.setattr(generate, "ImageToImage", Drawer)
    monkeypatch.setattr(Drawer, "made", [])
    return Drawer


def squares(count):
    rows = {"image": [PIL.Image.new("RGB", (2, 2))] * count, "image_id": [f"i{number}" for number in range(count)]}
    return Dataset.from_dict({**rows, "hard": [True] * count})


def test_every_option_goes_to_the_pipeline_and_64_sources_are_looked_at(drawer, tmp_path):
    options = {"revision": "v", "lora": "l", "dtype": "float16", "steps": 4, "guidance_scale": 2.0}
    options |= {"arguments": {"eta": 1}, "from_text": True}
    rest = {"levels": (0, 0.5), "seeds": 1, "allow_all_hard": True, "part_images": 200, "batch_size": 50}
    made = spectrum(squares(66), "any", tmp_path, prompts="{image_id}", **options, **rest)
    (only,) = drawer.made
    assert only.given == ("any", options)
    assert only.checked == [([f"i{number}" for number in range(64)], [(2, 2)] * 64)]
    assert [(len(prompts), images, size, strength) for prompts, images, size, strength, _ in only.calls] == [
        *((50, None, (2, 2), 1), (16, None, (2, 2), 1), (50, 50, (2, 2), 0.5), (16, 16, (2, 2), 0.5))
    ]
    assert [np.asarray(image)[0, 0, 0] for image in made["image"]] == [*range(1, 133)]


def test_the_bar_and_the_estimate_count_what_is_missing(drawer, tmp_path, monkeypatch, caplog):
    bars = []

    class Bar:
        def __init__(self, **options):
            self.options, self.updates = options, []
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *exception): ...

        def update(self, images):
            self.updates.append(images)

    monkeypatch.setattr(generate, "tqdm", Bar)
    now = iter([0.0, 30.0, 0.0, 10.0, 0.0])
    monkeypatch.setattr(generate, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    options = {"prompts": "a", "levels": (0.25, 0.5), "seeds": 2, "steps": 4, "allow_all_hard": True}
    options |= {"batch_size": 2, "part_images": 5}
    with caplog.at_level(logging.INFO):
        spectrum(squares(3), "any", tmp_path, **options)
        (tmp_path / "spectrum.arrow").unlink()
        (tmp_path / "part-00001-of-00003.parquet").unlink()
        spectrum(squares(3), "any", tmp_path, **options)
    about = {"desc": "Generating images", "unit": "image", "disable": None}
    assert [(bar.options, bar.updates) for bar in bars] == [
        ({"total": 12, **about}, [2, 2, 1, 1, 2, 2, 2]),
        ({"total": 5, **about}, [1, 2, 2]),
    ]
    assert [message for message in caplog.messages if "batch says" in message] == [
        "The first batch says: about 2.5 minutes for the 30 denoising steps of this process.",
        "The first batch says: about 37 seconds for the 11 denoising steps of this process.",
    ]
    written = (tmp_path / "spectrum.arrow").stat().st_mtime_ns
    spectrum(squares(3), "any", tmp_path, **options)
    assert (tmp_path / "spectrum.arrow").stat().st_mtime_ns == written


def test_two_processes_one_after_the_other(drawer, tmp_path):
    options = {"prompts": "a", "levels": (0.5,), "allow_all_hard": True, "part_images": 2, "timeout": 0.0}
    for rank, left in ((1, "part-00000-of-00003"), (0, "part-00000-of-00002")):
        folder = tmp_path / str(rank)
        with pytest.raises(TimeoutError, match=rf"first of them {left if rank else 'part-00001-of-00003'}\.parquet"):
            spectrum(squares(3), "any", folder, rank=rank, world_size=2, **options)
        assert len(list(folder.glob("part-*"))) == (1 if rank else 2)
        assert not (folder / "spectrum.arrow").exists()
    for rank in (0, 1):
        assert len(spectrum(squares(3), "any", tmp_path / "1", rank=rank, world_size=2, **options)) == 6
    assert [len(each.calls) for each in drawer.made] == [1, 2, 2, 0]


class Scripted(Brightness):
    """Scores as listed, in the order in which images are drawn."""

    scores: ClassVar[list] = []

    def score(self, batch, rank):
        return np.array([Scripted.scores.pop(0) for _ in batch["image"]], np.float32)


def test_the_last_try_is_the_first_that_is_good_enough_and_of_equals_the_first_is_kept(drawer, tmp_path, caplog):
    # of three images one is good at once, one exactly so at its second try, one never: its first two tries are equal
    Scripted.scores = [0.75, 0.25, 0.125, 0.5, 0.125, 0.0]
    retry = Retry(Scripted(), at_least=0.5, tries=3)
    with caplog.at_level(logging.INFO):
        made = spectrum(
            squares(3), "any", tmp_path, prompts="a", seeds=1, levels=(0.5,), allow_all_hard=True, retry=retry
        )
    assert [np.asarray(image)[0, 0, 0] for image in made["image"]] == [1, 4, 3]
    assert Scripted.scores == []
    assert caplog.messages[-1] == "1 of 3 images are a second try or a later one."
    keys = [seeds for *_, seeds in drawer.made[0].calls]
    assert keys == [
        [noise_seed("i0", 10 * 0, 0), noise_seed("i1", 0, 0), noise_seed("i2", 0, 0)],
        [noise_seed("i1", 0, 1), noise_seed("i2", 0, 1)],
        [noise_seed("i2", 0, 2)],
    ]


def test_nothing_half_written_stays(drawer, tmp_path, monkeypatch):
    def fails(*given):
        raise MemoryError

    monkeypatch.setattr(generate, "_columns", fails)
    with pytest.raises(MemoryError):
        spectrum(squares(1), "any", tmp_path, prompts="a", levels=(0.5,), allow_all_hard=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["part-00000-of-00001.parquet", "run.json"]


def test_what_parts_have_to_agree_in(drawer, tmp_path):
    plan = SpectrumPlan(((2, 2),), (0.5,), (0,), 4)
    retry = Retry(Brightness(), at_least=0.5, tries=3)
    made = Drawer("any")
    made.name = str(tmp_path)
    run = generate._Run(plan, made, [0], [("a",)], retry, [("b",)], 2)
    assert run.manifest == {
        "levels": (0.5,),
        "seeds": (0,),
        "from_text": False,
        "name": tmp_path.name,
        "revision": "r1",
        "sizes": digest("[[2, 2]]"),
        "prompts": digest('[["a"]]'),
        "weights": "w",
        "steps": 4,
        "versions": {"torch": "2"},
        "retry": {
            "scorer": Brightness().describe().to_json(),
            "at_least": 0.5,
            "tries": 3,
            "prompts": digest('[["b"]]'),
        },
    }
    found = run.provenance()
    assert (found.model, found.revision, found.versions) == (tmp_path.name, "r1", {"torch": "2"})
    kept = {name: value for name, value in run.manifest.items() if name not in ("name", "revision", "versions")}
    assert found.arguments == {**kept, "levels": [0.5], "seeds": [0], "hard": 1}


def test_sources_as_the_pipeline_gets_them(tmp_path):
    images = [PIL.Image.effect_noise((9, 3), 50).convert("RGB"), PIL.Image.new("RGB", (6, 4))]
    rows = Dataset.from_dict({"image": images, "image_id": ["a", "b"]})
    for resize, sizes in ((1, ((4, 2), (2, 2))), (3, ((8, 4), (4, 4))), ((2, 6), ((2, 6),) * 2)):
        found = generate.Sources(rows, resize, 2)
        assert found.sizes == sizes
        assert found[0] is found[0]
        np.testing.assert_array_equal(found[0], images[0].resize(sizes[0], PIL.Image.Resampling.LANCZOS))
        assert found._cached.cache_info().maxsize == 64
    with pytest.raises(ValueError, match=r"1 of 2 hard images, .* 'a' with 9 × 3 pixels.* such as 4\."):
        generate.Sources(rows, None, 2)
    stored = generate.Sources(rows.cast_column("image", ImageFeature(decode=False)), (2, 2), 1)
    assert stored[1].size == (2, 2)
