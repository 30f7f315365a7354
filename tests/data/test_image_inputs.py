"""What a model sees of an image: pixels, stored features, regions."""

import io
import logging
import pickle
import struct
import zlib

import numpy as np
import pytest
import torch
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image
from torch.utils.data import DataLoader
from transformers import BatchFeature

from hf_curriculum import CaptionCollator, make_image_processor, train_wordpiece
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.image_inputs import (
    FeatureInputs,
    ImageInputs,
    MissingFeaturesError,
    PixelInputs,
    RegionInputs,
    images_for,
)
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.processors import CaptionProcessor, PixelTable, look_up
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.seeding import IndexedCollator, IndexedExample

TOKENIZER = train_wordpiece(["a dog runs fast"] * 2, 60)
COUNTS = {"4": 3, "7": 1, "9": 5}


def regions(image_id, dims=6, **parts):
    """An image of 100 × 50 pixels with `COUNTS[image_id]` regions of random features and boxes."""
    rng, count = np.random.default_rng(int(image_id)), COUNTS[image_id]
    corners = rng.uniform(0, 20, (count, 2)).astype(np.float32)
    made = {
        "boxes": np.concatenate([corners, corners + rng.uniform(1, 30, (count, 2)).astype(np.float32)], axis=1),
        "features": rng.normal(size=(count, dims)).astype(np.float32),
        "confidence": rng.uniform(size=count).astype(np.float32),
        "width": 100.0,
        "height": 50.0,
    }
    return Regions(image_id, **made | parts)


def jpeg(seed=0, mode="RGB", kind="JPEG", size=(60, 36), **options):
    """A smooth picture as a file."""
    y, x = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([4 * x, 7 * y, 255 - 2 * x - y + 20 * seed], axis=-1) % 256
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 60 * 36).astype(np.uint16).reshape(36, 60)).save(file, "PNG")
    return file.getvalue()


def animated(kind):
    return jpeg(kind=kind, save_all=True, append_images=[Image.new("RGB", (60, 36), "red")])


def huge():
    """A picture of 121 million pixels in a few bytes."""
    content = bytearray(jpeg(kind="PNG"))
    content[16:24] = struct.pack(">II", 11_000, 11_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


UNUSUAL = {
    "cmyk": lambda: jpeg(mode="CMYK"),
    "grey": lambda: jpeg(mode="L"),
    "turned": turned,
    "16 bits": sixteen_bits,
    "rgba": lambda: jpeg(mode="RGBA", kind="PNG"),
    "la": lambda: jpeg(mode="LA", kind="PNG"),
    "palette": lambda: jpeg(mode="P", kind="PNG", transparency=3),
    "gif": lambda: animated("GIF"),
    "webp": lambda: animated("WEBP"),
    "progressive": lambda: jpeg(progressive=True),
}
STORE = {image_id: regions(image_id) for image_id in COUNTS}


@pytest.fixture
def archive(tmp_path):
    """The store as a file that `open_regions` knows."""
    path = tmp_path / "store.npz"
    names = ("features", "boxes", "confidence")
    parts = {f"{key}/{name}": getattr(found, name) for key, found in STORE.items() for name in names}
    np.savez(path, **parts, **{f"{key}/size": [100, 50] for key in STORE})
    return path


def rows(*ids):
    return [
        {"image_id": image_id, "caption": " ".join(["dog"] * (place + 1)), "image": Image.new("RGB", (9, 7), place)}
        for place, image_id in enumerate(ids)
    ]


class TestRegions:
    @pytest.mark.parametrize("kind", ["mapping", "file"])
    def test_ragged_regions_are_padded_and_masked(self, archive, kind):
        inputs = RegionInputs(STORE if kind == "mapping" else open_regions(archive))
        batch = inputs.stack([inputs.read({"image_id": image_id}) for image_id in "479"])
        assert (batch["region_features"].shape, batch["region_features"].dtype) == ((3, 5, 6), torch.float32)
        assert batch["region_mask"].dtype == torch.int64
        assert batch["region_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
        for place, image_id in enumerate("479"):
            count = COUNTS[image_id]
            assert np.array_equal(batch["region_features"][place, :count], STORE[image_id].features)
            assert not batch["region_features"][place, count:].any()

    @pytest.mark.parametrize("normalise", [False, True])
    @pytest.mark.parametrize("by_area", [False, True])
    @pytest.mark.parametrize("most", [None, 2])
    def test_options_equal_the_reference_region_by_region(self, normalise, by_area, most):
        inputs = RegionInputs(
            STORE, box_values=True, normalise=normalise, by_area=by_area, boxes=True, max_regions=most
        )
        found, source = inputs.read({"image_id": "9"}), STORE["9"]
        kept = sorted(range(5), key=lambda region: -source.confidence[region])[:most]
        expected = []
        for region in sorted(kept):
            left, top, right, bottom = source.boxes[region]
            feature = source.features[region]
            if normalise:
                feature = feature / np.sqrt((feature**2).sum())
            area = (right - left) * (bottom - top) / (100 * 50)
            expected.append([*feature, left / 100, top / 50, right / 100, bottom / 50, area])
        if by_area:
            expected = sorted(expected, key=lambda values: values[-1], reverse=True)
        expected = np.array(expected)
        np.testing.assert_allclose(found["region_features"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["region_boxes"], expected[:, 6:10], rtol=1e-5)

    def test_without_confidences_the_first_regions_stay(self):
        inputs = RegionInputs({"9": regions("9", confidence=None)}, max_regions=2)
        assert np.array_equal(inputs.read({"image_id": "9"})["region_features"], STORE["9"].features[:2])

    def test_boxes_that_are_shares_need_no_size(self):
        shares = np.float32([[0, 0, 0.5, 0.5]] * 3)
        known = regions("4", boxes=shares, normalised=True, width=None, height=None)
        found = RegionInputs({"4": known}, boxes=True).read({"image_id": "4"})
        assert np.array_equal(found["region_boxes"], shares)

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    @pytest.mark.parametrize("options", [{}, {"normalise": True}, {"max_regions": 2}, {"box_values": True}])
    def test_a_store_s_batches_equal_its_images_one_by_one(self, archive, tmp_path, monkeypatch, dtype, options):
        store = pack_regions(archive, tmp_path / "packed", dtype=dtype, progress=False)
        inputs, calls, read_batch = RegionInputs(store, **options), [], RegionStore.read_batch
        monkeypatch.setattr(RegionStore, "read_batch", lambda self, ids: calls.append(ids) or read_batch(self, ids))
        for share in (False, True):
            collator = CaptionCollator(TOKENIZER, regions=inputs, share_images=share)
            batch, ids = collator(rows("9", "4", "9")), ["9", "4"] if share else ["9", "4", "9"]
            expected = inputs.stack([inputs.read({"image_id": image_id}) for image_id in ids])
            assert calls == ([] if {"max_regions", "box_values"} & set(options) else [ids])
            calls.clear()
            for name in ("region_features", "region_mask"):
                assert torch.equal(batch[name], expected[name])
            wanted = RegionInputs(STORE, **options).batch([{"image_id": image_id} for image_id in ids])
            torch.testing.assert_close(batch["region_features"], wanted["region_features"], atol=2e-3, rtol=1e-3)

    def test_what_a_store_s_batch_lacks_is_named(self, tmp_path):
        path = tmp_path / "boxes.npz"
        nothing = {"5/features": np.zeros((0, 2)), "5": np.zeros((0, 4))}
        np.savez(path, **{"4/features": np.ones((1, 2)), "4": [[0, 0, 5, 5]]}, **nothing)
        store = pack_regions(path, tmp_path / "packed", progress=False)
        inputs = RegionInputs(store)
        with pytest.raises(MissingFeaturesError, match=r"packed'\) has nothing of the image '7' \(`image_id`\)"):
            inputs.batch(rows("4", "7"))
        with pytest.raises(MissingFeaturesError, match=r"no region of the image '5' in RegionStore"):
            inputs.batch(rows("4", "4", "5"))
        with open(tmp_path / "packed" / "features.npy", "r+b") as file:
            file.seek(-2, 2)
            file.write(np.float16(np.nan).tobytes())
        with pytest.raises(ValueError, match=r"features\.npy holds something else than was written, of the image '4'"):
            RegionInputs(RegionStore(store.path)).batch(rows("4"))

    def test_workers_open_the_file_for_themselves(self, archive):
        inputs = pickle.loads(pickle.dumps(RegionInputs(open_regions(archive), normalise=True)))
        assert inputs.read({"image_id": "4"})["region_features"].norm(dim=1).tolist() == pytest.approx([1, 1, 1])

    @pytest.mark.parametrize(
        ("broken", "options", "error", "message"),
        [
            ({}, {}, MissingFeaturesError, r"dict has nothing of the image '4' \(`image_id`\).*drop such rows"),
            ({"features": None}, {}, ValueError, r"image '4' in dict have no features, which a model reads"),
            ({"boxes": None}, {"box_values": True}, ValueError, r"regions of image '4' have no boxes, whose values"),
            ({"width": None}, {"box_values": True}, ValueError, r"width and height of image '4' are.*hw\.tsv"),
            ({"height": None}, {"by_area": True}, ValueError, r"width and height of image '4' are not known"),
        ],
    )
    def test_what_is_missing_is_named(self, broken, options, error, message):
        store = {"4": regions("4", **broken)} if broken else {}
        with pytest.raises(error, match=message):
            RegionInputs(store, **options).read({"image_id": "4"})

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_numbers_that_are_not_finite(self, value):
        features = STORE["4"].features.copy()
        features[1, 2] = value
        with pytest.raises(MissingFeaturesError, match=r"features of the image '4' in dict are not all finite"):
            RegionInputs({"4": regions("4", features=features)}).read({"image_id": "4"})

    def test_sums_beyond_float32_are_no_fault(self):
        huge = np.full((3, 6), 3e38, np.float32)
        found = RegionInputs({"4": regions("4", features=huge)}).read({"image_id": "4"})
        assert np.array_equal(found["region_features"], huge)

    def test_an_image_without_regions(self, tmp_path):
        nothing = Regions("4", features=np.zeros((0, 6), np.float32))
        with pytest.raises(MissingFeaturesError, match=r"no region of the image '4' in dict.*would see nothing"):
            RegionInputs({"4": nothing}).read({"image_id": "4"})
        path = tmp_path / "boxes.npz"
        np.savez(path, **{"4": [[0, 0, 5, 5]], "5": np.zeros((0, 4))})
        with pytest.raises(ValueError, match=r"image '4' in RegionArchive\('.*boxes.npz'\) have no features"):
            RegionInputs(open_regions(path)).read({"image_id": "4"})
        with pytest.raises(MissingFeaturesError, match=r"no region of the image '5' in RegionArchive"):
            RegionInputs(open_regions(path)).read({"image_id": "5"})
        with pytest.raises(MissingFeaturesError, match=r"RegionArchive\('.*boxes.npz'\) has nothing of the image '6'"):
            RegionInputs(open_regions(path)).read({"image_id": "6"})

    @pytest.mark.parametrize("options", [{}, {"box_values": True}, {"box_values": "vinvl"}, {"boxes": True}])
    def test_the_width_that_a_model_reads(self, archive, tmp_path, options):
        packed = pack_regions(archive, tmp_path / "packed", progress=False)
        for store in ({"0": Regions("0"), **STORE}, open_regions(archive), packed):
            inputs = RegionInputs(store, **options)
            assert inputs.dims == inputs.read({"image_id": "9"})["region_features"].shape[1]
        with pytest.raises(ValueError, match="dict holds no region of any of its 1 images, so the width"):
            _ = RegionInputs({"0": Regions("0")}, **options).dims

    def test_features_of_two_detectors_make_no_batch(self):
        inputs = RegionInputs(STORE | {"7": regions("7", dims=8)})
        with pytest.raises(ValueError, match=r"`region_features` of the sizes \[\(6,\), \(8,\)\].*different det"):
            inputs.batch(rows("4", "7"))

    def test_no_region_at_most(self):
        with pytest.raises(ValueError, match=r"`max_regions=0` was given, which leaves no region"):
            RegionInputs(STORE, max_regions=0)


class TestOfAModel:
    """What a model that was trained on regions is saved with says how others are to be read."""

    def packed(self, archive, path, **options):
        return pack_regions(archive, path, dtype="float32", progress=False, **options)

    def test_options_are_kept_with_the_model(self, archive, tmp_path):
        store = self.packed(archive, tmp_path / "store", made_by="detector A")
        collator = CaptionCollator(TOKENIZER, regions=RegionInputs(store, box_values=True, normalise=True))
        CaptionProcessor(collator.image_processor, TOKENIZER).save_pretrained(tmp_path / "model")
        kept = CaptionProcessor.from_pretrained(tmp_path / "model").image_processor
        assert type(kept) is RegionProcessor
        again = RegionInputs.for_model(self.packed(archive, tmp_path / "other", made_by="detector A"), kept)
        assert repr(again).endswith("box_values=True, normalise=True, by_area=False, boxes=False, max_regions=None)")
        assert RegionInputs.for_model(store, kept, normalise=False).options["normalise"] is False
        assert RegionInputs.for_model(store, make_image_processor(8)).options["normalise"] is False
        with pytest.raises(ValueError, match=r"were made by .*RegionArchive"):
            RegionInputs(open_regions(archive)).image_processor(Image.new("RGB", (8, 8)))

    def test_another_store_than_trained_on(self, archive, tmp_path, caplog):
        store = self.packed(archive, tmp_path / "store", made_by="detector A")
        kept = RegionInputs(store).image_processor
        with pytest.raises(ValueError, match=r"were made by detector B, not standardised, .* those of detector A"):
            RegionInputs.for_model(self.packed(archive, tmp_path / "b", made_by="detector B"), kept)
        scaled = self.packed(archive, tmp_path / "scaled", made_by="detector A", standardise=True)
        with pytest.raises(ValueError, match=r"by detector A, standardised, .* those of detector A, not standardised"):
            RegionInputs.for_model(scaled, kept)
        own = RegionInputs(scaled).image_processor
        RegionInputs.for_model(scaled, own)
        own.mean = [value + 1 for value in own.mean]
        with pytest.raises(ValueError, match=r"trained on those of detector A, standardised by other numbers"):
            RegionInputs.for_model(scaled, own)
        assert caplog.text == ""
        unknown = self.packed(archive, tmp_path / "unknown")
        assert RegionInputs(unknown).image_processor.made_by == "whoever wrote store.npz"
        RegionInputs.for_model(unknown, kept)
        assert caplog.text == ""
        kept.made_by = {"model": "Detr"}
        RegionInputs.for_model(unknown, kept)
        assert "It is not known what made the features in RegionStore" in caplog.text


class TestPixelsAndFeatures:
    def test_a_processor_that_finds_regions_is_padded(self):
        class Detector:
            def __call__(self, images, return_tensors):
                (count,) = {image.width for image in images}
                return BatchFeature({"region_features": torch.ones(1, count, 4)})

        inputs = PixelInputs(Detector())
        found = [inputs.read({"image": Image.new("RGB", (width, 5))}) for width in (2, 3)]
        assert inputs.stack(found)["region_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]

    def test_a_processor_that_is_no_table_gets_the_batch_at_once(self):
        calls = []

        def processor(images, return_tensors):
            calls.append(len(images))
            return {"pixel_values": torch.zeros(len(images), 3, 2, 2)}

        assert PixelInputs(processor).batch(rows("4", "7", "9"))["pixel_values"].shape == (3, 3, 2, 2)
        assert calls == [3]

    def test_rows_are_named(self):
        for inputs in (PixelInputs(make_image_processor(8)), PixelInputs(lambda images, return_tensors: {})):
            with pytest.raises(UnreadableImageError, match=r"^Row 8: The image `7`: "):
                inputs.batch([rows("4")[0], {"image_id": "7", "image": None}], first_row=7)
        with pytest.raises(ValueError, match=r"^Row 5: dict has nothing of the image '3'"):
            RegionInputs(STORE).batch([{"image_id": "4"}, {"image_id": "3"}], first_row=4)

    @pytest.mark.parametrize("draft", [False, True])
    @pytest.mark.parametrize("kind", UNUSUAL)
    def test_unusual_files_are_one_image_on_every_backend(self, kind, draft):
        row = {"image": {"bytes": UNUSUAL[kind](), "path": None}}
        of_pil, of_torch = (
            PixelInputs(make_image_processor((40, 24), backend=backend, draft=draft)).as_bytes().read(row)
            for backend in ("pil", "torchvision")
        )
        assert (of_pil["pixel_values"].int() - of_torch["pixel_values"].int()).abs().max() <= 1
        expected = PixelInputs(make_image_processor((40, 24))).as_bytes().read({"image": to_rgb(row["image"])})
        assert torch.equal(of_pil["pixel_values"], expected["pixel_values"])  # all are smaller than twice the size

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (lambda: jpeg()[:400], r"an image given as bytes cannot be decoded \(OSError"),
            (lambda: b"<html>404</html>", r"cannot be decoded \(UnidentifiedImageError"),
            (lambda: huge(), r"11,000 × 11,000 = 121,000,000 pixels, more than the limit of 100,000,000"),
        ],
        ids=["truncated", "no image", "huge"],
    )
    def test_what_cannot_be_read_is_refused_in_the_same_words(self, content, message):
        for options in ({}, {"backend": "torchvision"}, {"draft": True}):
            with pytest.raises(UnreadableImageError, match=message):
                PixelInputs(make_image_processor(8, **options)).read({"image": content()})

    @pytest.mark.parametrize("share", [False, True])
    @pytest.mark.parametrize("backend", ["pil", "torchvision"])
    def test_bytes_are_the_same_crops_and_become_the_same_numbers(self, backend, share):
        augment = Augment(crop=(0.2, 0.8), flip=True, jitter=0.4)
        processor = make_image_processor(16, backend=backend)
        collator = CaptionCollator(TOKENIZER, processor, augment=augment, share_images=share)
        sending = CaptionCollator(TOKENIZER, processor, augment=augment, share_images=share)
        sending.image_inputs = collator.image_inputs.as_bytes()
        examples = [{"image": {"bytes": jpeg(seed), "path": None}, "caption": "a dog"} for seed in range(4)]
        drawn = [IndexedExample({**one, "image_id": str(row)}, row, 10 + row) for row, one in enumerate(examples)]
        expected, found = (IndexedCollator(one, 3, True)(drawn)["pixel_values"] for one in (collator, sending))
        assert found.dtype == torch.uint8
        assert found.nbytes * 4 == expected.nbytes
        assert torch.equal(look_up(collator.image_inputs.table, found), expected)
        assert not torch.equal(IndexedCollator(sending, 4, True)(drawn)["pixel_values"], found)

    def test_bytes_need_a_table(self):
        with pytest.raises(
            ValueError, match=r"sent as bytes .*: the image processor \(a function\) does more than resize"
        ):
            PixelInputs(lambda images, return_tensors: {}).as_bytes()
        assert PixelInputs(lambda images, return_tensors: {}).table is None

    def test_a_draft_reads_fewer_pixels_of_files_that_are_not_augmented(self, monkeypatch):
        seen, row = [], {"image": jpeg(size=(200, 120))}
        processor = make_image_processor((30, 20), draft=True)
        monkeypatch.setattr(PixelTable, "__call__", lambda self, image: seen.append(image.size))
        for inputs in (PixelInputs(processor), PixelInputs(processor, lambda image: image)):
            inputs.read(row)
        PixelInputs(make_image_processor((30, 20))).read(row)
        assert seen == [(50, 30), (200, 120), (200, 120)]

    def test_a_draft_of_images_that_are_decoded_already_is_refused(self):
        data = Dataset.from_dict({"image": [{"bytes": jpeg(), "path": None}]}, Features({"image": ImageFeature()}))
        inputs = PixelInputs(make_image_processor(8, draft=True))
        with pytest.raises(
            ValueError, match=r"`draft=True`, and the column 'image' of train_dataset decodes its images"
        ):
            inputs.validate(data, "train_dataset")
        inputs.validate(data.cast_column("image", ImageFeature(decode=False)), "train_dataset")
        PixelInputs(make_image_processor(8)).validate(data, "train_dataset")

    def test_what_is_random_is_drawn_once(self):
        inputs = PixelInputs(make_image_processor(8), Augment(crop=(0.2, 0.4)))
        assert inputs.is_random
        assert not inputs.without_augmentation().is_random
        row = {"image": Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))}
        drawn = inputs.draw(row)
        plain = inputs.without_augmentation()
        assert drawn["image"].size != row["image"].size
        assert torch.equal(plain.read(drawn)["pixel_values"], plain.read(drawn)["pixel_values"])
        assert plain.draw(row) is row

    def test_features_of_several_sizes_name_them(self):
        inputs = FeatureInputs({"4": np.zeros((5, 8)), "7": np.zeros((6, 8))})
        with pytest.raises(ValueError, match=r"stored features of the sizes \[\(5, 8\), \(6, 8\)\].*no mask"):
            inputs.batch(rows("4", "7"))
        with pytest.raises(MissingFeaturesError, match=r"dict has nothing of the image '9'"):
            inputs.read({"image_id": "9"})

    def test_a_model_s_device_and_type(self):
        batch = RegionInputs(STORE).batch(rows("4")) | {"labels": torch.zeros(1)}
        found = images_for(batch, torch.zeros(1, dtype=torch.bfloat16))
        assert {name: part.dtype for name, part in found.items()} == {
            "region_features": torch.bfloat16,
            "region_mask": torch.int64,
        }

    def test_the_first_row_may_be_row_0(self):
        with pytest.raises(ValueError, match=r"^Row 1: dict has nothing of the image '3'"):
            RegionInputs(STORE).batch([{"image_id": "4"}, {"image_id": "3"}], first_row=0)

    def test_the_base_reads_nothing(self):
        assert ImageInputs()._missing(None, None) == ({}, 0)
        with pytest.raises(NotImplementedError, match=r"ImageInputs does not define `read`"):
            ImageInputs().read({})


class TestCollator:
    def test_a_batch_with_regions(self, archive):
        collator = CaptionCollator(TOKENIZER, regions=open_regions(archive))
        assert collator.columns == ("image_id", "caption")
        assert not collator.is_random
        batch = collator(rows("4", "7", "4"))
        assert set(batch) == {"region_features", "region_mask", "input_ids", "attention_mask", "labels"}
        text = CaptionCollator(TOKENIZER)(rows("4", "7", "4"))
        for name, part in text.items():
            assert torch.equal(batch[name], part)
        assert torch.equal(batch["region_features"][0], batch["region_features"][2])
        assert torch.equal(collator.without_augmentation()(rows("7"))["region_mask"], torch.ones(1, 1).long())

    def test_workers_read_a_store(self, archive, tmp_path):
        store = pack_regions(archive, tmp_path / "packed", dtype="float32", progress=False)
        collator = CaptionCollator(TOKENIZER, regions=store)
        drawn = [IndexedExample(row, index, index) for index, row in enumerate(rows("9", "4"))]
        (batch,) = DataLoader(drawn, 2, collate_fn=IndexedCollator(collator, 0, False), num_workers=1)
        assert torch.equal(batch["region_features"], collator(rows("9", "4"))["region_features"])

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("share_images", [False, True])
    def test_a_curriculum_reads_a_batch_into_one_array(self, archive, tmp_path, monkeypatch, share_images, workers):
        """Drawn pair by pair or by image, in the process itself or in a worker."""
        store = pack_regions(archive, tmp_path / "packed", dtype="float32", progress=False)
        inputs = RegionInputs(store)
        expected = inputs.stack([inputs.read(row) for row in rows("9", "4")])
        monkeypatch.setattr(RegionInputs, "read", None)
        collator = CaptionCollator(TOKENIZER, regions=inputs, share_images=share_images)
        drawn = [IndexedExample(row, index, index) for index, row in enumerate(rows("9", "4"))]
        (batch,) = DataLoader(drawn, 2, collate_fn=IndexedCollator(collator, 0, False), num_workers=workers)
        assert all(torch.equal(batch[name], part) for name, part in expected.items())

    def test_shared_regions_are_read_once(self):
        reads = []

        class Counted(dict):
            def __getitem__(self, name):
                reads.append(name)
                return super().__getitem__(name)

        collator = CaptionCollator(TOKENIZER, regions=RegionInputs(Counted(STORE)), share_images=True)
        batch = collator(rows("7", "4", "7", "7"))
        assert reads == ["7", "4"]
        assert batch["image_index"].tolist() == [0, 1, 0, 0]
        assert batch["region_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]

    def test_one_way_to_see_an_image(self):
        for given in ({"image_processor": make_image_processor(8)}, {"vision_features": {}}, {"augment": Augment()}):
            with pytest.raises(ValueError, match=r"were given together with .*sees one of images, stored features"):
                CaptionCollator(TOKENIZER, regions=STORE, **given)
        with pytest.raises(ValueError, match=r"nor `vision_features` nor `regions`.*nothing to share"):
            CaptionCollator(TOKENIZER, share_images=True)

    def test_captions_without_a_known_word_are_counted_and_said_once(self, caplog):
        collator = CaptionCollator(TOKENIZER, prefix="a dog ")
        row = {"caption": "犬 犬"}
        with caplog.at_level(logging.WARNING):
            collator([{"caption": "犬 runs"}])
            assert (collator.num_unknown, caplog.text) == (0, "")
            collator([{"caption": "runs"}, row, row])
            collator([row])
        assert collator.num_unknown == 3
        assert caplog.text.count("knows no word of the caption '犬 犬'") == 1
