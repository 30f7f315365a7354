"""Singulars by spelling rules."""

from __future__ import annotations

import pytest

from hf_curriculum.scenes.vocabulary import NOUNS, plural
from hf_curriculum.scorers.text.spelling import singular

NO_PLURALS = """
adidas atlas bus canvas chess christmas gas glass iris kansas lens mercedes news octopus pajamas pants series species
starbucks tennis texas thames vegas
"""
SINGULARS = """
aches/ache axes/axe babies/baby beaches/beach berries/berry bikinis/bikini bookshelves/bookshelf boxes/box
brownies/brownie buses/bus cactuses/cactus canvases/canvas causes/cause cookies/cookie dishes/dish
grandchildren/grandchild headaches/headache hoes/hoe horses/horse horseshoes/horseshoe houses/house kiwis/kiwi
lenses/lens minibuses/minibus muses/muse mustaches/mustache nurses/nurse octopuses/octopus penknives/penknife pies/pie
policewomen/policewoman potatoes/potato safaris/safari selfies/selfie skis/ski taxis/taxi ties/tie toes/toe
veggies/veggie viruses/virus waves/wave werewolves/werewolf zombies/zombie
"""


@pytest.mark.parametrize(
    ("word", "expected"),
    [*((word, word) for word in NO_PLURALS.split()), *(pair.split("/") for pair in SINGULARS.split())],
)
def test_one_form_of_each_noun(word, expected):
    assert singular(word) == expected
    assert singular(expected) == expected


@pytest.mark.parametrize("noun", NOUNS)
def test_nouns_of_the_scenes_keep_the_lemmas_that_published_figures_are_of(noun):
    assert singular(plural(noun)) == singular(noun) == noun
