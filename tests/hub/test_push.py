"""What a push asks of the Hub, writes and sends, with a stand-in for the Hub's client."""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Image, Sequence, Value
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import httpx

from hf_curriculum import CaptionLength, push_scored, push_scores, save_scores, score_shards
from hf_curriculum.hub import push as module
from hf_curriculum.hub.errors import HubError
from hf_curriculum.hub.push import PushContents, _local_paths, _score_column, _splits, _texts, write_split
from hf_curriculum.provenance import ScoreProvenance, attach_provenance

MISSING = httpx.Response(404, request=httpx.Request("GET", "https://hub.example"))


class Hub:
    """A client of the Hub with one repository, or none, that keeps what is asked of it.

    `branches` are those besides the main one; `card` is the text of README.md.
    """

    def __init__(self, there=False, private=False, branches=(), card=None, files=(), fails=None):
        self.there, self.private, self.branches, self.card = there, private, [*branches], card
        self.files, self.fails, self.asked, self.token = [*files], fails, [], "a-token"

    def dataset_info(self, repo_id, **named):
        self.asked.append(("dataset_info", repo_id, named))
        if self.fails:
            raise self.fails
        if not self.there:
            raise RepositoryNotFoundError("not there", response=MISSING)
        if named.get("revision") not in (None, *self.branches):
            raise RevisionNotFoundError("no branch", response=MISSING)
        files = [*self.files, *([] if self.card is None else ["README.md"])]
        siblings = [SimpleNamespace(rfilename=name) for name in files] or None
        sha = f"sha of {named.get('revision') or 'main'}"
        return SimpleNamespace(id="me/Data", private=self.private, sha=sha, siblings=siblings)

    def hf_hub_download(self, *given, **named):
        folder = named.pop("local_dir")
        self.asked.append(("hf_hub_download", given, named))
        (Path(folder) / "README.md").write_text(self.card, encoding="utf-8")
        return str(Path(folder) / "README.md")

    def create_repo(self, *given, **named):
        self.asked.append(("create_repo", given, named))
        self.there, self.private = True, named["private"]
        return SimpleNamespace(repo_id="me/Data")

    def create_branch(self, *given, **named):
        self.asked.append(("create_branch", given, named))
        self.branches.append(named["branch"])

    def create_commit(self, *given, **named):
        operations = named.pop("operations")
        self.asked.append(("create_commit", given, named))
        self.removed = [one.path_in_repo for one in operations if type(one).__name__ == "CommitOperationDelete"]
        added = [one for one in operations if type(one).__name__ == "CommitOperationAdd"]
        self.sent = {one.path_in_repo: Path(one.path_or_fileobj).read_bytes() for one in added}
        return "the commit"


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Drawing is what takes longest."""
    monkeypatch.setattr("hf_curriculum.hub.data_card.score_distribution", lambda scores, **options: None)
    monkeypatch.setattr("hf_curriculum.hub.data_card.to_png", lambda figure: b"a figure")


@pytest.fixture
def hub(monkeypatch):
    """`hub(...)`: the client that a push gets; `made` are the arguments that it was made with."""

    def make(**options):
        client = Hub(**options)

        def give(**named):
            client.made = named
            return client

        monkeypatch.setattr("huggingface_hub.HfApi", give)
        return client

    return make


def scored(**columns):
    """Four rows with a score; more columns by name."""
    rows = {"caption": list("abcd"), "difficulty": np.arange(4, dtype=np.float32), **columns}
    return attach_provenance(Dataset.from_dict(rows), {"difficulty": ScoreProvenance("difficulty", "by hand")})


# ---- What is asked ----


def test_a_new_repository_is_made_and_gets_all_in_one_commit(hub):
    client, told = hub(), []
    assert push_scored(scored(), "Data", private=True, token="secret", tell=told.append) == "the commit"
    assert client.made == {"token": "secret", "library_name": "hf_curriculum"}
    message = {"parent_commit": "sha of main", "commit_message": "Scored data set"}
    assert client.asked == [
        ("dataset_info", "Data", {}),
        ("create_repo", ("Data",), {"repo_type": "dataset", "private": True, "exist_ok": True}),
        ("dataset_info", "me/Data", {}),
        ("create_commit", ("me/Data",), {"repo_type": "dataset", "revision": None, **message}),
    ]
    assert set(client.sent) == {
        "README.md", "data/train-00000-of-00001.parquet", "figures/scores_0_difficulty.png", "scores.json",
    }  # fmt: skip
    assert client.removed == []
    assert b'load_dataset("me/Data"' in client.sent["README.md"]
    assert len(told) == 1
    assert told[0].startswith("to me/Data (private)\nrows: 4 in train\n")


def test_the_card_that_is_there_is_read_of_the_data_set_as_it_was_found(hub):
    card = "---\nlanguage: ar\n---\n# Mine\n\nMy words.\n"
    ours = [
        "data/old-00000-of-00001.parquet",
        "bucket_0/00000-of-00002.parquet",
        "figures/example_0123456789abcdef.jpg",
    ]
    theirs = ["data/notes.txt", "figures/mine.png", "LICENSE", "data/train-00000-of-00001.parquet"]
    client = hub(there=True, private=True, card=card, files=[*ours, *theirs])
    push_scored(scored(), "me/data", private=True, commit_message="Mine", tell=str)
    asked = [entry for entry in client.asked if entry[0] != "dataset_info"]
    assert asked == [
        ("hf_hub_download", ("me/Data", "README.md"), {"repo_type": "dataset", "revision": "sha of main"}),
        (
            "create_commit",
            ("me/Data",),
            {"repo_type": "dataset", "revision": None, "parent_commit": "sha of main", "commit_message": "Mine"},
        ),
    ]
    assert client.removed == ours
    assert b"# Mine\n\nMy words.\n" in client.sent["README.md"]
    assert b"language: ar" in client.sent["README.md"]


def test_a_branch_is_made_and_the_commit_stands_on_it(hub):
    client = hub(there=True, files=["a"])
    push_scored(scored(), "me/data", revision="dev", tell=str)
    assert client.asked[:3] == [
        ("dataset_info", "me/data", {}),
        ("create_branch", ("me/Data",), {"branch": "dev", "repo_type": "dataset", "exist_ok": True}),
        ("dataset_info", "me/Data", {}),
    ]
    assert client.asked[3] == ("dataset_info", "me/Data", {"revision": "dev"})
    assert (client.asked[4][2]["revision"], client.asked[4][2]["parent_commit"]) == ("dev", "sha of dev")


def test_a_dry_run_looks_and_makes_nothing(hub, caplog):
    client = hub(there=True, card="# Mine", files=["data/old-00000-of-00001.parquet"])
    with caplog.at_level(logging.INFO, logger="hf_curriculum"):
        found = push_scored(scored(), "me/data", dry_run=True, revision="dev")
    assert isinstance(found, PushContents)
    assert [name for name, *_ in client.asked] == ["dataset_info", "dataset_info", "hf_hub_download"]
    assert (found.repo_id, found.visibility, found.unanswered) == ("me/Data", "public", None)
    assert found.removed == ("data/old-00000-of-00001.parquet",)
    assert "has no branch 'dev' yet" in caplog.text
    assert found.describe() in caplog.text


@pytest.mark.parametrize(
    ("private", "says"),
    [(None, "public, or private where that is the owner's default"), (False, "public"), (True, "private")],
)
def test_who_will_see_a_repository_that_is_not_there(hub, private, says):
    client = hub()
    found = push_scored(scored(), "me/data", private=private, dry_run=True, tell=str)
    assert (found.repo_id, found.visibility) == ("me/data", f"not there yet, will be {says}")
    assert len(client.asked) == 1


def test_what_is_public_is_not_taken_for_private(hub):
    client = hub(there=True)
    with pytest.raises(ValueError, match="but me/Data is there already and public"):
        push_scored(scored(), "me/data", private=True)
    assert len(client.asked) == 1
    assert push_scored(scored(), "me/data", private=False, dry_run=True, tell=str).visibility == "public"
    hub(there=True, private=True)
    assert push_scored(scored(), "me/data", dry_run=True, tell=str).visibility == "private"


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("no\n route a-token"), OfflineModeIsEnabled("no\n route a-token")]
)
def test_without_a_network_only_a_dry_run_goes_on(hub, error):
    hub(fails=error)
    found = push_scored(scored(), "me/data", dry_run=True, tell=str)
    assert (found.repo_id, found.removed) == ("me/data", ())
    assert found.visibility == "not known who sees it: the Hub did not answer"
    assert found.unanswered == "no route <token>"
    with pytest.raises(HubError, match="Pushing the scored data to me/data failed: no answer") as caught:
        push_scored(scored(), "me/data", token="a-token", tell=str)
    assert "Nothing is lost" in str(caught.value)
    assert "a-token" not in str(caught.value)


def test_every_option_reaches_the_buckets_and_the_card(hub, tmp_path, monkeypatch):
    client, cards, buckets = hub(there=True), [], []
    card, write = module.DataCard, module.save_bucketed

    def make(*given):
        cards.append(given)
        return card(*given)

    def save(*given, **named):
        buckets.append((given, named))
        return write(*given, **named)

    monkeypatch.setattr(module, "DataCard", make)
    monkeypatch.setattr(module, "save_bucketed", save)
    both = DatasetDict(first=scored(), dev=scored())
    half = both["dev"].with_format("arrow")[:].nbytes // 2 + 1
    push_scored(
        both, "me/data", num_buckets=2, score_column="difficulty", cut="value", easy="high", thresholds=[1.0],
        unscored="drop", seed=5, split="dev", num_examples=1, thumbnails=True, license="mit", description="Mine.",
        language="ar", scratch=tmp_path, shard_bytes=half, tell=str,
    )  # fmt: skip
    [(data, folder)], named = [given for given, _ in buckets], buckets[0][1]
    assert folder.parents[1] == tmp_path
    assert folder.parent.name.startswith("hf_curriculum-")
    assert not folder.exists()
    assert named == {
        "num_buckets": 2, "cut": "value", "score_column": "difficulty", "split": "dev", "easy": "high",
        "thresholds": [1.0], "unscored": "drop", "seed": 5, "shard_size": 2,
    }  # fmt: skip
    [(repo_id, splits, split, index, *others)] = cards
    assert (repo_id, list(splits), split, len(data)) == ("me/Data", ["first", "dev"], "dev", 4)
    assert [bucket.rows for bucket in index.buckets] == [3, 1]
    assert others == [1, True, "mit", "Mine.", "ar"]
    assert "buckets.json" in client.sent
    assert [path for path in client.sent if path.startswith("data/dev")] == []


# ---- What is told ----


def test_paths_of_this_machine_are_told_of_columns_and_of_provenance(hub):
    data = scored(
        path=["a.png", None, "/home/me/x.png", "/home/you/y.png"], url=["https://a/b", "a/b", "/", "/root"],
        windows=["a", "b", "c", "C:\\me\\x"],
    )  # fmt: skip
    made = ScoreProvenance(
        "difficulty", "by hand", {"model": {"folder": ["x", "~/models/a", "~/b"]}}, model="/data/m/x"
    )
    data = attach_provenance(data, {"difficulty": made})
    expected = {
        "the column `path`": "/home/me/x.png",
        "the column `windows`": "C:\\me\\x",
        "the provenance of `difficulty`, arguments.model.folder": "~/models/a",
        "the provenance of `difficulty`, model": "/data/m/x",
    }
    assert _local_paths({"train": data}) == expected
    parts = {"train": data.select([0, 1, 3]), "test": data}
    assert _local_paths(parts)["the column `path`"] == "/home/you/y.png"
    assert _local_paths({"train": scored().remove_columns("caption")}) == {}
    large = data.cast_column("path", Value("large_string"))
    assert _local_paths({"train": large})["the column `path`"] == "/home/me/x.png"
    hub(there=True)
    with pytest.warns(UserWarning, match=r"What is pushed to me/Data holds paths of this machine: the column `path` "):
        contents = push_scored(data, "me/data", dry_run=True, tell=str)
    assert contents.local_paths == expected
    assert "\nlocal paths in the column `path`, such as '/home/me/x.png'\n" in contents.describe()


def test_the_first_path_of_many_rows_is_told(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 2)
    data = scored(path=["a", "b", "c", "/home/me/x"], other=["/home/me/1", "b", "/home/me/3", "d"])
    assert _local_paths({"train": data}) == {
        "the column `other`": "/home/me/1", "the column `path`": "/home/me/x",
    }  # fmt: skip


def test_texts_in_a_json_value_have_their_places():
    value = {"a": "1", "b": {"c": ["2", {"d": "3"}], "n": 4}, "e": None}
    assert list(_texts(value)) == [("a", "1"), ("b.c", "2"), ("b.c.d", "3")]


def test_the_list_of_what_is_sent():
    contents = PushContents(
        "me/x", "private", {"train": 1200, "test": 3}, {"a": "string", "image": "Image"}, 1500, 20_000,
        {"README.md": 1234, "b": 1}, ("data/old",), {"the column `a`": "/b/c"}, None,
    )  # fmt: skip
    assert contents.describe().splitlines() == [
        "to me/x (private)",
        "rows: 1,200 in train, 3 in test",
        "columns: a (string), image (Image)",
        "images and other files embedded: 1,500, 20,000 bytes",
        "files: 2, 1,235 bytes",
        "  README.md, 1,234 bytes",
        "  b, 1 bytes",
        "  data/old, taken away",
        "local paths in the column `a`, such as '/b/c'",
    ]


def test_images_are_counted_at_any_depth_with_their_bytes(hub):
    hub(there=True)
    picture = {"bytes": b"\x89PNG" + bytes(range(256)), "path": None}
    data = scored(image=[picture, None, picture, picture], several=[[picture, picture], [], None, [picture]])
    data = data.cast_column("image", Image(decode=False)).cast_column("several", Sequence(Image(decode=False)))
    found = push_scored(data, "me/data", dry_run=True, tell=str)
    assert found.images == 6
    assert 2 * 260 <= found.image_bytes < sum(found.files.values())
    assert found.columns == {"caption": "string", "difficulty": "float32", "image": "Image", "several": "List"}
    assert found.rows == {"train": 4}
    plain = push_scored(scored(), "me/data", dry_run=True, tell=str)
    assert (plain.images, plain.image_bytes) == (0, 0)


# ---- What is refused, and what is written ----


def test_the_split_that_is_shown():
    data = scored()
    assert _splits(data, None)[1] == "train"
    named = Dataset(data.data, info=data.info, split="dev")
    assert (list(_splits(named, None)[0]), _splits(named, "x")[1]) == (["dev"], "x")
    both = DatasetDict(first=data, train=data)
    assert (_splits(both, None)[1], _splits(both, "first")[1]) == ("train", "first")
    assert _splits(DatasetDict(first=data, other=data), None)[1] == "first"
    with pytest.raises(ValueError, match="the data has the splits"):
        _splits(DatasetDict(), None)
    with pytest.raises(ValueError, match="cannot be a part of a file's name"):
        _splits(DatasetDict({"train": data, "a-b": data}), None)
    assert _splits(DatasetDict({"a.b_1": data}), None)[1] == "a.b_1"


def test_the_score_that_buckets_are_cut_by():
    data = scored()
    assert _score_column(data, None, None) is None
    assert (_score_column(data, None, 2), _score_column(data, "other", 2)) == ("difficulty", "other")


def test_addresses_are_refused_before_the_hub_is_asked(hub):
    client = hub(there=True)
    data = scored(image=[{"bytes": None, "path": "https://evil.example/a.png"}, None, None, None])
    data = data.cast_column("image", Image(decode=False))
    with pytest.raises(ValueError, match=r"names https://evil\.example/a\.png in place of an image"):
        push_scored(data, "me/data")
    assert client.asked == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 0}, "0 buckets"),
        ({"num_buckets": 2, "unscored": "error"}, "1 of 4"),
        ({"num_buckets": 3, "cut": "value", "thresholds": [1.0]}, "1 threshold"),
        ({"num_buckets": 2, "unscored": "drop", "difficulty": [1, 1, 1, np.nan]}, "`difficulty`"),
        ({"token": "a b"}, "It is not shown here"),
        ({"repo_id": "me/x/y"}, "Repo id must"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_hub_is_asked(hub, options, message):
    client, options = hub(there=True), dict(options)
    data = scored(difficulty=np.float32(options.pop("difficulty", [0, 1, 2, np.nan])))
    with pytest.raises(ValueError, match=message):
        push_scored(data, **{"repo_id": "me/data", "tell": str, **options})
    assert client.asked == []


def test_splits_that_were_scored_in_two_ways_are_refused_before_the_hub_is_asked(hub):
    client, other = hub(there=True), {"difficulty": ScoreProvenance("difficulty", "by another hand")}
    with pytest.raises(ValueError, match="difficulty"):
        push_scored(DatasetDict(train=scored(), dev=attach_provenance(scored(), other)), "me/data")
    assert client.asked == []


def test_buckets_have_as_many_rows_a_file_as_the_first_ones_say(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "save_bucketed", lambda data, folder, **options: asked.append((len(data), options)))
    data = Dataset.from_dict({"caption": ["a" * 60] * 256 + ["a" * 60_000]})
    for shard_bytes in (6400, 1):
        module._write_buckets(data, Path("x"), shard_bytes, {"seed": 1})
    assert asked == [(257, {"shard_size": rows, "seed": 1}) for rows in (100, 1)]


def on_a_disk_of(size, call):
    """What a call raises, in a process of its own whose files cannot be larger; its status if that is not 0."""
    there, wanted = os.pipe()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            call()
        except BaseException as error:
            os.write(wanted, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(wanted)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with os.fdopen(there) as pipe:
        return pipe.read() if status == 0 else status


@pytest.mark.parametrize("options", [{}, {"num_buckets": 2}, {"thumbnails": True}], ids=str)
def test_a_disk_that_fails_at_any_byte_is_named_with_what_to_do(tmp_path, options):
    rng = np.random.default_rng(0)
    picture = {"bytes": b"\x89PNG" + rng.bytes(4000), "path": None}
    data = scored(image=[picture] * 4, noise=[rng.bytes(30_000).hex() for _ in range(4)])
    data = data.cast_column("image", Image(decode=False))
    call = partial(push_scored, data, "me/data", scratch=tmp_path, dry_run=True, **options)
    told = rf"OSError: \[Errno {errno.EFBIG}\] File too large; nothing was sent\. `scratch=` names.*{tmp_path}"
    for size in (100, 5_000, 40_000, 100_000):
        assert re.match(told, str(said := on_a_disk_of(size, call))), (size, said)
    assert re.match(rf"OSError: .*nothing was replaced.*{tmp_path}", on_a_disk_of(0, call))  # of the folder's lock
    assert on_a_disk_of(10_000_000, call) == ""
    assert list(tmp_path.iterdir()) == []


def test_embedded_bytes_are_those_of_the_named_columns_alone(tmp_path):
    picture = {"bytes": b"\x89PNG" + bytes(range(256)), "path": None}
    data = scored(image=[picture, None, picture, picture], other=[picture] * 4)
    data = data.cast_column("image", Image(decode=False)).cast_column("other", Image(decode=False))
    (file,) = write_split(data, tmp_path, "train", 1 << 20)
    group = pq.read_metadata(file).row_group(0)
    sizes = {at.path_in_schema: at.total_compressed_size for at in map(group.column, range(group.num_columns))}
    assert module._images(file, ["image"]) == (3, sizes["image.bytes"])
    assert module._images(file, ["image", "other"]) == (7, sizes["image.bytes"] + sizes["other.bytes"])
    assert module._images(file, ["caption"]) == module._images(file, []) == (0, 0)


def test_the_first_row_counts_for_the_size_of_files(tmp_path):
    data = Dataset.from_dict({"caption": ["a" * 1000, "a", "a", "a"]})
    size = data.with_format("arrow")[:].nbytes
    assert len(write_split(data, tmp_path, "train", size - 1)) == 2
    assert [file.parent for file in write_split(data, tmp_path / "a" / "b", "dev", size)] == [tmp_path / "a" / "b"]


def test_files_are_as_large_as_asked_and_hold_all_rows_in_order(tmp_path):
    data = scored().select_columns(["caption"])
    size = data.with_format("arrow")[:].nbytes
    for shard_bytes, count in ((size, 1), (size - 1, 2), (size // 2, 2), (1, 4)):
        files = write_split(data, tmp_path / str(shard_bytes), "dev", shard_bytes)
        assert [file.name for file in files] == [f"dev-{at:05d}-of-{count:05d}.parquet" for at in range(count)]
        rows = [Dataset.from_parquet(str(file), cache_dir=str(tmp_path))["caption"][:] for file in files]
        assert [caption for part in rows for caption in part] == list("abcd")
        assert {len(part) for part in rows} == {4 // count}


# ---- Scores without their data ----


@pytest.fixture
def crawl(tmp_path):
    """Two shards of three pairs, scored where they lie; one pair has no address."""
    for shard in range(2):
        said = [f"{'a dog ' * pair}of shard {shard}" for pair in range(3)]
        urls = [None if shard == pair == 1 else f"https://a.example/{shard}/{pair}" for pair in range(3)]
        Dataset.from_dict({"caption": said, "url": urls}).to_parquet(str(tmp_path / f"{shard}.parquet"))
    score_shards(str(tmp_path / "*.parquet"), CaptionLength(), tmp_path / "scores", keep=["url", "caption"])
    return tmp_path / "scores"


def test_scores_go_up_without_captions(hub, crawl, caplog):
    client, told = hub(there=True, card="# Mine\n"), []
    options = {"license": "cc0-1.0", "private": True, "commit_message": "Mine", "tell": told.append}
    client.private = True
    assert push_scores("me/data", crawl, on="url", **options) == "the commit"
    assert "1 of 6 pairs have no ['url'] and are left out" in caplog.text
    assert "columns: url (string), caption_length (float32)" in told[0]
    assert set(client.sent) == {
        "README.md", "data/train-00000-of-00001.parquet", "figures/scores_0_caption_length.png", "scores.json",
    }  # fmt: skip
    assert not [path for path, content in client.sent.items() if b"dog" in content]
    table = pq.read_table(pa.BufferReader(client.sent["data/train-00000-of-00001.parquet"]))
    assert table.to_pydict() == {
        "url": [f"https://a.example/{shard}/{pair}" for shard, pair in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2))],
        "caption_length": [3, 5, 7, 3, 7],
    }
    card = client.sent["README.md"].decode()
    for text in (
        "license: cc0-1.0\n",
        "# Mine\n",
        "How difficult 5 pairs of image and caption are: the scores caption\\_length. No image and no caption is in ",
        "from hf_curriculum import add_scores_from\n\n"
        'data = add_scores_from(data, "hf://datasets/me/Data", on="url")\n',
        "| CaptionLength |",
    ):
        assert text in card


def test_a_key_of_several_columns_and_a_side_file(hub, crawl, tmp_path):
    client = hub(there=True)
    push_scores("me/data", crawl, on=["shard", "key"], tell=str)
    assert b'on=["shard", "key"])' in client.sent["README.md"]
    data = attach_provenance(
        Dataset.from_dict({"image_id": ["a", "b"], "caption": ["x", "y"], "score": np.float32([1, 2])}),
        {"score": ScoreProvenance("score", "by hand")},
    )
    found = push_scores("me/data", save_scores(data, tmp_path / "side.parquet"), on="image_id", dry_run=True, tell=str)
    assert found.columns == {"image_id": "string", "score": "float32"}


def test_scores_that_cannot_be_found_again_are_refused_before_the_hub_is_asked(hub, crawl, tmp_path):
    client = hub(there=True)
    for on, message in (
        ("caption", "with them all captions would be published"),
        ("uid", "`uid` is not in the data"),
        ("key", r"3 keys stand more than once in .*scores, such as '0', '1', '2'"),
        ([], "The key is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            push_scores("me/data", crawl, on=on)
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        push_scores("me/data", tmp_path / "nothing", on="url")
    (crawl / "scores" / "1.parquet").unlink()
    with pytest.raises(ValueError, match="1 of 2 shards have no scores"):
        push_scores("me/data", crawl, on="url")
    assert client.asked == []
