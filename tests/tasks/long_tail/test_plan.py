"""The plan of a spectrum: how many images and steps, in which order, and what cannot be."""

from __future__ import annotations

import itertools

import pytest
from spectrum_data import labelled_scenes

from hf_curriculum.tasks.long_tail import SpectrumPlan, plan_spectrum
from hf_curriculum.tasks.long_tail.generation.plan import validate_seeds


def plan(sizes=((8, 8),), levels=(0.5,), seeds=(0,), steps=20, **options):
    seeds = seeds if isinstance(seeds, int) else tuple(seeds)
    return SpectrumPlan(tuple(sizes), tuple(levels), seeds, steps, **options)


def test_the_cost_is_that_of_the_papers_setting():
    made = plan([(512, 512)] * 62, (0.1, 0.3, 0.5, 0.7), range(8), 50)
    assert (made.images, made.denoising_steps) == (1984, 59520)
    assert made.summary == "62 hard × 4 levels × 8 seeds = 1,984 images, 59,520 denoising steps"
    assert "  level 0.3: strength 0.7, 35 of 50 steps" in str(made).splitlines()


@pytest.mark.parametrize("steps", [10, 20, 30, 50, 100])
def test_no_level_loses_a_step(steps):
    """1 − 0.9 is 0.09999…, and 0.29 · 100 is 28.99…: `int` as the pipelines take it would lose one, or all."""
    levels = [hundredths / 100 for hundredths in range(100) if (100 - hundredths) * steps >= 100]
    made = plan(levels=levels, steps=steps)
    for level in levels:
        exact = round(100 - 100 * level) * steps // 100
        strength = made.strength_of(level)
        assert made.steps_of(level) == int(steps * strength) == exact, level
        assert strength == pytest.approx(1 - level, abs=1e-12)
        assert strength <= 1


def test_jobs_are_every_combination_once_and_grouped_by_level_and_size():
    sizes = [(16, 8), (8, 8), (16, 8), (8, 8), (8, 8)]
    made = plan(sizes, (0.7, 0.1), (3, 9))
    jobs = [tuple(job) for job in made.jobs().tolist()]
    assert sorted(jobs) == sorted(itertools.product(range(2), range(5), range(2)))
    groups = [key for key, _ in itertools.groupby(jobs, lambda job: (job[0], sizes[job[1]]))]
    assert len(groups) == len(set(groups)) == 4
    assert [source for _, source, _ in jobs[:10:2]] == [1, 3, 4, 0, 2]
    assert made.jobs().dtype == "int64"


def test_level_0_says_that_it_sees_its_source_unless_it_is_made_from_text():
    assert str(plan(levels=(0, 0.5), seeds=(0, 1))).splitlines() == [
        "1 hard × 2 levels × 2 seeds = 4 images, 60 denoising steps",
        "  level 0: strength 1, 20 of 20 steps, still sees its source (from_text=True: the prompt alone)",
        "  level 0.5: strength 0.5, 10 of 20 steps",
    ]
    assert str(plan(levels=(0, 0.5), from_text=True)).splitlines() == [
        "1 hard × 2 levels × 1 seed = 2 images, 30 denoising steps",
        "  level 0: from the prompt alone, 20 of 20 steps",
        "  level 0.5: strength 0.5, 10 of 20 steps",
    ]
    assert str(plan(levels=(0,), steps=1)).splitlines()[0] == "1 hard × 1 level × 1 seed = 1 images, 1 denoising steps"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": (0.1, 1)}, "Level 1 cannot be generated.*real image itself"),
        ({"levels": (-0.1,)}, "Level -0.1 cannot be generated: levels go from 0"),
        ({"levels": (0.1, 0.3, 0.1000000001)}, "Level 0.1 is there twice"),
        ({"levels": ()}, "No level was given"),
        ({"levels": (0.5, 0.96)}, "Level 0.96 of 20 denoising steps leaves none.*at least 25 steps"),
        ({"levels": (0.3, 0.1, 0.3, 0.1)}, "Level 0.1 is there twice"),
        ({"seeds": 0}, "`seeds=0` cannot be"),
        ({"seeds": (1, 1)}, "`seeds=.*none is there twice"),
        ({"seeds": ()}, "`seeds=.*at least one"),
        ({"seeds": (-1,)}, "`seeds=.*none is negative"),
        ({"sizes": ()}, "spectrum of 0 hard images"),
        ({"steps": 0}, "with 0 denoising steps has nothing"),
        ({"from_text": True}, "`from_text` makes level 0"),
    ],
)
def test_what_cannot_be_planned(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**change)


def test_a_plan_of_data_needs_no_pipeline():
    made = plan_spectrum(labelled_scenes(10, 4), levels=(0.1, 0.5), seeds=3)
    assert made == SpectrumPlan(((0, 0),) * 4, (0.1, 0.5), (0, 1, 2), 50)
    assert (made.images, made.denoising_steps) == (4 * 2 * 3, 4 * 3 * (45 + 25))
    options = {"levels": (0, 0.5), "seeds": (4,), "steps": 10, "from_text": True, "allow_all_hard": True}
    made = plan_spectrum(labelled_scenes(2, 2), **options)
    assert made == SpectrumPlan(((0, 0),) * 2, (0, 0.5), (4,), 10, from_text=True)


def test_seeds_fit_into_a_column():
    assert validate_seeds([2**63 - 1]) == (2**63 - 1,)
    with pytest.raises(ValueError, match="each seed makes one image"):
        validate_seeds([2**63])
