"""Every public function that takes data meets each other shape of data: it works, or one sentence says what to give.

A function that is added later is found by its parameters. It compares them with `@validate_arguments`, or fails
`test_every_function_that_takes_data_compares_its_arguments`. One that takes further shapes has a line in `ACCEPTS`.
`pytest tests/test_shapes_of_data.py -s` prints the table of functions and shapes.
"""

import importlib
import inspect
import pkgutil
import re
import sys
import traceback
from pathlib import Path
from typing import Any, get_origin

import datasets
import numpy as np
import pandas as pd
import pytest
import tiny_models as TINY
import torch
from any_scorer import NAMES, build
from any_scorer import data as scorer_rows
from datasets import Dataset, DatasetDict

import hf_curriculum as hf
from hf_curriculum import shapes
from hf_curriculum.data.captions import drop_empty_captions
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.scored_data import describe_scores, write_provenance
from hf_curriculum.scorers.alignment.norm_sim import NormSim
from hf_curriculum.scorers.influence import Influence
from hf_curriculum.scorers.text.pos_tagger import PosTagger
from hf_curriculum.scoring.per_image import add_embeddings
from hf_curriculum.tasks import alignment, babylm, captioning, detection, long_tail
from hf_curriculum.tasks.captioning.metrics.metrics import caption_metrics

ROOT = Path(hf.__file__).parent
TASKS = (alignment, babylm, captioning, detection, long_tail)
TEXTS = {"texts", "sentences", "captions", "references"}


def rows():
    """Two captions of two images, with what scorers, labels and metrics read."""
    data = scorer_rows(2).add_column("text", ["a red ball", "two dogs"])
    return attach_provenance(
        data.add_column("length", np.float32([3, 6])), {"length": ScoreProvenance("length", "by hand", easy="low")}
    )


class TorchRows(torch.utils.data.Dataset):
    """A map-style data set of torch."""

    def __len__(self):
        return 2

    def __getitem__(self, row):
        return {"caption": ["a dog", "a cat"][row]}


class TorchStream(torch.utils.data.IterableDataset):
    """A data set of torch without rows by number."""

    def __iter__(self):
        return iter([{"caption": "a dog"}])


def make_shapes():
    """Name → data of a shape that is no `Dataset`; each is made anew, because some are read once."""
    data = rows()
    table = data.with_format("arrow")[:]
    return {
        "DatasetDict": DatasetDict(train=data, validation=data),
        "IterableDataset": data.to_iterable_dataset(),
        "IterableDatasetDict": datasets.IterableDatasetDict(train=data.to_iterable_dataset()),
        "dict of data sets": {"train": data, "validation": data},
        "dict of columns": {"caption": ["a dog", "a cat"], "image_id": ["0", "1"]},
        "one row": {"caption": "a dog", "image_id": "0"},
        "list of rows": [{"caption": "a dog", "image_id": "0"}],
        "list of data sets": [data, data],
        "list of texts": ["a dog", "a cat"],
        "generator": (row for row in [{"caption": "a dog"}]),
        "pandas": pd.DataFrame({"caption": ["a dog"]}),
        "pandas column": pd.Series(["a dog"]),
        "pyarrow": table,
        "polars": type("DataFrame", (), {"__module__": "polars.dataframe"})(),
        "array": np.arange(2.0),
        "path": Path("captions.csv"),
        "text": "captions.csv",
        "None": None,
        "torch": TorchRows(),
        "torch stream": TorchStream(),
        "loader": torch.utils.data.DataLoader(TorchRows()),
        "class": hf.CaptionLength,
        "scorer": hf.CaptionLength(),
    }


ROWS = rows()
SHAPES = make_shapes()
MADE_BY = {"Dataset": Dataset, "datasets": datasets}


def documented():
    """The names that the pages of the docs import from modules of the package."""
    pages = [
        path.read_text(encoding="utf-8") for path in [ROOT.parent / "README.md", *(ROOT.parent / "docs").rglob("*.md")]
    ]
    found = re.findall(r"from (hf_curriculum[\w.]*) import ([^\n(]+|\([^)]*\))", "\n".join(pages))
    return {(module, name) for module, names in found for name in re.findall(r"\w+", names)}


def functions():
    """Name → (owner, function, whether it is public) of each function and method of the package."""
    offered = {name for part in (hf, *TASKS) for name in part.__all__}
    on_pages = documented()
    for info in pkgutil.walk_packages(hf.__path__, "hf_curriculum."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
                continue
            public = name in offered or (module.__name__, name) in on_pages
            if inspect.isfunction(value):
                yield name, None, value, public
            elif inspect.isclass(value):
                for method, member in vars(value).items():
                    function = getattr(member, "__func__", member)
                    if inspect.isfunction(function) and (
                        not method.startswith("_") or method in ("__init__", "__call__")
                    ):
                        about = "Args:" in (function.__doc__ or "") or method in ("fit", "__init__", "__call__")
                        yield f"{name}.{method}", value, function, public and about


def takes_data(name, hint):
    """Whether a parameter is one for data, or for texts."""
    alternatives = shapes._alternatives(hint)
    if Any in alternatives:
        return name in ("train_dataset", "eval_dataset")
    listed = {get_origin(each) or each for each in alternatives} & {list, shapes.Sequence, shapes.Iterable}
    return Dataset in alternatives or (name in TEXTS and bool(listed)) or (name == "examples" and bool(listed))


def checks_itself(function):
    """Whether `@validate_arguments` is among a function's decorators."""
    while function is not None and function.__code__.co_filename != shapes.__file__:
        function = getattr(function, "__wrapped__", None)
    return function is not None


DOORS = {
    f"{name}({parameter})": (owner, function, parameter)
    for name, owner, function, public in functions()
    if public or checks_itself(function)
    for parameter, hint in shapes._hints(inspect.unwrap(function)).items()
    if takes_data(parameter, hint)
}
WITH_MODELS = {"extract_regions(data)", "cache_vision_features(dataset)"}
"""What takes splits too, which the tests of these two show."""
ELSEWHERE = {"CurriculumTrainer.__init__", "Amendment.__init__"}
"""What takes any map-style data set, `torch`'s too; see `test_a_trainer_takes_map_style_data`."""


def test_every_function_that_takes_data_compares_its_arguments():
    assert len(DOORS) > 100
    unchecked = [door for door, (_, function, _) in DOORS.items() if not checks_itself(function)]
    unchecked = [door for door in unchecked if door.partition("(")[0] not in ELSEWHERE]
    assert not unchecked, "write @validate_arguments above them"


def placeholder(hint):
    """Some argument that a parameter takes."""
    alternatives = shapes._alternatives(hint)
    values = [1, 0.5, "x", [], {}, None, ROWS, ["x"], np.zeros(2), print]
    values += (
        [
            object.__new__(each)
            for each in alternatives
            if isinstance(each, type) and each.__module__ not in sys.builtin_module_names
        ]
        if not any(shapes._fits(value, hint) for value in values)
        else []
    )
    return next(value for value in values if shapes._fits(value, hint))


def call(door, value):
    """Calls a function with a value for its parameter of data, and something that fits for the others."""
    owner, function, name = DOORS[door]
    plain = inspect.unwrap(function)
    hints, arguments = shapes._hints(plain), {}
    for parameter in inspect.signature(plain).parameters.values():
        if parameter.name == "self":
            arguments["self"] = object.__new__(owner)
        elif parameter.name == "cls":
            arguments["cls"] = owner
        elif parameter.name == name:
            arguments[name] = value
        elif parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            arguments[parameter.name] = placeholder(hints[parameter.name])
    return function(**arguments)


def is_ours(error):
    """Whether an error was raised by a line of the package, not within a library that it called."""
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(ROOT)


CHECKED = [door for door, (_, function, _) in DOORS.items() if checks_itself(function)]
WITHOUT_CODE = {"path", "text", "IterableDataset", "class", "scorer", "loader"}
"""Shapes that no expression makes a data set of."""
VALUES = {"array", "list of texts", "None", "generator", "pandas column"}
"""Shapes whose names of columns only the caller knows."""


def hint_of(door):
    """The type of a function's parameter of data."""
    _, function, name = DOORS[door]
    return shapes._hints(inspect.unwrap(function))[name]


@pytest.mark.parametrize("door", CHECKED)
def test_another_shape_is_refused_with_what_to_give(door):
    hint, name = hint_of(door), DOORS[door][2]
    who = door.partition("(")[0].removesuffix(".__init__").removesuffix(".__call__")
    for shape, value in SHAPES.items():
        if shapes._fits(value, hint):
            continue
        with pytest.raises(TypeError, match=rf"`{who}` was given .* as `{name}`, and .* is needed") as caught:
            call(door, value)
        assert is_ours(caught.value), shape
        if Dataset in shapes._alternatives(hint):
            validate_advice(shape, value, str(caught.value))


def validate_advice(shape, value, text):
    """The code that a sentence advises makes the data set that was asked for."""
    advised = re.search(r": give .*?`((?:Dataset|datasets|data\[)[^`]*)`", text)
    code = "[...]" if advised is None else advised[1]
    if "[...]" in code:
        assert shape in WITHOUT_CODE | VALUES, (shape, text)
    elif shape == "polars":
        assert code == "Dataset.from_polars(data)"
    else:
        value = DatasetDict(train=rows()) if "streaming" in text else value
        made = eval(code, {"Dataset": Dataset, "datasets": datasets, "data": value})
        assert isinstance(made, (Dataset, DatasetDict)), (shape, text)
        assert len(made)


ONE = Dataset.from_dict({"caption": ["a dog"]})
LONG = "a dog that runs over the grass in the park"


@pytest.mark.parametrize(
    ("function", "given", "advice"),
    [
        (hf.concat_scored, [ONE], "`[data]`"),
        (hf.concat_scored, [DatasetDict(train=ONE)], "`list(data.values())`"),
        (hf.rank_scores, [["1", "10", "2"]], "`[float(text) for text in scores]`"),
        (hf.rank_scores, [["a", "b"]], None),
        (hf.rank_scores, [None], None),
        (hf.rank_scores, [3.5], "`[3.5]`"),
        (hf.rank_scores, [ONE], 'a column, as in `list(data["score"])`'),
        (hf.rank_scores, [DatasetDict(test=ONE)], 'a column, as in `list(data["test"]["score"])`'),
        (PosTagger.train, [None], None),
        (caption_metrics, [["a dog"], ["a cat"]], "`[[text] for text in references]`"),
        (caption_metrics, [ONE, [["a cat"]]], 'a column, as in `list(data["caption"])`'),
        (caption_metrics, ["a dog", [["a cat"]]], "`['a dog']`"),
        (caption_metrics, [LONG, [["a cat"]]], "`[generated]`"),
        (caption_metrics, [Path("captions.txt"), [["a cat"]]], None),
        (hf.score_shards, [ONE, hf.CaptionLength(), "out"], "the path that it was read from"),
    ],
)
def test_a_list_that_is_needed_is_advised_as_code_that_makes_it(function, given, advice):
    with pytest.raises(TypeError, match="is needed") as caught:
        function(*given)
    assert str(caught.value).partition("is needed")[2] == (f": give {advice}." if advice else ".")


def plain(result):
    """What a function returned, in Python's own lists and mappings."""
    if isinstance(result, (DatasetDict, datasets.IterableDatasetDict)):
        return {name: plain(part) for name, part in result.items()}
    if isinstance(result, (Dataset, datasets.IterableDataset)):
        return [{name: cell for name, cell in row.items() if name != "image"} for row in result]
    if hasattr(result, "get_vocab"):
        return result.get_vocab()
    return result


def saved(data, folder):
    hf.save_scored(data, folder / "saved")
    return hf.load_scored(folder / "saved")


SIDE = Dataset.from_dict({"image_id": ["picture 0"], "quality": [0.5]})
MADE = {"length": ScoreProvenance("length", "another", easy="high")}


def with_side_file(data, folder):
    file = folder / "scores.parquet"
    hf.save_scores(rows(), file, key="text")
    return hf.load_scores(data.remove_columns("length"), file)


def vocabulary(tokenizer):
    return {word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 1}


ACCEPTS = {
    "drop_empty_captions(dataset)": lambda data, _: drop_empty_captions(data),
    "group_captions(pairs)": lambda data, _: hf.group_captions(data.select_columns(["image_id", "caption", "image"])),
    "load_captioned(source)": lambda data, _: hf.load_captioned(data),
    "load_conversations(source)": lambda data, _: hf.load_conversations(data),
    "load_labelled(source)": lambda data, _: long_tail.load_labelled(data),
    "train_wordpiece(texts)": lambda data, _: vocabulary(hf.train_wordpiece(data, 60, min_frequency=1)),
    "train_word_tokenizer(texts)": lambda data, _: vocabulary(train_word_tokenizer(data, 1)),
    "push_scored(dataset)": lambda data, _: set(hf.push_scored(data, "me/name", dry_run=True).rows.values()),
    "make_plan(ranking)": lambda data, _: hf.make_plan(hf.IID(), data, epochs=1, global_batch_size=2).num_steps,
    "read_provenance(dataset)": lambda data, _: hf.read_provenance(data),
    "attach_provenance(dataset)": lambda data, _: attach_provenance(data, MADE),
    "save_scored(dataset)": saved,
    "describe_scores(dataset)": lambda data, _: sorted(
        {part["rows"] for part in describe_scores(data)["splits"].values()}
    ),
    "write_provenance(dataset)": lambda data, folder: write_provenance(data, folder).name,
    "NormSim.__init__(targets)": lambda data, _: NormSim(data, image_embedding="image_embedding").name,
    "Influence.__init__(targets)": lambda data, _: Influence([TINY.git()], data, learning_rates=[1.0]).targets["rows"],
    "ObjectMentions.fit(dataset)": lambda data, _: hf.ObjectMentions(["dog"]).fit(data).name,
    "WordRarity.fit(dataset)": lambda data, _: hf.WordRarity().fit(data).word_counts_,
    "add_scores(dataset)": lambda data, _: hf.add_scores(data, hf.CaptionLength()),
    "shuffle_scores(dataset)": lambda data, _: hf.shuffle_scores(data, "length"),
    "add_scores_from(dataset)": lambda data, _: hf.add_scores_from(data, SIDE, on="image_id", easy="low"),
    "add_scores_from(source)": lambda data, _: hf.add_scores_from(
        rows().remove_columns("length"), data, on="text", columns="length", easy="low"
    ),
    "save_scores(dataset)": lambda data, folder: Path(hf.save_scores(data, folder / "s.parquet", key="text")).name,
    "load_scores(dataset)": with_side_file,
    "add_embeddings(dataset)": lambda data, _: add_embeddings(data, overwrite=True),
    "add_scores_sharded(dataset)": lambda data, folder: hf.add_scores_sharded(data, hf.CaptionLength(), folder / "p"),
    "add_labels(dataset)": lambda data, _: detection.add_labels(data, detection.GivenLabels("label"), column="of"),
    "add_proposals(dataset)": lambda data, _: detection.add_proposals(data, detection.SelectiveSearch(min_size=4)),
}
"""Function that takes further shapes than a `Dataset` → what it returns for any of them, in a folder of its own."""


@pytest.mark.parametrize(
    "door", [door for door in CHECKED if door not in WITH_MODELS and Dataset in shapes._alternatives(hint_of(door))]
)
def test_a_shape_that_is_taken_gives_what_a_dataset_gives(door, tmp_path):
    hint = hint_of(door)
    taken = {shape: value for shape, value in make_shapes().items() if shapes._fits(value, hint) and value is not None}
    if not taken:
        return
    folders = {shape: tmp_path / shape for shape in ("Dataset", *taken)}
    for folder in folders.values():
        folder.mkdir()
    expected = plain(ACCEPTS[door](rows(), folders["Dataset"]))
    of_splits = ({"train": expected, "validation": expected}, {"train": expected})
    for shape, value in taken.items():
        found, error = attempt(ACCEPTS[door], value, folders[shape])
        if error is not None:
            assert is_ours(error), (shape, error)
            assert shape in VALUES | WITHOUT_CODE - {"IterableDataset"}, (shape, error)
        else:
            assert found == expected or found in of_splits or (shape in VALUES and found), shape


def attempt(function, *given):
    """What a function returns, or how it refuses."""
    try:
        return plain(function(*given)), None
    except (TypeError, ValueError, FileNotFoundError) as error:
        return None, error


@pytest.mark.parametrize("name", NAMES)
def test_a_scorer_reads_batches_and_no_other_shape(name):
    scorer = build(name)
    for shape, value in SHAPES.items():
        if shape != "dict of columns":
            with pytest.raises((TypeError, ValueError), match=r"was given|not in the data") as caught:
                scorer(value)
            assert is_ours(caught.value), shape


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_a_trainer_takes_map_style_data_or_says_what_to_give(name):
    taken = {
        "torch",
        "list of rows",
        "None",
        "torch stream",
        "IterableDataset",
        "generator",
        "pandas column",
        "scorer",
    }
    words = rf"`CurriculumTrainer` was given .* as `{name}`, and a Dataset is needed"
    for shape, value in SHAPES.items():
        if shape in taken:
            shapes.validate_data("CurriculumTrainer", name, value)
            continue
        with pytest.raises(TypeError, match=words):
            shapes.validate_data("CurriculumTrainer", name, value)


SCORES = {
    "strings": (np.array(["3", "1"]), "type <U1"),
    "objects": (np.array([3, None], dtype=object), "type object"),
    "lists of unequal lengths": ([[1.0], [2.0, 3.0]], "type object"),
    "two columns": (np.zeros((2, 2)), r"shape \(2, 2\)"),
    "one number": (np.array(3.0), r"shape \(\)"),
    "dates": (np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]"), "type datetime64"),
    "complex numbers": (np.array([1 + 2j, 2]), "type complex128"),
}


@pytest.mark.parametrize("kind", SCORES)
def test_an_array_that_holds_no_number_per_row_is_not_ranked(kind):
    scores, found = SCORES[kind]
    with pytest.raises(TypeError, match=found):
        hf.make_plan(hf.Phases(2, easy="low"), scores, global_batch_size=1)


def test_an_array_is_ranked_from_the_end_that_the_rule_calls_easy():
    similarity = np.array([0.1, 0.9, 0.5, 0.7])
    for rule in (hf.Filter(0.5), hf.OnlineSelection(2, "loss", then=hf.Filter(0.5))):
        with pytest.raises(
            ValueError, match=f"does not say which end is easy, and {type(rule).__name__} leaves the oth"
        ):
            hf.make_plan(rule, similarity, global_batch_size=1)
    drawn = {}
    for easy in ("high", "low"):
        plan = hf.make_plan(hf.Filter(0.5, hf.IID(epochs=1), easy=easy), similarity, global_batch_size=1)
        drawn[easy] = sorted(plan.rows(0, plan.num_samples).tolist())
    assert drawn == {"high": [1, 3], "low": [0, 2]}
    assert hf.make_plan(hf.IID(epochs=1), similarity, global_batch_size=1).num_steps == 4


class Returns(hf.Scorer):
    columns, name, easy = ("caption",), "mine", "low"

    def __init__(self, value):
        self.value = value

    def score(self, batch, rank):
        return self.value


@pytest.mark.parametrize("value", [["long", "short"], [[1.0], [2.0, 3.0]], [{}, {}]])
def test_a_scorer_that_returns_no_numbers_says_so(value):
    with pytest.raises(TypeError, match=r"`Returns\.score` returned something else than numbers"):
        hf.add_scores(ROWS, Returns(value))


def test_a_scorer_without_a_name_is_refused():
    class Nameless(Returns):
        name = ""

    with pytest.raises(TypeError, match="Nameless has no `name`, the column that it writes"):
        hf.add_scores(ROWS, Nameless([1.0, 2.0]))


SLIPS = {
    "a tokenizer for a processor": (
        lambda: hf.generate_captions(torch.nn.Linear(1, 1), ROWS, hf.train_wordpiece(["a dog"] * 2, 30)),
        r"Tokenizer\w* was given as `processor`, .* `GitProcessor\(image_processor, tokenizer\)`",
    ),
    "a rule for a plan": (lambda: hf.CurriculumSampler(hf.Phases(3)), "a Phases as `plan`, and a Plan"),
    "a control of a rule": (lambda: hf.control_of(hf.Phases(3), "iid"), "a Phases as `plan`, and a Plan"),
    "exchanged": (
        lambda: hf.add_scores(hf.CaptionLength(), ROWS),
        r"a CaptionLength as `dataset`.* The order of the arguments is `add_scores\(dataset, scorers, per_image\)`",
    ),
    "a processor for a tokenizer": (
        lambda: hf.CaptionCollator(hf.make_image_processor(8), object()),
        r"as `tokenizer`, and a tokenizer is needed. .*CaptionCollator\(tokenizer, image_processor\)",
    ),
    "a name for a scorer": (
        lambda: hf.add_scores(ROWS, "noun_count"),
        r"'noun_count' as `scorers`.*`NounCount\(\.\.\.\)`",
    ),
    "a class for a scorer": (
        lambda: hf.add_scores(ROWS, hf.NounCount),
        r"one that is made of it, `NounCount\(\.\.\.\)`",
    ),
    "a number in quotes": (
        lambda: hf.make_plan(hf.IID(epochs=1), ROWS, global_batch_size="8"),
        "'8' as `global_batch_size`, and a whole number is needed",
    ),
    "a part of a batch": (
        lambda: hf.make_plan(hf.IID(epochs=1), ROWS, global_batch_size=8.0),
        r"8\.0 as `global_batch_size`, and a whole number is needed",
    ),
    "a seed in quotes": (lambda: hf.make_plan(hf.IID(epochs=1), ROWS, global_batch_size=1, seed="1"), "'1' as `seed`"),
    "thresholds in quotes": (
        lambda: hf.Phases(3, cut="value", thresholds=("2", "5")),
        "thresholds is a list of numbers or None",
    ),
    "one seed": (
        lambda: hf.Study(arms={}, run=print, output_dir="x", seeds=3),
        "3 as `seeds`, and a list of whole numbers",
    ),
    "a number among texts": (lambda: hf.train_wordpiece(["a", 3]), "a list that holds 3 as `texts`"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_answered_in_words(slip):
    make, words = SLIPS[slip]
    with pytest.raises(TypeError, match=words):
        make()


def test_the_table_of_functions_and_shapes(capsys):
    lines = ["function | " + " | ".join(SHAPES)]
    for door in CHECKED:
        lines.append(
            f"{door} | "
            + " | ".join("taken" if shapes._fits(value, hint_of(door)) else "words" for value in SHAPES.values())
        )
    with capsys.disabled():
        if "-s" in sys.argv:
            print("\n".join(lines))
    assert len(lines) > 100
