"""Scored data sets on a Hub on this machine, with the real clients."""

from __future__ import annotations

import json
import re
import threading

import pytest
import yaml

pytestmark = pytest.mark.slow

SECRETS = ("hf_writerTOKENwriter", "hf_readerTOKENreader", "hf_strangerTOKENstranger")


def card(hub, name, revision="main"):
    text = hub.files("dataset", name, revision)["README.md"].decode()
    return yaml.safe_load(text.split("---\n")[1]), text


def test_pushed_and_loaded(hub, user):
    before = hub.count("commit")
    user.run("""
        both = DatasetDict({"train": scored(40), "validation": scored(8, 40)})
        commit = push_scored(both, "me/whole", license="cc-by-4.0", description="Made for a test.")
        """)
    assert (hub.count("commit"), hub.leaks) == (before + 1, [])
    files = hub.files("dataset", "me/whole")
    assert {"data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet", "scores.json"} <= set(files)
    assert files["figures/scores_0_caption_length.png"].startswith(b"\x89PNG")
    head, text = card(hub, "me/whole")
    assert head["license"] == "cc-by-4.0"
    assert [config["config_name"] for config in head["configs"]] == ["default"]
    assert "# whole\n\nMade for a test.\n" in text
    assert "](figures/scores_0_caption_length.png)" in text
    told = json.loads(
        user.run("""
        loaded = load_dataset("me/whole")
        same = [loaded["train"][i]["image"].tobytes() == both["train"][i]["image"].tobytes() for i in range(40)]
        from hf_curriculum.planning.ranking import resolve_easy
        made = read_provenance(loaded)["caption_length"]
        streamed = load_dataset("me/whole", split="train", streaming=True)
        args = CurriculumTrainingArguments(
            "out", curriculum=Phases(2), score_column="caption_length", report_to=[], use_cpu=True,
            per_device_train_batch_size=4,
        )
        from torch import nn
        trainer = CurriculumTrainer(nn.Linear(1, 1), args, train_dataset=loaded["train"])
        print(json.dumps({
            "rows": {name: len(part) for name, part in loaded.items()},
            "same": all(same) and loaded["train"]["caption"] == both["train"]["caption"],
            "provenance": made == read_provenance(both)["caption_length"],
            "streamed": read_provenance(streamed)["caption_length"] == made,
            "easy": resolve_easy(loaded["train"], "caption_length"),
            "plan": trainer.plan.describe().splitlines()[0],
        }))
        """)
    )
    assert told["rows"] == {"train": 40, "validation": 8}
    assert told["same"] is told["provenance"] is told["streamed"] is True
    assert told["easy"] == "low"
    assert "by caption_length (low = easy): 40 examples" in told["plan"]


def test_buckets_are_streamed_by_who_has_only_datasets(hub, user, other_user):
    user.run("""
        turned = attach_provenance(
            scored(40), {"caption_length": ScoreProvenance("caption_length", "by hand", easy="high")}
        )
        push_scored(turned, "me/buckets", num_buckets=3, thumbnails=True)
        """)
    told = json.loads(
        other_user().run("""
        import json, sys
        sys.modules["hf_curriculum"] = None  # importing it fails
        from datasets import load_dataset
        found = {}
        for name in ("bucket_0", "bucket_1", "bucket_2", "default"):
            rows = list(load_dataset("me/buckets", name, split="train", streaming=True))
            found[name] = [[row["caption_length"], row["image"].size[0]] for row in rows]
        print(json.dumps(found))
        """)
    )
    assert [len(told[f"bucket_{n}"]) for n in range(3)] == [13, 13, 14]
    assert len(told["default"]) == 40
    scores = [[score for score, _ in told[f"bucket_{n}"]] for n in range(3)]
    assert min(scores[0]) >= max(scores[1]) >= min(scores[1]) >= max(scores[2])  # high = easy
    assert {size for rows in told.values() for _, size in rows} == {8}
    told = user.run("""
        from huggingface_hub import snapshot_download
        index = BucketIndex.read(snapshot_download("me/buckets", repo_type="dataset"))
        print(index.sizes, index.easy, index.score_column)
        """)
    assert told.split() == ["(13,", "13,", "14)", "high", "caption_length"]
    told = user.run("""
        stream = BucketedStream("hf://datasets/me/buckets", IID(epochs=1), cache="buckets")
        print(len(list(stream)), stream.index.digest == index.digest)
        """)
    assert told.split() == ["40", "True"]


def test_plain_push_to_hub_keeps_the_scores(hub, user):
    told = user.run("""
        data = scored(12)
        data.push_to_hub("me/plain")
        loaded = load_dataset("me/plain", split="train")
        print(read_provenance(loaded) == read_provenance(data), loaded["caption_length"] == data["caption_length"])
        """)
    assert told.split() == ["True", "True"]


def test_a_second_push_replaces_data_and_keeps_what_people_wrote(hub, user):
    user.run("""
        push_scored(scored(20), "me/again", num_buckets=2)
        """)
    repo = hub.repos["dataset", "me/again"]
    files = dict(repo.commits[repo.find("main")])
    _, text = card(hub, "me/again")
    text = text.replace("---\n", "---\nlanguage: en\n", 1).replace("# again\n", "# Ours\n\nPlease read *this*.\n")
    files["README.md"] = hub.store(text.encode(), False)
    files["notes.txt"] = hub.store(b"kept", False)
    repo.commit("main", files, "by hand")
    sent = hub.uploads.copy()
    user.run("""
        push_scored(scored(22), "me/again")
        """)
    files = hub.files("dataset", "me/again")
    assert files["notes.txt"] == b"kept"
    assert not [path for path in files if path.startswith("bucket")]
    head, text = card(hub, "me/again")
    assert head["language"] == "en"
    assert [config["config_name"] for config in head["configs"]] == ["default"]
    assert "# Ours\n\nPlease read *this*.\n" in text
    assert "22 in `train`" in text
    assert "20 in `train`" not in text
    first = hub.uploads - sent
    user.run("""
        push_scored(scored(22), "me/again")
        """)
    assert hub.uploads - sent == first  # nothing was sent again, the card included
    assert repo.titles[-1] == "Scored data set"
    assert len(repo.titles) == 4  # and no empty commit was made


def test_an_interrupted_push_sends_only_what_is_missing(hub, user):
    hub.fail("commit", 500)
    error = user.fails('push_scored(scored(31), "me/retried", num_buckets=2)')
    assert error["type"] == "HubError"
    sent = hub.uploads.copy()
    assert list(hub.files("dataset", "me/retried")) == [".gitattributes"]  # nobody sees half of it
    hub.heal()
    user.run('push_scored(scored(31), "me/retried", num_buckets=2)')
    files = hub.repos["dataset", "me/retried"]
    large = [file.sha256 for file in files.commits[files.find("main")].values() if file.large]
    assert len(large) >= 3
    assert all(hub.uploads[sha] == sent[sha] == 1 for sha in large)


FAILURES = [
    # route, failure, what the message says
    ("info", {"status": 401}, r"answered 401 .*hf auth login"),
    ("create", {"status": 403}, r"answered 403 .*permission to write"),
    ("preupload", {"status": 404}, r"answered 404 .*Check the name"),
    ("commit", {"status": 409}, r"answered 409 .*busy"),
    ("commit", {"status": 412}, r"answered 412 .*Somebody else"),
    ("commit", {"status": 429}, r"answered 429 .*Wait a few minutes"),
    ("lfs-upload", {"status": 500}, r"answered 500 .*The Hub itself has failed"),
    ("lfs-batch", {"status": 503}, r"answered 503 .*The Hub itself has failed"),
    ("commit", {"cut": "before"}, r"no answer \(.*The connection was lost"),
    ("lfs-upload", {"cut": "before"}, r"no answer \(.*The connection was lost"),
    ("commit", {"cut": "within"}, r"no answer \(.*The connection was lost"),
]


@pytest.mark.parametrize(("route", "how", "says"), FAILURES, ids=lambda value: str(value)[:30])
def test_each_failure_says_what_to_do_and_loses_nothing(hub, user, route, how, says):
    number = FAILURES.index((route, how, says))
    name = f"me/failing-{number}"
    hub.fail(route, message="no, hf_writerTOKENwriter", **how)
    error = user.fails(f'data = scored(9, {100 + number})\npush_scored(data, "{name}")')
    assert (error["type"], error["status"]) == ("HubError", how.get("status"))
    assert re.search(says, error["text"].replace("\n", " ")), error["text"]
    assert error["text"].startswith(f"Pushing the scored data to {name} failed:")
    assert "Nothing is lost" in error["text"]
    assert not [token for token in SECRETS if token in error["all"]]
    hub.heal()
    told = user.run(f'push_scored(data, "{name}")\nprint(len(load_dataset("{name}", split="train")))')
    assert told.split() == ["9"]


def test_what_passes_is_waited_for(hub, user):
    hub.fail("preupload", 429, times=2, headers={"Retry-After": "0"})
    hub.fail("lfs-upload", 500, times=1)
    hub.fail("lfs-batch", cut="before", times=1)
    hub.fail("commit", seconds=0.5, times=1)
    hub.fail("storage", cut="within", times=1)
    told = user.run("""
        push_scored(scored(9, 200), "me/patient")
        print(len(load_dataset("me/patient", split="train")))
        """)
    assert told.split() == ["9"]


def test_somebody_elses_change_is_not_overwritten(hub, user):
    user.run('push_scored(scored(9), "me/shared")')
    repo = hub.repos["dataset", "me/shared"]
    hub.fail("preupload", seconds=0.4, times=1)

    def interfere():
        seen = hub.count("validate-yaml")
        while hub.count("validate-yaml") == seen:
            pass
        files = dict(repo.commits[repo.find("main")])
        repo.commit("main", {**files, "theirs.txt": hub.store(b"x", False)}, "theirs")

    thread = threading.Thread(target=interfere)
    thread.start()
    error = user.fails('push_scored(scored(10), "me/shared")')
    thread.join()
    assert error["status"] == 412
    assert "Somebody else changed the repository in the meantime" in error["text"]
    user.run('push_scored(scored(10), "me/shared")')
    assert "theirs.txt" in hub.files("dataset", "me/shared")


def test_private_data_need_their_token(hub, user):
    user.run('push_scored(scored(9), "me/secret", private=True)')
    assert hub.repos["dataset", "me/secret"].private
    program = """
        from datasets import load_dataset
        print(len(load_dataset("me/secret", split="train"{token})))
        """
    for token in ("False", '"hf_strangerTOKENstranger"'):
        assert user.fails(program.format(token=f", token={token}"))["type"] == "DatasetNotFoundError"
    error = user.fails(program.format(token=', token="hf_unknownTOKENunknown"'))
    assert "Invalid credentials" in error["text"]
    assert user.run(program.format(token=', token="hf_readerTOKENreader"')).split() == ["9"]
    assert user.run(program.format(token="")).split() == ["9"]
    user.run('push_scored(scored(9), "me/open")')
    error = user.fails('push_scored(scored(9), "me/open", private=True)')
    assert error["type"] == "ValueError"
    assert "is there already and public" in error["text"]
    error = user.fails('push_scored(scored(9), "me/open", token="hf_readerTOKENreader")')
    assert (error["type"], error["status"]) == ("HubError", 403)
    error = user.fails('push_scored(scored(9), "me/other", token="hf_unknownTOKENunknown")')
    assert (error["type"], error["status"]) == ("HubError", 401)
    assert "hf_unknownTOKENunknown" not in error["all"]
    error = user.fails('push_scored(scored(9), "me/other", token="hf_unknownTOKENunknown\\n")')
    assert error["type"] == "ValueError"
    assert "It is not shown here" in error["text"]
    assert "unknownTOKEN" not in error["text"]


def test_a_branch(hub, user):
    user.run('push_scored(scored(9), "me/branched")\npush_scored(scored(11), "me/branched", revision="next")')
    told = user.run("""
        print(len(load_dataset("me/branched", split="train")))
        print(len(load_dataset("me/branched", split="train", revision="next")))
        """)
    assert told.split() == ["9", "11"]


def test_a_second_push_to_a_branch_is_built_on_the_branch(hub, user):
    user.run('push_scored(scored(9), "me/grown")\npush_scored(scored(11), "me/grown", revision="next")')
    repo = hub.repos["dataset", "me/grown"]
    for branch in ("main", "next"):
        files = dict(repo.commits[repo.find(branch)])
        _, text = card(hub, "me/grown", branch)
        text = text.replace("# grown\n", f"# grown\n\nWritten on {branch}.\n")
        files["README.md"] = hub.store(text.encode(), False)
        files[f"{branch}.txt"] = hub.store(b"kept", False)
        repo.commit(branch, files, "by hand")
    main = repo.branches["main"]
    user.run('push_scored(scored(13), "me/grown", revision="next")')
    assert repo.branches["main"] == main
    files = hub.files("dataset", "me/grown", "next")
    assert "next.txt" in files
    assert "main.txt" not in files
    _, text = card(hub, "me/grown", "next")
    assert "Written on next." in text
    assert "Written on main." not in text
    assert "13 in `train`" in text


def test_a_dry_run_lists_what_would_leave_and_sends_nothing(hub, user):
    before = len(hub.requests)
    told = json.loads(
        user.run("""
        both = DatasetDict({"train": scored(40), "validation": scored(8, 40)})
        contents = push_scored(both, "me/tried", num_buckets=2, language="en", dry_run=True)
        from dataclasses import asdict
        print(json.dumps({**asdict(contents), "text": contents.describe()}))
        """)
    )
    assert ("dataset", "me/tried") not in hub.repos
    assert {method for method, *_ in hub.requests[before:]} <= {"GET", "HEAD"}
    assert told["visibility"] == "not there yet, will be public, or private where that is the owner's default"
    assert told["rows"] == {"train": 40, "validation": 8}
    columns = {"image": "Image", "image_id": "string", "caption": "string", "caption_length": "float32"}
    assert (told["columns"], told["images"]) == (columns, 48)
    assert 0 < told["image_bytes"] < sum(told["files"].values())
    assert told["local_paths"] == {}
    user.run('push_scored(both, "me/tried", num_buckets=2, language="en", private=True)')
    sent = {path: len(content) for path, content in hub.files("dataset", "me/tried").items()}
    del sent[".gitattributes"]
    assert told["files"] == sent
    assert all(f"  {path}, {size:,} bytes" in told["text"] for path, size in sent.items())
    assert card(hub, "me/tried")[0]["language"] == "en"
    again = json.loads(
        user.run("""
        said = []
        contents = push_scored(scored(9), "me/tried", dry_run=True, tell=said.append, revision="later")
        assert said == [contents.describe()]
        print(json.dumps(asdict(contents)))
        """)
    )
    assert again["visibility"] == "private"
    assert {"buckets.json", "bucket_0/00000-of-00001.parquet"} <= set(again["removed"])
    assert list(hub.repos["dataset", "me/tried"].branches) == ["main"]
    error = user.fails('push_scored(scored(9), "me/whole", private=True, dry_run=True)')
    assert "is there already and public" in error["text"]


def test_it_is_told_before_it_is_sent(hub, user):
    hub.fail("commit", 403)
    error = user.fails('said = []\npush_scored(scored(9), "me/told", tell=said.append)')
    assert error["status"] == 403
    assert user.run("print(said[0].splitlines()[0])") == "to me/told (public)\n"


def test_paths_of_this_machine_are_named_and_images_keep_none(hub, user):
    told = json.loads(
        user.run("""
        import warnings
        Path("pictures").mkdir(exist_ok=True)
        files = []
        for i in range(6):
            files.append(str((Path("pictures") / f"photo{i}.png").resolve()))
            Image.new("RGB", (8, 8), (i, 9, 9)).save(files[-1])
        named = Dataset.from_dict({"image": files, "caption": [f"/ a dog {i}" for i in range(6)], "file": files})
        named = named.add_column("name", [Path(file).name for file in files])
        from datasets import Image as ImageFeature
        named = add_scores(named.cast_column("image", ImageFeature()), CaptionLength())
        made = ScoreProvenance("difficulty", "by hand", model=str(Path("pictures").resolve()))
        named = attach_provenance(named.add_column("difficulty", np.arange(6, dtype=np.float32)), {"difficulty": made})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            contents = push_scored(named, "me/paths", dry_run=True)
        texts = [str(one.message) for one in caught if "paths of this machine" in str(one.message)]
        print(json.dumps([files[0], texts, contents.local_paths]))
        """)
    )
    file, (warning,), found = told
    folder = file.rpartition("/")[0]
    assert found == {"the column `file`": file, "the provenance of `difficulty`, model": folder}
    assert f"the column `file` ({file!r})" in warning
    assert "remove_columns" in warning
    user.run('push_scored(named.remove_columns(["file", "difficulty"]), "me/paths")')
    for path, content in hub.files("dataset", "me/paths").items():
        assert folder.encode() not in content, path
    stored = user.run("""
        row = load_dataset("me/paths", split="train").cast_column("image", ImageFeature(decode=False))[0]
        print(row["image"]["path"])
        """)
    assert stored == "photo0.png\n"


def test_scores_go_up_alone_and_are_found_again_by_their_url(hub, user):
    told = json.loads(
        user.run("""
        for shard in range(2):
            rows_of = {"caption": [f"{'a dog ' * pair}of" for pair in range(40)]}
            rows_of["url"] = [f"https://a.example/{shard}/{pair}" for pair in range(40)]
            Dataset.from_dict(rows_of).to_parquet(f"crawl-{shard}.parquet")
        score_shards("crawl-*.parquet", CaptionLength(), "alone", keep=["url"])
        push_scores("me/alone", "alone", on="url", license="cc0-1.0", private=True, shard_bytes=1000)
        data = Dataset.from_dict({"url": [f"https://a.example/{i % 2}/{i}" for i in range(41)]})
        added = add_scores_from(data, "hf://datasets/me/alone", on="url")
        made = read_provenance(added)["caption_length"]
        plain = load_dataset("me/alone", split="train")
        before = read_provenance(load_scored("alone"))["caption_length"]
        print(json.dumps({
            "scores": added["caption_length"][:40], "last": str(added["caption_length"][40]),
            "joined": made.arguments.pop("joined"), "rest": made.arguments == before.arguments,
            "plain": read_provenance(plain)["caption_length"] == before, "columns": plain.column_names,
        }))
        """)
    )
    assert told["scores"] == [1 + 2 * pair for pair in range(40)]
    assert (told["last"], told["rest"], told["plain"]) == ("nan", True, True)
    assert told["columns"] == ["url", "caption_length"]
    assert (told["joined"]["from"], told["joined"]["on"]) == ("hf://datasets/me/alone", ["url"])
    files = hub.files("dataset", "me/alone")
    assert len([path for path in files if path.startswith("data/")]) > 1
    head, text = card(hub, "me/alone")
    assert head["license"] == "cc0-1.0"
    assert 'add_scores_from(data, "hf://datasets/me/alone", on="url")' in text
    error = user.fails('push_scores("me/alone", "alone", on="key")')
    assert "40 keys stand more than once in alone" in error["text"]


def test_no_token_was_written_or_logged(hub, user):
    """The last test of this file: it looks at everything that came before."""
    contents = b"".join(hub.blobs.values())
    log = user.log()
    assert "push" in log or "preupload" in log  # DEBUG was on
    for token in SECRETS:
        assert token.encode() not in contents
        assert token not in log
    assert hub.leaks == []
    assert "unknown" not in {route for _, route, _, _ in hub.requests}
