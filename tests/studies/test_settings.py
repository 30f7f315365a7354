"""Presets that begin from others, and the command line that is made of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hf_curriculum import Weighted, curriculum_from
from hf_curriculum.config import read_yaml
from hf_curriculum.studies.settings import parse_settings, read_preset


@dataclass
class Given:
    """A recipe's settings.

    Args:
        rate: how fast.
        size: how large.
    """

    rate: float
    size: int


@pytest.fixture
def presets(tmp_path):
    files = {
        "a/paper.yaml": "rate: 1.0\nsize: 1\n",
        "a/small.yaml": "base: paper\nsize: 2\n",
        "parts/fast.yaml": "rate: 3.0\n",
        "b/paper.yaml": "base: ../a/paper\nsize: 4\n",
        "b/small.yaml": "base: [../a/small, ../parts/fast]\n",
        "b/own.yaml": "base: [../parts/fast, paper]\nsize: 5\n",
        "b/lost.yaml": "base: [paper, ../parts/slow]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("a", "small", {"rate": 1.0, "size": 2}),
        ("b", "paper", {"rate": 1.0, "size": 4}),
        ("b", "small", {"rate": 3.0, "size": 2}),  # the later base holds
        ("b", "own", {"rate": 1.0, "size": 5}),  # its own fields hold against all
    ],
)
def test_presets_begin_from_others(presets, folder, name, expected):
    assert read_preset(name, presets / folder) == expected
    assert read_preset(str(presets / folder / f"{name}.yaml"), presets) == expected


def test_a_base_that_is_not_there(presets):
    with pytest.raises(ValueError, match=r"The preset '../parts/slow' is neither a file nor one of \['lost', 'own'"):
        read_preset("lost", presets / "b")


def test_a_base_is_looked_for_beside_its_preset_alone(presets, monkeypatch):
    monkeypatch.chdir(presets)
    (presets / "paper").write_text("size: 9\n")
    assert read_preset("small", presets / "a") == {"rate": 1.0, "size": 2}


def test_the_options_every_recipe_has(presets):
    settings, options = parse_settings(Given, presets / "a", default="small", argv=["--rate", "7", "--control"])
    assert settings == Given(rate=7.0, size=2)
    assert (options.preset, options.seeds, options.grid, options.compare, options.control) == (
        *("small", [0], {}, False, True),
    )


def test_numbers_with_an_exponent_are_numbers(presets):
    (presets / "a/tiny.yaml").write_text("rate: 1e-5\nsize: 1\n")
    settings, _ = parse_settings(Given, presets / "a", default="tiny", argv=[])
    assert settings.rate == 1e-5
    assert curriculum_from("{type: weighted, temperature: 2.5E2}") == Weighted(temperature=250.0)
    assert read_yaml("[1e3, -.5e-1, 1.e+2, 1e, e5, 0x1e3, '1e3']") == [1000.0, -0.05, 100.0, "1e", "e5", 0x1E3, "1e3"]
