"""What `hf-curriculum evaluate` hands on to the suites of captions and of retrieval."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from typed_commands import StandIn, done

from hf_curriculum import __version__


class Found:
    """What an evaluation found."""

    def __init__(self):
        self.table, self.write = "the table", StandIn()


@pytest.fixture
def suite():
    """A suite that finds `Found` in what it is given."""
    made = StandIn(Found())
    made.image_ids, made.images, made.captions_of = ["0"], "the images", StandIn(["read"])
    return made


@pytest.mark.parametrize("aligner", [True, False])
def test_retrieval(replaced, suite, tmp_path, aligner):
    replaced("tasks.alignment.cli", "is_aligner", aligner)
    ontology = replaced("tasks.alignment.cli", "find_ontology", "the ontology" if aligner else None)
    replaced("tasks.alignment.cli", "_check")
    rows = replaced("tasks.alignment.cli", "load_rows", ("rows", "dev"))
    made = replaced("tasks.alignment.retrieval.suite", "RetrievalSuite", suite)
    replaced("tasks.alignment.retrieval.score_captions", "caption_classes", "classes")
    replaced("tasks.alignment.retrieval.score_captions", "class_notes", "notes")
    page = replaced("tasks.alignment.retrieval.page", "retrieval_report", SimpleNamespace(write=StandIn("page.html")))
    by_clip, by_regions = (replaced("tasks.alignment.cli", name, Found()) for name in ("_with_clip", "_with_aligner"))
    (tmp_path / "results.json").touch()
    words = ["evaluate", "me/m", "--suite", "retrieval", "--data", "d", "--output", tmp_path, "--batch-size", 3]
    done(*words)
    more = ["--protocol", "coco_1k", "--nouns", "max", "--features", "store", "--ontology", "o.json", "--json"]
    found = done(*words, *more, "--limit", 5, "--compare", "b=c", "--split", "dev", "--images", "p", "--html", "page")
    assert found.stderr.startswith("page: page.html\n")
    assert rows.calls == [
        (("d", None, None), {"read": not aligner, "shown": False}),
        (("d", "dev", "p"), {"read": not aligner, "shown": True}),
    ]
    assert ontology.calls == [(("me/m", None), {}), (("me/m", Path("o.json")), {})]
    known = {"classes": "classes", "notes": "notes"} if aligner else {}
    assert made.calls == [
        (("rows", "all"), {"limit": None, "compare": {}, "name": "m", **known}),
        (("rows", "coco_1k"), {"limit": 5, "compare": {"b": Path("c")}, "name": "m", **known}),
    ]
    if aligner:
        assert by_regions.calls == [
            ((suite, "me/m", None, "the ontology", "mean", 3), {"progress": True}),
            ((suite, "me/m", Path("store"), "the ontology", "max", 3), {"progress": False}),
        ]
    else:
        assert by_clip.calls == [((suite, "me/m", 3), {})] * 2
    result = (by_regions if aligner else by_clip).gives
    about = {"version": __version__, "model": "me/m", "data": "d", "split": "dev"}
    assert result.write.calls == [
        ((tmp_path, {**about, "protocol": "all", "features": None, "nouns": "mean" if aligner else None}), {}),
        ((tmp_path, {**about, "protocol": "coco_1k", "features": "store", "nouns": "max" if aligner else None}), {}),
    ]
    assert page.calls == [((result, "the images", "Retrieval on d"), {})]
    assert page.gives.write.calls == [((Path("page"),), {})]


def test_a_clip_needs_images_and_gets_them_in_batches(replaced, suite):
    from datasets import Dataset

    from hf_curriculum.tasks.alignment.cli import _with_clip

    suite.images, suite.captions = Dataset.from_dict({"image_id": ["0"]}), ["a"]
    with pytest.raises(ValueError, match=r"A CLIP encodes images.*Name their folder \(--images FOLDER\)"):
        _with_clip(suite, "me/m", 3)
    suite.images = suite.images.add_column("image", ["pixels"])
    clip = replaced("scorers.alignment.clip", "CLIPSimilarity", "the clip")
    cosines = replaced("tasks.alignment.retrieval.score_captions", "clip_similarities", "cosines")
    assert _with_clip(suite, "me/m", 3) is suite.gives
    assert clip.calls == [(("me/m",), {"batch_size": 3})]
    [((captions, images, scorer), _)] = cosines.calls
    assert (captions, list(images), scorer) == (["a"], ["pixels"], "the clip")
    assert suite.calls == [(("cosines",), {})]


def test_captions(replaced, suite, tmp_path):
    rows = replaced("tasks.captioning.cli", "load_rows", ("rows", "dev"))
    made = replaced("tasks.captioning.suite", "CaptionSuite", suite)
    replaced("tasks.captioning.suite", "read_captions", "what was read")
    write = replaced("tasks.captioning.suite", "write_captions")
    page = replaced("tasks.captioning.page", "caption_report", SimpleNamespace(write=StandIn("page.html")))
    generate = replaced("tasks.captioning.cli", "_generate", ["a caption"])
    words = ["evaluate", "me/m", "--suite", "captions", "--data", "d", "--output", tmp_path]
    done(*words)
    more = ["--beams", 2, "--max-new-tokens", 7, "--batch-size", 3, "--features", "store", "--clip", "a/clip"]
    more += ["--metrics", "cider", "--difficulty-from", "v.csv", "--limit", 5, "--compare", "b=c", "--html", "page"]
    done(*words, *more)
    done(*words, "--features", "store")
    shown = [named for _, named in rows.calls]
    assert [tuple(named.values()) for named in shown] == [(True, False), (True, True), (False, False)]
    plain = {"name": "m", "clip": None, "compare": {}, "difficulty": None, "limit": None}
    given = {"name": "m", "clip": "a/clip", "compare": {"b": Path("c")}, "difficulty": Path("v.csv"), "limit": 5}
    assert made.calls[:2] == [(("rows", "all"), plain), (("rows", ["cider"]), given)]
    settings = [{"num_beams": 5, "max_new_tokens": None, "batch_size": 64}]
    settings.append({"num_beams": 2, "max_new_tokens": 7, "batch_size": 3})
    assert generate.calls[:2] == [
        ((suite, "me/m", None, settings[0]), {"progress": True}),
        ((suite, "me/m", Path("store"), settings[1]), {"progress": True}),
    ]
    assert write.calls[0] == ((tmp_path / "captions.json", ["0"], ["a caption"]), {})
    about = {"version": __version__, "model": "me/m", "data": "d", "split": "dev"}
    assert suite.gives.write.calls[:2] == [
        ((tmp_path, {**about, "features": None, **settings[0]}), {}),
        ((tmp_path, {**about, "features": "store", **settings[1]}), {}),
    ]
    assert page.calls == [((suite.gives, "the images", "Captions of d"), {})]
    (tmp_path / "mine.json").touch()
    done("evaluate", tmp_path / "mine.json", *words[2:])
    assert tuple(rows.calls[-1][1].values()) == (False, False)
    assert suite.captions_of.calls == [((str(tmp_path / "mine.json"), "what was read"), {})]
    assert suite.calls[-1] == ((["read"],), {})
    assert (len(generate.calls), len(write.calls)) == (3, 3)
    (tmp_path / "results.json").touch()  # former results, whose captions stay until all are replaced
    (tmp_path / "unscored_captions.json").touch()
    done(*words)
    assert write.calls[-1] == ((tmp_path / "unscored_captions.json", ["0"], ["a caption"]), {})
    assert not (tmp_path / "unscored_captions.json").exists()
