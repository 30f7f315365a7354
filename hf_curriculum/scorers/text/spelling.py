"""Nouns in one form: the singular by spelling rules, or the lemma that WordNet has."""

from __future__ import annotations

from collections.abc import Callable

_PLURALS = """
analyses/analysis atlases/atlas biases/bias busses/bus cacti/cactus calves/calf canvases/canvas children/child
crises/crisis dwarves/dwarf elves/elf feet/foot fungi/fungus gases/gas geese/goose halves/half hooves/hoof irises/iris
knives/knife larvae/larva leaves/leaf lenses/lens lives/life loaves/loaf mantises/mantis men/man mice/mouse
oases/oasis oxen/ox people/person quizzes/quiz rhinoceroses/rhinoceros scarves/scarf selves/self shelves/shelf
teeth/tooth thermoses/thermos thieves/thief topazes/topaz wharves/wharf wives/wife wolves/wolf women/woman
"""
_IRREGULAR = dict(pair.split("/") for pair in _PLURALS.split())
_COMPOUNDS = ("shelves", "wolves", "knives", "wives", "loaves", "children", "women", "men", "feet", "teeth")
"""Plurals that others end in, as `bookshelves`."""
_NO_PLURALS = """
adidas aerobics alias asbestos athletics atlas barracks bias biceps binoculars canvas chaos christmas clothes corps
cosmos crossroads dallas economics eyeglasses gas gymnastics headquarters jeans kansas leggings lens mathematics
mercedes molasses news pajamas pancreas pants physics pliers politics pyjamas rabies rhinoceros scissors series shorts
species starbucks sunglasses texas thames thermos tights tongs triceps trousers tweezers undies vegas abdomen acumen
amen bitumen cyclamen hymen lumen omen ramen regimen semen specimen stamen yemen
"""
_KEPT = frozenset(_NO_PLURALS.split())
"""Words that are no plurals, or have no singular."""
_PLURALS_IN_S = """
aches avalanches axes backaches birdies brownies budgies caches calories canoes collies cookies does earaches foes
genies headaches heartaches hippies hoes hoodies horseshoes magpies moustaches movies mustaches neckties niches oboes
pickaxes pixies prairies psyches quiches rookies selfies shoes smoothies snowshoes stomachaches talkies tiptoes toes
toothaches veggies yuppies zombies alibis bikinis corgis emojis ferraris jacuzzis khakis kiwis martinis minis paninis
rabbis safaris skis taxis tsunamis yetis zucchinis emus gnus gurus menus ads cds djs pcs tvs
"""
_LOSE_S = frozenset(_PLURALS_IN_S.split())
"""Plurals that lose their -s alone where the rules below would take more, or nothing."""
_IN_USE = frozenset(("excuses", "fuses", "muses", "recluses", "ruses", "uses"))
"""Plurals in -uses whose singular is in -use; others are in -us, but for -auses and -ouses."""


def singular(word: str) -> str:
    """The singular of an English noun by spelling rules, to be passed as `normalise`."""
    last = word.rpartition("-")[2]  # "walkie-talkies" are as "talkies"
    if last in _IRREGULAR:
        return word.removesuffix(last) + _IRREGULAR[last]
    if last in _KEPT:
        return word
    if last in _LOSE_S:
        return word[:-1]
    if plural := next(filter(word.endswith, _COMPOUNDS), None):
        return word.removesuffix(plural) + _IRREGULAR[plural]
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("uses") and not word.endswith(("auses", "ouses")) and word not in _IN_USE:
        return word[:-2]
    if word.endswith(("sses", "xes", "ches", "shes", "oes", "tzes", "zzes")):
        return word[:-2]
    return word[:-1]


def wordnet_lemma(word: str) -> str:
    """The lemma of an English noun by NLTK's WordNet; a word that it lacks stays as it is."""
    try:
        from nltk.stem import WordNetLemmatizer
    except ImportError as error:
        raise ImportError(
            "Lemmas by WordNet need NLTK, which is not installed. Run `pip install 'hf-curriculum[text]'`, or leave "
            'them out: `lemmas="spelling"` needs nothing more.'
        ) from error
    try:
        return WordNetLemmatizer().lemmatize(word, "n")
    except LookupError as error:
        raise LookupError(
            "Lemmas by WordNet need its data, and NLTK's `wordnet` is not in its search path. Run "
            "`python -c \"import nltk; nltk.download('wordnet')\"` once, or set NLTK_DATA to a folder that has it; "
            '`lemmas="spelling"` needs no data.'
        ) from error


LEMMAS: dict[str, Callable[[str], str]] = {"spelling": singular, "wordnet": wordnet_lemma}
"""Ways to bring nouns into one form, by name."""
