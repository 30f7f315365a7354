"""Data sets of `datasets` through `load_captioned`."""

import io
import pickle
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from huggingface_hub.constants import HF_HUB_CACHE
from PIL import Image

from hf_curriculum import load_captioned
from hf_curriculum.config import digest
from hf_curriculum.data import load
from hf_curriculum.data.image_files import derive_image_ids
from hf_curriculum.data.readers import outside_files
from hf_curriculum.data.readers.columns import image_paths
from hf_curriculum.data.request import Request


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def content(number):
    file = io.BytesIO()
    Image.new("RGB", (4 + number, 4), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


def rows(images=(0, 1), image="image", **columns):
    features = Features({image: datasets.Image()})
    images = Dataset.from_dict({image: [{"bytes": content(n), "path": None} for n in images]}, features=features)
    for name, values in columns.items():
        images = images.add_column(name, values)
    return images


def undecoded(dataset):
    return dataset.cast_column("image", datasets.Image(decode=False))["image"][:]


class TestColumns:
    def test_ours_already(self):
        loaded = load_captioned(rows(caption=["a", "b"], image_id=["x", "y"], score=[1.0, 2.0]))
        assert loaded.column_names == ["image", "caption", "image_id", "score"]
        assert undecoded(loaded)[0] == {"bytes": content(0), "path": None}

    def test_a_mapping(self):
        loaded = load_captioned(
            rows(image="img", words=["a", "b"], id=[11, 12]),
            columns={"image": "img", "caption": "words", "image_id": "id"},
        )
        assert loaded.column_names == ["image", "caption", "image_id"]
        assert loaded["image_id"][:] == ["11", "12"]
        assert loaded[1]["image"].size == (5, 4)

    def test_usual_names_are_found(self):
        assert load_captioned(rows(image="img", text=["a", "b"]))["caption"][:] == ["a", "b"]

    def test_lists_of_captions(self):
        loaded = load_captioned(rows(captions=[["a", "b"], ["c"]]))
        assert loaded["caption"][:] == ["a", "b", "c"]
        assert loaded[1]["image"].size == (4, 4)
        assert undecoded(loaded)[1] == {"bytes": content(0), "path": None}
        assert loaded["image_id"][0] == loaded["image_id"][1] != loaded["image_id"][2]

    def test_several_columns_of_captions(self):
        loaded = load_captioned(rows(one=["a", "b"], two=["c", None]), columns={"caption": ["one", "two"]})
        assert loaded["caption"][:] == ["a", "c", "b"]

    def test_capitals_and_numbered_captions(self):
        loaded = load_captioned(rows(image="Image", Caption0=["a", "b"], Caption1=["c", None], Image_ID=["x", "y"]))
        assert loaded["caption"][:] == ["a", "c", "b"]
        assert loaded["image_id"][:] == ["x", "x", "y"]
        assert loaded.column_names == ["image", "image_id", "caption"]

    def test_fields_of_captions_that_are_records_are_counted(self):
        records = [[{"raw": "a", "sentid": 1}, {"raw": "b", "sentid": 2}], []]
        loaded = load_captioned(Dataset.from_dict({"image_id": ["x", "y"], "sentences": records}), images=False)
        assert loaded["caption"][:] == ["a", "b", None]
        assert loaded.info.description == "The data set, left out: field `sentid` of captions (not kept): 2."

    def test_transforms_are_removed_with_a_word(self, caplog):
        source = rows(caption=["a", "b"])
        source.set_transform(lambda batch: {"nothing": batch["caption"]})
        assert load_captioned(source)[0]["caption"] == "a"
        assert "has a transform (`with_transform`, `set_transform`), which is not applied here" in caplog.text
        caplog.clear()
        assert load_captioned(rows(caption=["a", "b"]).with_format("numpy"))[0]["caption"] == "a"
        assert "transform" not in caplog.text

    def test_a_missing_column(self):
        with pytest.raises(ValueError, match=r"`caption` is not in the data, .*columns=\{'image': \.\.\."):
            load_captioned(rows(words=["a", "b"]))
        with pytest.raises(ValueError, match="`image` is not in the data"):
            load_captioned(Dataset.from_dict({"caption": ["a"]}))

    def test_a_wrong_mapping(self):
        with pytest.raises(
            ValueError, match=r"`words` is not in the data, which has the columns \['image', 'caption'\]"
        ):
            load_captioned(rows(caption=["a", "b"]), columns={"caption": "words"})

    def test_a_mapping_the_wrong_way_round(self):
        with pytest.raises(ValueError, match=r"`columns` has the keys \['img'\].*write columns=\{'image': 'img'\}"):
            load_captioned(rows(), columns={"img": "image"})

    def test_two_columns_of_images(self):
        with pytest.raises(ValueError, match="for `image`, which is one column"):
            load_captioned(rows(), columns={"image": ["left", "right"]})

    def test_a_column_in_the_way(self):
        with pytest.raises(ValueError, match=r"columns \['caption'\] already, which .* would overwrite"):
            load_captioned(rows(caption=["a", "b"], words=["c", "d"]), columns={"caption": "words"})

    def test_captions_that_are_numbers(self):
        with pytest.raises(ValueError, match="holds 3, and texts, lists of texts"):
            load_captioned(rows(caption=[3, 4]))


class TestImageIds:
    def test_they_are_derived_from_the_image_not_the_row(self):
        loaded = load_captioned(rows(images=(0, 1, 0, 2), caption=list("abcd")))
        ids = loaded["image_id"][:]
        assert ids[0] == ids[2]
        assert len(set(ids)) == 3
        again = load_captioned(rows(images=(2, 0), caption=list("xy")))["image_id"][:]
        assert again == [ids[3], ids[0]]

    def test_they_are_the_same_for_a_file_in_any_folder(self, tmp_path):
        ids = []
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / f"{folder}.png").write_bytes(content(0))
            source = Dataset.from_dict({"image": [str(tmp_path / folder / f"{folder}.png")], "caption": ["a"]})
            ids += load_captioned(source.cast_column("image", datasets.Image()))["image_id"][:]
        assert ids[0] == ids[1] == load_captioned(rows(images=(0,), caption=["a"]))["image_id"][0]

    def test_missing_files_have_one_too(self, tmp_path):
        source = Dataset.from_dict({"image": [str(tmp_path / name) for name in "aab"], "caption": list("xyz")})
        ids = load_captioned(source.cast_column("image", datasets.Image()), check_images=False)["image_id"][:]
        assert ids[0] == ids[1] != ids[2]

    def test_rows_without_id(self):
        with pytest.raises(ValueError, match="1 of 2 rows have no `image_id`"):
            load_captioned(rows(caption=["a", "b"], image_id=["x", None]))


class TestImages:
    def test_bytes(self):
        source = Dataset.from_dict({"image": [content(0)], "caption": ["a"]})
        assert load_captioned(source)[0]["image"].size == (4, 4)

    def test_records(self):
        source = Dataset.from_dict({"image": [{"bytes": content(0), "path": "x.png"}], "caption": ["a"]})
        assert load_captioned(source)[0]["image"].size == (4, 4)

    def test_undecoded_ones_are_decoded_again(self):
        source = rows(caption=["a", "b"]).cast_column("image", datasets.Image(decode=False))
        assert load_captioned(source)[0]["image"].size == (4, 4)

    def test_paths_from_a_folder(self, tmp_path, monkeypatch):
        (tmp_path / "a.png").write_bytes(content(0))
        source = Dataset.from_dict({"image": ["a.png", "a.png"], "caption": ["x", "y"]})
        loaded = load_captioned(source, images=tmp_path)
        assert undecoded(loaded)[0]["path"] == str(tmp_path / "a.png")
        assert loaded["image_id"][:] == ["a.png", "a.png"]
        monkeypatch.chdir(tmp_path)
        assert load_captioned(source)[0]["image"].size == (4, 4)

    def test_paths_of_which_some_are_missing(self, tmp_path, caplog):
        (tmp_path / "a.png").write_bytes(content(0))
        source = Dataset.from_dict({"image": ["a.png", None], "caption": ["x", "y"]})
        assert load_captioned(source, images=tmp_path)["caption"][:] == ["x"]
        assert "1 image cannot be read" in caplog.text

    def test_addresses_are_not_downloaded(self):
        source = Dataset.from_dict({"image_url": ["https://a/b.jpg"] * 2, "caption": ["x", "y"]})
        with pytest.raises(ValueError, match=r"holds addresses \('https://a/b\.jpg'\).*img2dataset"):
            load_captioned(source, columns={"image": "image_url"})
        text = load_captioned(source, columns={"image": "image_url"}, images=False)
        assert text.column_names == ["caption", "image_id"]
        assert text["image_id"][:] == ["https://a/b.jpg"] * 2

    def test_text_alone(self, caplog):
        loaded = load_captioned(rows(images=(0, 0, 1), caption=list("abc")), images=False)
        assert loaded.column_names == ["caption", "image_id"]
        assert len(set(loaded["image_id"])) == 2
        assert load_captioned(Dataset.from_dict({"caption": ["a"]}), images=False).column_names == ["caption"]
        assert "neither images nor `image_id`" in caplog.text

    def test_a_folder_for_images_that_are_there(self, tmp_path):
        with pytest.raises(ValueError, match=r"holds its images itself .* would not be read"):
            load_captioned(rows(caption=["a", "b"]), images=tmp_path)

    def test_a_column_of_something_else(self):
        source = Dataset.from_dict({"image": [1], "caption": ["a"]})
        with pytest.raises(ValueError, match=r"The column taken for `image` holds Value\('int64'\)"):
            load_captioned(source)


class TestSources:
    def test_splits(self):
        splits = DatasetDict(train=rows(caption=["a", "b"]), test=rows(caption=["c", "d"]))
        assert load_captioned(splits).num_rows == {"train": 2, "test": 2}
        assert load_captioned(splits, split="test")["caption"][:] == ["c", "d"]
        with pytest.raises(
            ValueError, match=r"`split='dev'` was given, but the source has the splits \['train', 'test'\]"
        ):
            load_captioned(splits, split="dev")

    def test_saved_to_disk(self, tmp_path):
        rows(caption=["a", "b"]).save_to_disk(tmp_path / "one")
        DatasetDict(train=rows(caption=["a", "b"])).save_to_disk(tmp_path / "two")
        assert load_captioned(tmp_path / "one")["caption"][:] == ["a", "b"]
        assert load_captioned(str(tmp_path / "two"))["train"]["caption"][:] == ["a", "b"]
        with pytest.raises(ValueError, match=r"'revision': 'x'.*was written by save_to_disk"):
            load_captioned(tmp_path / "one", revision="x")

    def test_parquet(self, tmp_path):
        (tmp_path / "data").mkdir()
        rows(caption=["a", "b"]).to_parquet(tmp_path / "data" / "train-00000.parquet")
        loaded = load_captioned(tmp_path / "data" / "train-00000.parquet")
        assert isinstance(loaded, Dataset)
        assert loaded[1]["image"].size == (5, 4)
        assert load_captioned(tmp_path / "data").num_rows == {"train": 2}
        assert load_captioned(tmp_path / "data", split="train").num_rows == 2

    def test_names_of_files_in_parquet_are_looked_up_beside_it(self, tmp_path, monkeypatch):
        (tmp_path / "data" / "photos").mkdir(parents=True)
        (tmp_path / "data" / "photos" / "a.png").write_bytes(content(0))
        table = Dataset.from_dict({"image": ["photos/a.png"], "caption": ["x"]})
        table.to_parquet(tmp_path / "data" / "x.parquet")
        monkeypatch.chdir(tmp_path)
        for source in ("data/x.parquet", "data"):
            loaded = load_captioned(source)
            loaded = loaded if isinstance(loaded, Dataset) else loaded["train"]
            assert undecoded(loaded)[0]["path"] == str(tmp_path / "data" / "photos" / "a.png")
            assert loaded["image_id"][:] == ["photos/a.png"]

    @pytest.mark.parametrize("place", ["", "images"])
    def test_a_parquet_file_beside_its_images(self, tmp_path, place):
        """`datasets` alone would load the images, and overlook the captions."""
        folder = tmp_path / "photos"
        (folder / place).mkdir(parents=True)
        for number in range(3):
            (folder / place / f"{number}.png").write_bytes(content(number))
        names = [f"{number}.png" for number in range(3)]
        table = Dataset.from_dict({"file_name": names, "caption": ["a", "b", "c"]})
        table.to_parquet(folder / "data.parquet")
        loaded = load_captioned(folder)
        assert loaded["caption"][:] == ["a", "b", "c"]
        assert undecoded(loaded)[2]["path"] == str(folder / place / "2.png")
        table.to_parquet(folder / "more.parquet")
        with pytest.raises(ValueError, match=r"several tables, \['data.parquet', 'more.parquet'\].*Name it"):
            load_captioned(folder)
        assert load_captioned(folder / "more.parquet")["image_id"][:] == names

    def test_a_parquet_file_beside_images_that_it_does_not_name(self, tmp_path):
        for number in range(3):
            (tmp_path / f"{number}.png").write_bytes(content(number))
        Dataset.from_dict({"caption": ["a", "b", "c"]}).to_parquet(tmp_path / "data.parquet")
        with pytest.raises(ValueError, match=r"`image` is not in the data, which has the columns \['caption'\]"):
            load_captioned(tmp_path)

    def test_a_few_images_beside_whole_parquet_files_are_not_its_data(self, tmp_path):
        for part in ("train", "test"):
            rows(caption=["a", "b"]).to_parquet(tmp_path / f"{part}.parquet")
        (tmp_path / "plot.png").write_bytes(content(0))
        assert load_captioned(tmp_path).num_rows == {"train": 2, "test": 2}

    def test_derived_ids_are_read_from_a_file(self, tmp_path):
        """What a start holds, and what a worker process is sent, does not grow with the rows."""
        file = io.BytesIO()
        Image.new("RGB", (4, 4)).save(file, "PNG")
        contents = [file.getvalue() + bytes([row % 200, row // 200]) for row in range(3000)]
        images = [{"bytes": content, "path": None} for content in contents]
        (tmp_path / "data").mkdir()
        pq.write_table(pa.table({"image": images, "caption": ["x"] * 3000}), tmp_path / "data" / "train.parquet")
        for _ in range(2):  # written, and found
            pairs = load_captioned(tmp_path / "data")["train"]
            assert pairs["image_id"][:] == [digest(content, size=16) for content in contents]
            assert len(pickle.dumps(pairs)) < 20_000
            assert pairs.shuffle(seed=0).select(range(9))["image_id"][:] == [
                digest(image["bytes"], size=16)
                for image in pairs.cast_column("image", datasets.Image(decode=False)).shuffle(seed=0)["image"][:9]
            ]
        part = pairs.select(range(1000, 2000))
        assert derive_image_ids(part.remove_columns("image_id"))["image_id"][:] == part["image_id"][:]

    def test_parquet_files_of_different_columns(self, tmp_path):
        rows(caption=["a", "b"]).to_parquet(str(tmp_path / "0.parquet"))
        rows(caption=["c", "d"], more=[1, 2]).to_parquet(str(tmp_path / "1.parquet"))
        with pytest.raises(ValueError, match=r"(?s)have different columns, .*more: int64"):
            load_captioned(tmp_path)
        parts = [load_captioned(tmp_path / f"{number}.parquet") for number in (0, 1)]
        assert datasets.concatenate_datasets(parts)["more"][:] == [None, None, 1, 2]

    def test_lists_of_captions_in_parquet(self, tmp_path):
        source = rows().add_column("captions", [["a", "b"], ["c"]], feature=List(Value("string")))
        source.to_parquet(tmp_path / "x.parquet")
        loaded = load_captioned(tmp_path / "x.parquet")
        assert loaded["caption"][:] == ["a", "b", "c"]
        assert undecoded(loaded)[2]["bytes"] == content(1)

    def test_a_builder_of_datasets(self, tmp_path):
        (tmp_path / "x.jsonl").write_text('{"image_id": "k", "caption": "a"}\n')
        loaded = load_captioned("json", data_files=str(tmp_path / "x.jsonl"), images=False, split="train")
        assert loaded["caption"][:] == ["a"]

    def test_images_of_a_builder_of_datasets(self, tmp_path):
        """Its files are in the folders that its options name, or in the caches."""
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "a.png").write_bytes(content(0))
        (tmp_path / "photos" / "metadata.csv").write_text("file_name,caption\na.png,A dog.\n")
        assert load_captioned("imagefolder", data_dir=str(tmp_path / "photos"), split="train")[0]["image"].size == (
            4,
            4,
        )
        path = tmp_path / "photos" / "a.png"
        (tmp_path / "photos" / "x.csv").write_text(f"image,caption\n{path},A dog.\n")
        for files in (f"{tmp_path}/photos/x.csv", [f"{tmp_path}/photos/x*.csv"], {"train": f"{tmp_path}/photos/x*"}):
            loaded = load_captioned("csv", data_files=files, split="train", check_images=False)
            assert undecoded(loaded)[-1]["path"] == str(path)
        (tmp_path / "list.csv").write_text("image,caption\n/etc/hostname,A dog.\n")
        with pytest.raises(ValueError, match="names files outside of"):
            load_captioned("csv", data_files=str(tmp_path / "list.csv"), split="train")

    def test_streamed(self):
        with pytest.raises(TypeError, match=r"was given an IterableDataset.* without `streaming=True`"):
            load_captioned(rows(caption=["a", "b"]).to_iterable_dataset())

    def test_no_such_path(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"There is no file or folder .*nowhere"):
            load_captioned(tmp_path / "nowhere")
        with pytest.raises(FileNotFoundError, match="There is no file or folder"):
            load_captioned("a/b/captions.json")

    def test_options_without_effect(self):
        with pytest.raises(ValueError, match="the data set is loaded already"):
            load_captioned(rows(caption=["a", "b"]), revision="main")
        with pytest.raises(ValueError, match="only Karpathy's files have such a split"):
            load_captioned(rows(caption=["a", "b"]), restval="drop")


def test_where_the_files_of_a_builder_may_be(tmp_path):
    def roots(source, images, **options):
        return Request("load_captioned", source, images, options=options).roots

    caches = [Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE)]
    files = {"train": ["a/b*.csv", "c.csv"], "test": "d/e/f.csv"}
    found = roots("csv", "images", data_files=files, data_dir="g")
    assert found == [Path("images"), Path("a"), Path("."), Path("d/e"), Path("g"), *caches]
    assert roots("csv", None, data_files="a/x.csv") == [Path("a"), *caches]
    assert roots("csv", False) == caches
    assert roots(rows(caption=["a", "b"]), "images") == [Path("images")]
    (tmp_path / "x.csv").touch()
    assert roots(tmp_path, "images") == [tmp_path, Path("images")]
    assert roots(tmp_path / "x.csv", None) == [tmp_path]


def test_what_is_handed_on_to_each_kind_of_download(tmp_path, monkeypatch):
    given, rows = [], Dataset.from_dict({"caption": ["a"], "url": ["http://b/c"]})
    for name in ("load_img2dataset", "load_redcaps", "load_url_list"):
        record = lambda *args, name=name, **options: given.append((name, args, options)) or rows  # noqa: E731
        monkeypatch.setattr(load, name, record)
    tars, red, urls, images = (tmp_path / name for name in ("tars", "red.json", "list.tsv", "images"))
    tars.mkdir()
    (tars / "0_stats.json").touch()
    red.write_text('{"annotations": [{"subreddit": 1, "raw_caption": 1, "url": 1}]}')
    urls.write_text("a\thttp://b/c\n")
    for source, folder in ((tars, None), (red, None), (red, images), (red, tars), (urls, images)):
        load.load_captioned(source, images=folder, num_proc=3, allow_outside=True, check_images=False)
    both = {"num_proc": 3, "allow_outside": True}
    handed_on = [
        {name: options.pop(name) for name in ("reject", "left_out") if name in options} for *_, options in given
    ]
    assert all(
        each["reject"].__self__.left_out is each.get("left_out", each["reject"].__self__.left_out)
        for each in handed_on
    )
    assert given == [
        ("load_img2dataset", (tars, None), both),
        ("load_redcaps", (red, None), {"allow_outside": True}),
        ("load_redcaps", (red, images), {"allow_outside": True}),
        ("load_url_list", (red, tars), both),
        ("load_url_list", (urls, images), both),
    ]
    for options in ({"revision": "x"}, {"download": True}, {"restval": "keep"}):
        with pytest.raises(ValueError, match=f"'{next(iter(options))}': .*would have no effect"):
            load.load_captioned(tars, **options)


def test_paths_that_are_addresses_absolute_or_missing(tmp_path):
    names = ["a.png", None, "zip://a.png::b.zip", "/c.png"]
    data = Dataset.from_dict({"image": names, "caption": list("abcd")})
    start = str(tmp_path)
    expected = [f"{start}/a.png", None, names[2], "/c.png"]
    assert image_paths(data["image"][:], None, tmp_path) == expected
    (tmp_path / "a.png").write_bytes(content(0))
    assert image_paths(data["image"][:], tmp_path, None) == expected


@pytest.mark.parametrize(("images", "found"), [(1, True), (2, True), (3, False)])
def test_as_many_images_as_parquet_files_are_not_its_data(tmp_path, images, found):
    for number in range(images):
        (tmp_path / f"{number}.png").write_bytes(content(number))
    for part in ("train", "test"):
        rows(caption=["a", "b"]).to_parquet(tmp_path / f"{part}.parquet")
    if found:
        assert load_captioned(tmp_path).num_rows == {"train": 2, "test": 2}
        return
    with pytest.raises(ValueError, match="several tables"):
        load_captioned(tmp_path)


class TestOutside:
    """What names files elsewhere."""

    @pytest.mark.parametrize(
        ("name", "elsewhere"),
        [
            *(("a/b.png", False), ("/a.png", False), ("a b:c", False)),
            *(("a:b/c", True), ("https://a/b", True), ("1://a", True)),
        ],
    )
    def test_names(self, name, elsewhere):
        assert outside_files.is_elsewhere(name) is elsewhere

    def test_features_that_hold_files(self):
        kinds = [datasets.Image(), List(datasets.Image()), {"a": {"b": datasets.Audio()}}, datasets.Video()]
        assert [outside_files.holds_files(kind) for kind in kinds] == [True] * 4
        plain = [Value("string"), List(Value("int64")), {"a": Value("string")}, datasets.Array2D((2, 2), "int8"), None]
        assert [outside_files.holds_files(kind) for kind in plain] == [False] * 5

    def test_the_files_that_rows_name(self):
        one, held = {"bytes": None, "path": "x.png"}, {"bytes": b"1", "path": "y.png"}
        cells = {"image": [one, held, None], "list": [[one, held], [], None], "deep": [{"a": [one]}, {"a": []}, None]}
        record = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        kinds = [record, pa.list_(record), pa.struct([("a", pa.list_(record))])]
        table = pa.table([pa.array(cells[name], kind) for name, kind in zip(cells, kinds, strict=True)], list(cells))
        image = datasets.Image(decode=False)
        features = Features({"image": image, "list": List(image), "deep": {"a": List(image)}})
        data = Dataset(table, info=datasets.DatasetInfo(features=features))
        assert list(outside_files.named_files(data)) == ["x.png"] * 3
        assert list(outside_files.named_files(data, ["list"])) == ["x.png"]

    @pytest.mark.parametrize("form", ["{}", "[{}]", "{{train: {}}}", "[{{split: a, path: [{}]}}]", "&a [{}, *a]"])
    @pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
    def test_files_that_a_card_names(self, tmp_path, form, name):
        for inner, fine in (("in/x.csv", True), ("../x.csv", False), ("https://a/x.csv", False)):
            text = f"configs:\n- config_name: a\n  data_files: {form.format(inner)}\n"
            (tmp_path / name).write_text(f"---\n{text}---\n# A card\n" if name == "README.md" else text)
            if fine:
                outside_files.validate_folder(tmp_path)
                continue
            with pytest.raises(ValueError, match="names files outside of"):
                outside_files.validate_folder(tmp_path)
        (tmp_path / name).write_text("data_files: ../x.csv" if name == "README.md" else "[: no YAML")
        outside_files.validate_folder(tmp_path)

    def test_what_is_inside(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "link").symlink_to(tmp_path)
        root, outside = str(tmp_path / "in"), str(tmp_path / "x")
        outside_files.validate_inside([f"{root}/a", None, "", f"{root}/b/../c"], [root], "x")
        for path, said in (
            (outside, outside),
            (f"{root}/..", r"/in/\.\."),
            (f"{root}/link", rf"/in/link \(a link leads to {tmp_path}\)"),
            (f"{root}/link/y", rf"/link/y \(a link leads to {tmp_path}/y\)"),
            (f"{root}/a\0b", r"a\\x00b"),
            ("http://a", "http://a"),
        ):
            with pytest.raises(ValueError, match=f"^x names files outside of .*{said}"):
                outside_files.validate_inside([path, f"{root}/a"], [root], "x")
        many = [f"{root}/../{number}" for number in range(4)]
        with pytest.raises(ValueError, match=r"/0, .*/1, .*/2 and 1 more\. They would be read"):
            outside_files.validate_inside(many, [root], "x")

    def test_saved_data_that_are_damaged(self, tmp_path):
        Dataset.from_dict({"a": ["aa", "bb", "cc"]}).save_to_disk(tmp_path / "saved")
        assert outside_files.load_saved(tmp_path / "saved")["a"][:] == ["aa", "bb", "cc"]
        (file,) = (tmp_path / "saved").glob("*.arrow")
        ends = [number.to_bytes(4, "little") for number in (0, 2, 4, 6)]
        whole = file.read_bytes()
        assert whole.count(b"".join(ends)) == 1
        file.write_bytes(whole.replace(b"".join(ends), b"".join([ends[0], b"\xff\xff\0\0", *ends[2:]])))
        with pytest.raises(ValueError, match=r"saved cannot be read \(ArrowInvalid"):
            outside_files.load_saved(tmp_path / "saved")
