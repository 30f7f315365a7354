"""Singulars by spelling rules."""

from __future__ import annotations

import pytest

from hf_curriculum.scenes.vocabulary import NOUNS, plural
from hf_curriculum.scorers.text.nouns import singular

NO_PLURALS = """
adidas alias atlas barracks bias biceps binoculars bus canvas chaos chassis chess christmas clothes corps gas glass
gymnastics headquarters iris jeans kansas lens mercedes molasses news octopus pajamas pancreas pants physics pliers
ramen rhinoceros scissors series shorts species specimen starbucks sunglasses tennis texas thames thermos tongs
trellis trousers tweezers vegas
"""
SINGULARS = """
aches/ache analyses/analysis atlases/atlas axes/axe babies/baby beaches/beach berries/berry bikinis/bikini
bookshelves/bookshelf boxes/box brownies/brownie buses/bus cactuses/cactus canvases/canvas causes/cause cookies/cookie
dishes/dish grandchildren/grandchild headaches/headache hoes/hoe horses/horse horseshoes/horseshoe houses/house
kiwis/kiwi lenses/lens minibuses/minibus muses/muse mustaches/mustache nurses/nurse octopuses/octopus
penknives/penknife pies/pie policewomen/policewoman potatoes/potato safaris/safari selfies/selfie skis/ski taxis/taxi
ties/tie toes/toe veggies/veggie viruses/virus waves/wave werewolves/werewolf zombies/zombie avocados/avocado
birdies/birdie blouses/blouse breezes/breeze buzzes/buzz cacti/cactus cavemen/caveman cds/cd corpses/corpse
crises/crisis daisies/daisy echoes/echo elves/elf emus/emu excuses/excuse firemen/fireman foxes/fox forefeet/forefoot
gases/gas glasses/glass gloves/glove halves/half handkerchiefs/handkerchief irises/iris larvae/larva leaves/leaf
loaves/loaf mantises/mantis mattresses/mattress meatloaves/meatloaf menus/menu moustaches/moustache noses/nose
oases/oasis olives/olive oxen/ox policemen/policeman quizzes/quiz rhinoceroses/rhinoceros roofs/roof
sandwiches/sandwich shelves/shelf sizes/size skies/sky sleeves/sleeve snowmen/snowman suitcases/suitcase thieves/thief
tomatoes/tomato tvs/tv walkie-talkies/walkie-talkie walruses/walrus waltzes/waltz t-shirts/t-shirt
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
