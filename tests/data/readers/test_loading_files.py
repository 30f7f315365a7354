"""Caption files and folders through `load_captioned`."""

import csv
import gzip
import json
import os

import datasets
import pytest
from PIL import Image

from hf_curriculum import load_captioned


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save_images(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 8), (number, 0, 0)).save(folder / name)


def save_lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def paths(dataset):
    undecoded = dataset.cast_column("image", datasets.Image(decode=False))
    return [image["path"] for image in undecoded["image"]]


@pytest.fixture
def folder(tmp_path):
    save_images(tmp_path / "data" / "images", "a.jpg", "b.jpg")
    return tmp_path / "data"


class TestTables:
    def test_captions_jsonl_beside_images(self, folder):
        save_lines(
            folder / "captions.jsonl",
            {"file_name": "a.jpg", "width": 8, "captions": ["A dog.", "犬 🐕"], "tags": ["x"]},
            {"file_name": "b.jpg", "width": 9, "captions": ["كلب يجري", "Un chien à l'œil vif\u2028."]},
        )
        rows = load_captioned(folder)
        assert rows.column_names == ["image", "caption", "image_id", "file_name", "width", "tags"]
        assert rows["tags"][:] == [["x"], ["x"], None, None]
        assert rows["caption"][:] == ["A dog.", "犬 🐕", "كلب يجري", "Un chien à l'œil vif\u2028."]
        assert rows["image_id"][:] == ["a.jpg", "a.jpg", "b.jpg", "b.jpg"]
        assert rows["width"][:] == [8, 8, 9, 9]
        assert isinstance(rows.features["image"], datasets.Image)
        assert paths(rows)[2] == str(folder / "images" / "b.jpg")
        assert rows[2]["image"].size == (9, 8)

    def test_the_file_itself_may_be_named(self, folder):
        save_lines(folder / "x.jsonl", {"file_name": "a.jpg", "captions": ["A dog."]})
        assert load_captioned(str(folder / "x.jsonl")).num_rows == 1

    def test_imagefolder_with_metadata_jsonl(self, tmp_path):
        save_images(tmp_path / "data", "a.jpg", "deep/b.jpg")
        save_lines(
            tmp_path / "data" / "metadata.jsonl",
            {"file_name": "a.jpg", "text": "A dog."},
            {"file_name": "deep/b.jpg", "text": "A cat."},
            {"file_name": "a.jpg", "text": "A puppy."},
        )
        rows = load_captioned(tmp_path / "data")
        assert rows["caption"][:] == ["A dog.", "A cat.", "A puppy."]
        assert rows["image_id"][:] == ["a.jpg", "deep/b.jpg", "a.jpg"]
        assert rows[1]["image"].size == (9, 8)

    def test_imagefolder_with_metadata_csv_and_splits(self, tmp_path):
        for split in ("train", "val"):
            save_images(tmp_path / "data" / split, "a.jpg")
            with open(tmp_path / "data" / split / "metadata.csv", "w", newline="") as file:
                csv.writer(file).writerows([["file_name", "caption"], ["a.jpg", f'A "{split}", with, commas']])
        splits = load_captioned(tmp_path / "data")
        assert list(splits) == ["train", "validation"]
        assert splits["validation"]["caption"][:] == ['A "val", with, commas']
        assert load_captioned(tmp_path / "data", split="train")["caption"][:] == ['A "train", with, commas']

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("captions.txt", 'image,caption\na.jpg,"A dog, running ."\nb.jpg,A "cat" .\n'),
            ("captions.csv", '\ufeffimage,caption\r\na.jpg,"A dog, running ."\r\nb.jpg,A "cat" .\r\n'),
            ("results.csv", 'image_name| comment_number| comment\na.jpg| 0| A dog, running .\nb.jpg| 0| A "cat" .\n'),
            ("captions.tsv", 'caption\tfile_name\nA dog, running .\ta.jpg\nA "cat" .\tb.jpg\n'),
            ("Flickr8k.token.txt", 'a.jpg#0\tA dog, running .\nb.jpg#0\tA "cat" .\n'),
        ],
    )
    def test_tables_of_text(self, tmp_path, name, text):
        save_images(tmp_path / "data" / "Images", "a.jpg", "b.jpg")  # as Flickr8k is shared
        (tmp_path / "data" / name).write_text(text, encoding="utf-8", newline="")
        rows = load_captioned(tmp_path / "data" / name)
        assert rows["caption"][:] == ["A dog, running .", 'A "cat" .']
        assert rows["image_id"][:] == ["a.jpg", "b.jpg"]

    @pytest.mark.parametrize("name", ["flickr_captions.csv", "labels.tsv", "results.CSV", "all.jsonl", "x.csv.gz"])
    def test_one_table_of_any_name_in_a_folder(self, tmp_path, name):
        save_images(tmp_path / "data", "a.jpg", "b.jpg")
        text = "image,caption\na.jpg,A dog.\n"
        text = '{"image": "a.jpg", "caption": "A dog."}' if name.endswith(".jsonl") else text
        content = text.encode() if not name.endswith(".tsv") else text.replace(",", "\t").encode()
        (tmp_path / "data" / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert load_captioned(tmp_path / "data")["caption"][:] == ["A dog."]

    def test_several_tables_in_a_folder(self, tmp_path):
        save_images(tmp_path / "data", "a.jpg")
        for name in ("results.csv", "labels.csv"):
            (tmp_path / "data" / name).write_text("image,caption\na.jpg,A dog.\n")
        with pytest.raises(ValueError, match=r"\['labels.csv', 'results.csv'\], .*load_captioned\('.*labels\.csv'\)"):
            load_captioned(tmp_path / "data")
        (tmp_path / "data" / "captions.csv").write_text("image,caption\na.jpg,The one.\n")
        assert load_captioned(tmp_path / "data")["caption"][:] == ["The one."]

    def test_one_table_of_any_name_in_each_folder_of_a_split(self, tmp_path):
        for split in ("train", "val"):
            save_images(tmp_path / "data" / split, "a.jpg")
            (tmp_path / "data" / split / "labels.csv").write_text(f"image,caption\na.jpg,{split}\n")
        assert {name: part["caption"][:] for name, part in load_captioned(tmp_path / "data").items()} == {
            "train": ["train"],
            "validation": ["val"],
        }

    @pytest.mark.parametrize(
        "header", ["Image,Caption", "FILENAME,TEXT", "File_Name,Sentence", "\ufeffImage_Path,Captions"]
    )
    def test_capitals(self, folder, header):
        (folder / "captions.csv").write_text(f"{header}\na.jpg,A dog.\n", encoding="utf-8")
        assert load_captioned(folder)["caption"][:] == ["A dog."]

    @pytest.mark.parametrize("pattern", ["caption{}", "Caption_{}", "sentence {}", "text-{}"])
    def test_numbered_captions(self, folder, pattern):
        fields = ",".join(pattern.format(number) for number in (10, 0, 1))
        (folder / "captions.csv").write_text(f"image,{fields},tag2\na.jpg,c,a,b,x\nb.jpg,,d,,y\n")
        assert load_captioned(folder)["caption"][:] == ["a", "b", "c", "d"]

    def test_a_caption_is_preferred_to_numbered_ones(self, folder):
        (folder / "captions.csv").write_text("image,caption1,Caption\na.jpg,no,yes\n")
        assert load_captioned(folder)["caption"][:] == ["yes"]

    def test_captions_that_are_numbered_from_the_second_on(self, folder):
        (folder / "captions.csv").write_text("image,caption3,Caption,caption2,text2\na.jpg,z,x,y,no\n")
        rows = load_captioned(folder)
        assert rows["caption"][:] == ["x", "y", "z"]
        assert rows["text2"][:] == ["no"] * 3
        rows = load_captioned(rows.remove_columns("image").select([0]).add_column("caption2", ["w"]), images=False)
        assert rows["caption"][:] == ["x", "w"]

    def test_a_list_of_json_on_one_line(self, folder):
        (folder / "x.jsonl").write_text('[{"image": "a.jpg", "caption": "x"}, {"image": "b.jpg", "caption": "y"}]')
        assert load_captioned(folder / "x.jsonl")["caption"][:] == ["x", "y"]

    def test_an_image_without_captions_has_a_row_of_null(self, folder, caplog):
        (folder / "x.jsonl").write_text(
            '{"image": "a.jpg", "captions": ["x", "y"]}\n{"image": "b.jpg", "captions": []}'
        )
        assert load_captioned(folder / "x.jsonl")["caption"][:] == ["x", "y", None]
        assert "1 of 3 captions are empty" in caplog.text

    def test_semicolons(self, folder):
        (folder / "captions.csv").write_text('image;caption\na.jpg;"A dog; a cat, too"\nb.jpg;Two, three\n')
        assert load_captioned(folder)["caption"][:] == ["A dog; a cat, too", "Two, three"]
        (folder / "captions.csv").write_text("image;caption\na.jpg;A dog; a cat\n")
        with pytest.raises(ValueError, match=r"separated by ';'.*that holds ';' must stand in double quotes"):
            load_captioned(folder)

    @pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
    def test_json_lines_that_end_in_json(self, folder, name):
        text = '{"image": "a.jpg", "caption": "A dog."}\n\n{"image": "b.jpg", "caption": "A cat."}\n'
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        assert load_captioned(folder / name)["caption"][:] == ["A dog.", "A cat."]

    def test_compressed(self, folder):
        with gzip.open(folder / "x.csv.gz", "wt") as file:
            file.write("image,caption\na.jpg,A dog.\n")
        assert load_captioned(folder / "x.csv.gz")["caption"][:] == ["A dog."]

    def test_a_list_of_objects_with_its_own_ids(self, folder):
        records = [{"image": "a.jpg", "caption": "A dog.", "image_id": 7}, {"image": "b.jpg", "caption": ["A cat."]}]
        (folder / "captions.json").write_text(json.dumps(records))
        rows = load_captioned(folder)
        assert rows["image_id"][:] == ["7", "b.jpg"]
        assert rows["caption"][:] == ["A dog.", "A cat."]

    def test_named_fields(self, folder):
        save_lines(
            folder / "x.jsonl", {"pic": "a.jpg", "words": "A dog.", "more": "A puppy.", "key": 3, "image": "no"}
        )
        rows = load_captioned(
            folder / "x.jsonl", columns={"image": "pic", "caption": ["words", "more"], "image_id": "key"}
        )
        assert rows["caption"][:] == ["A dog.", "A puppy."]
        assert rows["image_id"][:] == ["3", "3"]
        assert rows[0]["image"].size == (8, 8)

    def test_a_second_field_with_a_file_name_does_not_stand_in_for_the_image(self, folder):
        save_lines(folder / "captions.jsonl", {"image": "b.jpg", "file_name": "a.jpg", "text": "A dog."})
        assert paths(load_captioned(folder)) == [str(folder / "images" / "a.jpg")]

    def test_fields_that_only_some_rows_have_are_null_in_others(self, folder):
        save_lines(
            folder / "captions.jsonl",
            {"file_name": "a.jpg", "text": "A dog.", "mixed": 1, "some": 2, "huge": 2**70},
            {"file_name": "b.jpg", "text": "A cat.", "mixed": "1", "huge": 1},
        )
        rows = load_captioned(folder)
        assert rows.column_names == ["image", "caption", "image_id", "file_name", "some"]
        assert rows["some"][:] == [2, None]

    def test_empty_captions_are_counted(self, folder, caplog):
        save_lines(folder / "captions.jsonl", {"file_name": "a.jpg", "captions": ["", None, "A dog."]})
        assert load_captioned(folder).num_rows == 3
        assert (
            "2 of 3 captions are empty: hf_curriculum.data.captions.drop_empty_captions(dataset) removes them"
            in caplog.text
        )

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('{"file_name": "a.jpg", "text": "x"}\n{broken\n', r"Line 2 is not JSON, one object per line .*\{broken"),
            ('{"file_name": "a.jpg", "text": "x"}\n["a.jpg"]\n', r"Line 2 is \['a\.jpg'\]"),
            (
                '{"file_name": "a.jpg", "text": "x"}\n{"text": "y"}\n',
                "Line 2 has the `file_name` None",
            ),
            ('{"file_name": "a.jpg", "text": 3}\n', r"Line 1 has the caption 3 in \['text'\]"),
        ],
    )
    def test_broken_json_lines(self, folder, text, match):
        (folder / "captions.jsonl").write_text(text)
        with pytest.raises(ValueError, match=match):
            load_captioned(folder)

    def test_an_unquoted_comma(self, folder):
        (folder / "captions.csv").write_text("image,caption\na.jpg,A dog, running.\n")
        with pytest.raises(ValueError, match=r"Line 2 has more cells than the header .* must stand in double quotes"):
            load_captioned(folder)

    def test_a_broken_token_file(self, folder):
        (folder / "x.token.txt").write_text("a.jpg#0\tA dog.\nb.jpg A cat.\n")
        with pytest.raises(ValueError, match="Line 2 is not of the form"):
            load_captioned(folder)

    def test_a_token_file_with_a_space_for_the_first_tab(self, folder):
        (folder / "Flickr8k.token.txt").write_text("a.jpg#0 A dog, a cat.\n" + "b.jpg#0\tOne, two, three.\n" * 40)
        with pytest.raises(ValueError, match=r"Line 1 is not of the form name\.jpg#0<tab>caption .*A tab stands"):
            load_captioned(folder)


COCO = {
    "images": [
        {"id": 42, "file_name": "b.jpg", "width": 9, "license": 4},
        {"id": 7, "file_name": "a.jpg", "width": 8, "license": 1},
        {"id": 8, "file_name": "uncaptioned.jpg", "width": 8, "license": 1},
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "caption": "A dog."},
        {"id": 2, "image_id": 42, "caption": "Ein Hund läuft."},
        {"id": 3, "image_id": 7, "caption": "A puppy."},
    ],
}


class TestCoco:
    def test_with_its_folder_of_images(self, tmp_path):
        save_images(tmp_path / "val2017", "a.jpg", "b.jpg")
        (tmp_path / "captions_val2017.json").write_text(json.dumps(COCO))
        rows = load_captioned(tmp_path / "captions_val2017.json", images=tmp_path / "val2017")
        assert rows["image_id"][:] == ["7", "42", "7"]
        assert rows["caption"][:] == ["A dog.", "Ein Hund läuft.", "A puppy."]
        assert rows["caption_id"][:] == ["1", "2", "3"]
        assert rows["license"][:] == [1, 4, 1]
        assert rows[1]["image"].size == (9, 8)

    def test_as_text_alone(self, tmp_path, caplog):
        with gzip.open(tmp_path / "captions.json.gz", "wt") as file:
            json.dump(COCO, file)
        rows = load_captioned(tmp_path)
        assert "image" not in rows.column_names
        assert rows["image_id"][:] == ["7", "42", "7"]
        assert "No images next to" in caplog.text

    def test_images_left_out_on_request(self, folder, caplog):
        (folder / "captions.json").write_text(json.dumps(COCO))
        assert "image" in load_captioned(folder).column_names
        assert "image" not in load_captioned(folder, images=False).column_names
        left = {record.message.partition("left out: ")[2] for record in caplog.records}
        assert left == {"images without a caption: 1 (uncaptioned.jpg, for example)."}

    def test_captions_of_unlisted_images(self, folder, caplog):
        subset = {**COCO, "images": COCO["images"][1:]}
        (folder / "captions.json").write_text(json.dumps(subset))
        assert load_captioned(folder)["image_id"][:] == ["7", "7"]
        assert "captions of images that the file does not list: 1 (42, for example)" in caplog.text

    def test_fields_of_images_and_of_annotations_are_columns(self, folder, caplog):
        first, second, third = COCO["annotations"]
        annotations = [{**first, "lang": "x"}, {**second, "score": 1}, {**third, "score": 0.5, "file": "b"}]
        images = [{**COCO["images"][0], "file": "a", "licence": None}, {**COCO["images"][1], "licence": 3}]
        (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
        rows = load_captioned(folder).remove_columns("image").to_list()
        assert [(row["lang"], row["score"]) for row in rows] == [("x", None), (None, 1.0), (None, 0.5)]
        assert {row["image_id"]: (row["file"], row["licence"]) for row in rows} == {"42": ("a", None), "7": (None, 3)}
        assert "field `file` of annotations (images have such a field): 3" in caplog.text

    @pytest.mark.parametrize(
        ("odd", "match"),
        [
            (7, "Annotation 4 is 7, and an object with `image_id`"),
            ({"image_id": 7}, r"Annotation 4 is \{'image_id': 7\}"),
            ({"image_id": 7, "caption": ["a", "b"]}, r"Annotation 4 has the caption \['a', 'b'\]"),
            ({"image_id": None, "caption": "a"}, "An id is None"),
        ],
    )
    def test_a_fault_of_an_annotation_is_its_own(self, folder, caplog, odd, match):
        content = {**COCO, "annotations": [*COCO["annotations"], odd]}
        (folder / "captions.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"{match}.*bad_rows='drop'"):
            load_captioned(folder)
        assert len(load_captioned(folder, bad_rows="drop")) == 3
        assert "rows that cannot be read: 1" in caplog.text

    def test_a_file_none_of_whose_rows_can_be_read(self, folder):
        (folder / "x.jsonl").write_text('{"image": "a.jpg", "caption": "x"},\n')
        with pytest.raises(
            ValueError, match=r"holds no row that can be read.*cannot be read: 1 \(Line 1 is an object with a comma"
        ):
            load_captioned(folder / "x.jsonl", bad_rows="drop")

    def test_captions_of_other_images(self, folder):
        (folder / "captions.json").write_text(json.dumps({**COCO, "images": [{"id": 1, "file_name": "a.jpg"}]}))
        with pytest.raises(ValueError, match=r"None of the 3 captions .* image_id '7'"):
            load_captioned(folder)

    @pytest.mark.parametrize(
        ("annotations", "match"),
        [
            ([{"id": 1, "image_id": 7, "bbox": [1, 2, 3, 4]}], r"\['bbox', 'id', 'image_id'\]"),
            ([], "has no annotations"),
        ],
    )
    def test_boxes_are_no_captions(self, tmp_path, annotations, match):
        (tmp_path / "instances.json").write_text(json.dumps({**COCO, "annotations": annotations}))
        with pytest.raises(ValueError, match=rf"{match}.*captions_.*json; instances_.*json hold boxes"):
            load_captioned(tmp_path / "instances.json")


def karpathy_image(number, split, **fields):
    sentences = [{"raw": f"Caption {number}.", "tokens": ["caption", str(number)], "sentid": number * 10}]
    return {"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": sentences, **fields}


class TestKarpathy:
    def save(self, folder, *images):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}))
        return folder / "dataset_coco.json"

    def test_flickr(self, tmp_path):
        save_images(tmp_path / "data" / "images", "0.jpg", "1.jpg", "2.jpg")
        self.save(tmp_path / "data", *(karpathy_image(n, split) for n, split in enumerate(("test", "train", "val"))))
        splits = load_captioned(tmp_path / "data")
        assert {split: rows["caption"][:] for split, rows in splits.items()} == {
            "train": ["Caption 1."],
            "validation": ["Caption 2."],
            "test": ["Caption 0."],
        }
        assert splits["test"]["image_id"][:] == ["0"]
        assert splits["test"]["caption_id"][:] == ["0"]

    def coco(self, folder):
        save_images(folder / "coco" / "train2014", "0.jpg")
        save_images(folder / "coco" / "val2014", "1.jpg", "2.jpg")
        return self.save(
            folder,
            karpathy_image(0, "train", filepath="train2014", cocoid=900),
            karpathy_image(1, "restval", filepath="val2014", cocoid=901),
            karpathy_image(2, "val", filepath="val2014", cocoid=902),
        )

    @pytest.mark.parametrize(
        ("restval", "expected"),
        [
            ("train", {"train": ["900", "901"], "validation": ["902"]}),
            ("keep", {"train": ["900"], "restval": ["901"], "validation": ["902"]}),
            ("drop", {"train": ["900"], "validation": ["902"]}),
        ],
    )
    def test_restval(self, tmp_path, restval, expected):
        splits = load_captioned(self.coco(tmp_path), images=tmp_path / "coco", restval=restval)
        assert {split: rows["image_id"][:] for split, rows in splits.items()} == expected
        assert list(splits) == list(expected)
        assert paths(splits["validation"]) == [str(tmp_path / "coco" / "val2014" / "2.jpg")]

    def test_images_in_one_flat_folder(self, tmp_path):
        save_images(tmp_path / "flat", "0.jpg", "1.jpg", "2.jpg")
        splits = load_captioned(self.coco(tmp_path), images=tmp_path / "flat")
        assert paths(splits["validation"]) == [str(tmp_path / "flat" / "2.jpg")]

    def test_only_the_split_asked_for_needs_its_images(self, tmp_path):
        file = self.coco(tmp_path)
        (tmp_path / "coco" / "train2014" / "0.jpg").unlink()
        assert load_captioned(file, images=tmp_path / "coco", split="validation").num_rows == 1

    def test_tokens_without_raw_text(self, tmp_path):
        image = karpathy_image(3, "train", sentences=[{"tokens": ["a", "dog"]}])
        rows = load_captioned(self.save(tmp_path, image), images=False, split="train")
        assert rows["caption"][:] == ["a dog"]
        assert rows["image_id"][:] == ["3"]

    def test_an_unknown_split(self, tmp_path):
        file = self.save(tmp_path, karpathy_image(0, "train"), karpathy_image(1, "val"))
        with pytest.raises(ValueError, match=r"`split='val'` .* has the splits \['train', 'validation'\]"):
            load_captioned(file, images=False, split="val")

    def test_an_unknown_restval(self, tmp_path):
        with pytest.raises(ValueError, match="counted as 'train', kept apart"):
            load_captioned(self.save(tmp_path, karpathy_image(0, "train")), images=False, restval="validation")

    def test_a_missing_field(self, tmp_path):
        file = self.save(tmp_path, karpathy_image(0, "train"), {"filename": "x.jpg", "sentences": []})
        with pytest.raises(ValueError, match=r"Image 1 of the Karpathy file has no \['split'\]"):
            load_captioned(file, images=False)


class TestNothingRecognised:
    def test_the_rules_are_printed(self, tmp_path):
        (tmp_path / "notes.md").write_text("")
        with pytest.raises(
            ValueError, match=r"recognises nothing in .* holds \['notes.md'\]. It recognises:\n- a Dataset"
        ):
            load_captioned(tmp_path)

    def test_a_full_folder_is_not_listed_whole(self, tmp_path):
        for number in range(30):
            (tmp_path / f"{number:02}.bin").touch()
        with pytest.raises(ValueError, match=r"'09\.bin'\] and 20 more"):
            load_captioned(tmp_path)

    def test_an_unknown_ending(self, tmp_path):
        (tmp_path / "captions.xml").touch()
        with pytest.raises(ValueError, match=r"does not recognise .*captions\.xml by its ending '\.xml'"):
            load_captioned(tmp_path / "captions.xml")

    @pytest.mark.parametrize(
        ("content", "match"),
        [
            ({"info": {}, "annotations": []}, r"Its object has the fields \['info', 'annotations'\]"),
            ([{"file_name": "a.jpg", "prompt": "x"}], r"Its rows have the fields \['file_name', 'prompt'\]"),
            ([], r"Its rows have the fields \[\]"),
            ("text", "It holds 'text'"),
            ([[1], [2]], r"It holds \[\[1\], \[2\]\]"),
        ],
    )
    def test_unknown_fields(self, tmp_path, content, match):
        (tmp_path / "x.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=match):
            load_captioned(tmp_path / "x.json")

    def test_a_wrong_mapping(self, folder):
        save_lines(folder / "captions.jsonl", {"file_name": "a.jpg", "text": "A dog.", "id": 1})
        with pytest.raises(
            ValueError, match=r"have the fields \['file_name', 'text', 'id'\], and `columns=\{'caption': 'cap"
        ):
            load_captioned(folder, columns={"caption": "cap"})
        with pytest.raises(ValueError, match="does not recognise"):
            load_captioned(folder, columns={"image_id": "key"})

    def test_several_caption_files(self, tmp_path):
        for year in (2014, 2017):
            (tmp_path / f"captions_val{year}.json").touch()
        with pytest.raises(
            ValueError, match=r"\['captions_val2014.json', 'captions_val2017.json'\], and it is not known"
        ):
            load_captioned(tmp_path)

    @pytest.mark.parametrize("text", ['{"a": 1}\n{"a": 2}', '{"a": 1', '{"a": 1} x', "{} {}", "1\n2\n", ""])
    def test_json_that_is_none(self, tmp_path, text):
        (tmp_path / "x.json").write_text(text)
        match = "does not recognise" if text.startswith('{"a": 1}\n') else r"x\.json is not JSON, nor JSON Lines"
        with pytest.raises(ValueError, match=match):
            load_captioned(tmp_path / "x.json")

    def test_another_encoding(self, tmp_path):
        (tmp_path / "x.csv").write_bytes("image,caption\na.jpg,Wölfe\n".encode("latin-1"))
        with pytest.raises(ValueError, match=r"x\.csv is not UTF-8"):
            load_captioned(tmp_path / "x.csv")


class TestWithoutEffect:
    """An argument that would do nothing is refused."""

    @pytest.fixture
    def table(self, folder):
        save_lines(folder / "captions.jsonl", {"file_name": "a.jpg", "text": "A dog."})
        return folder

    def test_restval_elsewhere(self, table):
        with pytest.raises(ValueError, match=r"'restval': 'keep'.* would have no effect"):
            load_captioned(table, restval="keep")

    def test_a_split_of_one_table(self, table):
        for split in ("train", "all"):
            with pytest.raises(ValueError, match=f"`split='{split}'` was given, but the source has no splits"):
                load_captioned(table, split=split)

    def test_options_of_load_dataset(self, table):
        with pytest.raises(ValueError, match=r"'revision': 'main'.*is not loaded by `datasets.load_dataset`"):
            load_captioned(table, revision="main")

    @pytest.mark.parametrize("content", [COCO, {"images": [karpathy_image(0, "train")]}])
    def test_columns_of_a_fixed_format(self, tmp_path, content):
        (tmp_path / "x.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="whose fields are fixed"):
            load_captioned(tmp_path / "x.json", columns={"caption": "text"})


class TestFolderOfImages:
    @pytest.fixture
    def table(self, folder):
        save_lines(folder / "captions.jsonl", {"file_name": "a.jpg", "text": "A dog."})
        return folder

    def test_it_does_not_exist(self, table):
        with pytest.raises(FileNotFoundError, match=r"nowhere does not exist. Give another as `images=`"):
            load_captioned(table, images=table / "nowhere")

    def test_it_holds_other_images(self, table, tmp_path):
        save_images(tmp_path / "other", "z.jpg")
        with pytest.raises(FileNotFoundError, match=r"None of the 1 images .*'a\.jpg'.*Looked in .*`images=False`"):
            load_captioned(table, images=tmp_path / "other", check_images=False)

    def test_it_may_be_the_folder_above(self, table):
        assert paths(load_captioned(table, images=table)) == [str(table / "images" / "a.jpg")]

    def test_paths_are_absolute(self, table, monkeypatch):
        monkeypatch.chdir(table.parent)
        assert paths(load_captioned("data")) == [str(table / "images" / "a.jpg")]


def test_a_mapping_the_wrong_way_round_of_a_table(folder):
    (folder / "captions.csv").write_text("image,caption\na.jpg,A dog.\n")
    with pytest.raises(ValueError, match=r"`columns` has the keys \['img'\]"):
        load_captioned(folder, columns={"img": "image"})
    every = {"image": "image", "caption": ["image", "caption"]}  # all columns that there are
    assert load_captioned(folder, columns=every)["caption"][:] == ["a.jpg", "A dog."]


@pytest.mark.parametrize("header", ["image,caption,text,url", "Image,Caption,Text,URL"])
def test_the_first_name_of_a_caption_counts_alone_and_an_empty_one_is_kept(folder, header, caplog):
    (folder / "captions.csv").write_text(f"{header}\na.jpg,A dog.,no,x\nb.jpg,,no,x\n")
    (folder / "dataset_infos.json").write_text("{}")  # of `datasets`
    assert load_captioned(folder)["caption"][:] == ["A dog.", ""]
    assert "1 of 2 captions are empty" in caplog.text


def test_integers_that_arrow_can_hold_are_kept(folder):
    low, high = -(2**63), 2**63 - 1
    numbers = {"low": low, "high": high, "below": low - 1, "above": high + 1}
    save_lines(folder / "captions.jsonl", {"file_name": "a.jpg", "text": "x", **numbers})
    rows = load_captioned(folder)
    assert rows.column_names == ["image", "caption", "image_id", "file_name", "low", "high"]
    assert (rows["low"][0], rows["high"][0]) == (low, high)


def test_ten_entries_are_listed_whole(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.bin").touch()
    with pytest.raises(ValueError, match=r"'9\.bin'\]\. It recognises"):
        load_captioned(tmp_path)


def test_splits_of_a_karpathy_file_have_an_order(tmp_path):
    names = ["zoo", "test", "extra", "val", "restval", "train"]
    images = [karpathy_image(number, split) for number, split in enumerate(names)]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    found = load_captioned(tmp_path / "dataset.json", images=False, restval="keep")
    assert list(found) == ["train", "restval", "validation", "test", "extra", "zoo"]


def test_a_fifo_among_images_is_refused_though_they_are_not_checked(folder):
    os.mkfifo(folder / "images" / "c.jpg")
    save_lines(folder / "captions.jsonl", *({"file_name": f"{name}.jpg", "text": "x"} for name in "abc"))
    with pytest.raises(ValueError, match=r"c\.jpg is a FIFO"):
        load_captioned(folder, check_images=False)
