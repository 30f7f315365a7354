"""Regions that models find, and the processor that finds them again: equal to what the models' own code says."""

from __future__ import annotations

import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from datasets import Image as ImageFeature
from PIL import Image
from transformers import (
    AutoImageProcessor,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessorPil,
    Dinov2Backbone,
    Dinov2Config,
    ResNetConfig,
    ResNetModel,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    SwinConfig,
    SwinModel,
    TimmWrapperConfig,
    TimmWrapperModel,
    ViTConfig,
    ViTModel,
    YolosConfig,
    YolosForObjectDetection,
)

from hf_curriculum import load_captioned, make_image_processor
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.regions import extract as module
from hf_curriculum.data.regions.detectors import Limits, build_torchvision, feature_map, load_detector, wrap_detector
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.values import arrange_regions, stack_regions

RNG = np.random.default_rng(0)
IMAGES = {
    str(number): Image.fromarray(RNG.integers(0, 255, (60 + number % 2 * 20, 80, 3), dtype=np.uint8))
    for number in range(5)
}
SMALL = make_image_processor(32)


def detr(**options):
    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    config = DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=16,
        num_queries=20, num_labels=6, **sizes, **options,
    )  # fmt: skip
    return DetrForObjectDetection(config).eval()


DETR_PROCESSOR = DetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96})


def faster_rcnn():
    torch.manual_seed(0)
    classes = ["nothing", "dog", "cat", "tree", "car"]
    return build_torchvision(
        "fasterrcnn_mobilenet_v3_large_320_fpn", classes, num_classes=5, min_size=64, max_size=96,
        rpn_post_nms_top_n_test=60,
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def grid_store(tmp_path_factory):
    """The shipped CLIP's states averaged to 4 × 4 and standardised."""
    folder = tmp_path_factory.mktemp("grid") / "store"
    return extract_regions(IMAGES, "scenes_clip", folder, grid=4, standardise=True, progress=False)


def test_which_detections_are_kept():
    confidence = torch.tensor([0.1, 0.9, 0.3, 0.2, 0.3])
    assert Limits(0.2, 1, 10).keep(confidence).tolist() == [1, 2, 4, 3]
    assert Limits(0.5, 3, 10).keep(confidence).tolist() == [1, 2, 4]
    assert Limits(0.0, 1, 2).keep(confidence).tolist() == [1, 2]
    assert len(Limits(0.2, 10, 100).keep(confidence)) == 5


def test_states_of_detr_are_those_its_boxes_come_from(tmp_path):
    model = detr()
    store = extract_regions(
        IMAGES, model, tmp_path / "store", image_processor=DETR_PROCESSOR, dtype="float32", min_regions=3,
        max_regions=9, threshold=0.155, progress=False,
    )  # fmt: skip
    assert list(store) == list(IMAGES)
    for image_id, image in IMAGES.items():
        inputs = DETR_PROCESSOR(images=image, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        found = store[image_id]
        scores = outputs.logits[0].softmax(-1)[:, :-1]
        order = scores.max(-1).values.argsort(descending=True, stable=True)[: len(found)]
        count = int((scores.max(-1).values >= 0.155).sum())
        assert len(found) == min(max(count, 3), 9)
        close = {"atol": 1e-4, "rtol": 1e-4}
        np.testing.assert_allclose(found.features, outputs.last_hidden_state[0, order], **close)
        np.testing.assert_allclose(found.class_scores, scores[order], **close)
        # The detector's own boxes follow from the states that were stored.
        boxes = model.bbox_predictor(torch.from_numpy(found.features)).sigmoid().detach()
        middle, side = boxes[:, :2], boxes[:, 2:]
        edges = torch.cat([middle - side / 2, middle + side / 2], 1).clamp(0, 1)
        np.testing.assert_allclose(found.boxes, edges * torch.tensor([*image.size] * 2), atol=1e-2)
        assert (found.width, found.height) == image.size
        assert set(found.classes) <= set(model.config.id2label.values())
        np.testing.assert_allclose(found.confidence, found.class_scores.max(1))
        assert (np.diff(found.confidence) <= 0).all()


def other_detectors():
    torch.manual_seed(0)
    yolos = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[32, 32],
        patch_size=8, num_detection_tokens=12, num_labels=3,
    )  # fmt: skip
    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    rt_detr = RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[16] * 3, encoder_ffn_dim=16,
        encoder_attention_heads=2, d_model=16, num_queries=14, decoder_in_channels=[16] * 3, decoder_ffn_dim=16,
        decoder_layers=1, decoder_attention_heads=2, num_denoising=0, num_labels=4, encode_proj_layers=[2],
        anchor_image_size=None,
    )  # fmt: skip
    return {"yolos": YolosForObjectDetection(yolos).eval(), "rt_detr": RTDetrForObjectDetection(rt_detr).eval()}


@pytest.mark.parametrize("name", ["yolos", "rt_detr"])
def test_other_detectors_of_transformers(name):
    model = other_detectors()[name]
    size = {"yolos": 32, "rt_detr": 64}[name]
    processor = RegionProcessor(model, image_processor=make_image_processor(size), max_regions=10)
    (found,) = processor.find([IMAGES["0"]])
    with torch.no_grad():
        outputs = model(pixel_values=make_image_processor(size)(IMAGES["0"], return_tensors="pt")["pixel_values"])
    queries = outputs.logits.shape[1]
    probabilities = outputs.logits[0].softmax(-1)[:, :-1] if name == "yolos" else outputs.logits[0].sigmoid()
    order = probabilities.max(-1).values.argsort(descending=True, stable=True)[:10]
    states = outputs.last_hidden_state[0, -queries:][order]
    np.testing.assert_allclose(found.features, states, atol=1e-4)
    assert len(found) == 10
    assert found.class_scores.shape == (10, model.config.num_labels)


def test_roi_features_of_a_faster_rcnn(tmp_path):
    model = faster_rcnn()
    store = extract_regions(
        IMAGES, model, tmp_path / "store", dtype="float32", min_regions=3, max_regions=9, progress=False
    )
    found = store["1"]
    assert len(found) == 9
    assert found.features.shape == (9, 1024)
    assert found.class_scores.shape == (9, 4)
    assert set(found.classes) <= {"dog", "cat", "tree", "car"}
    # Every detection is one of the model's own, found without its limits.
    heads = model.roi_heads
    heads.score_thresh, heads.nms_thresh, heads.detections_per_img = 0.0, 1.0, 10_000
    with torch.no_grad():
        (own,) = model([torch.from_numpy(np.array(IMAGES["1"])).permute(2, 0, 1) / 255])
        logits, _ = heads.box_predictor(torch.from_numpy(found.features))
    np.testing.assert_allclose(found.class_scores, logits.softmax(-1)[:, 1:], atol=1e-5)
    for box, confidence in zip(found.boxes, found.confidence, strict=True):
        distance = (own["boxes"] - torch.from_numpy(box)).abs().amax(1) + (own["scores"] - confidence).abs()
        assert distance.min() < 1e-3
    assert found.boxes[:, [0, 2]].max() <= 80
    assert found.boxes[:, [1, 3]].max() <= 80


def vision_towers():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    backbone = Dinov2Config(**size, out_features=["stage1"], reshape_hidden_states=True)
    swin = SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[1, 1, 1], num_heads=[1, 1, 1], window_size=2)
    text = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    clip = CLIPConfig(text_config=text, vision_config={**size, "intermediate_size": 16}, projection_dim=8)
    resnet = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1] * 4, layer_type="basic")
    return {
        "vit": (ViTModel(ViTConfig(**size, intermediate_size=16)), 4),
        "dinov2 backbone": (Dinov2Backbone(backbone), 4),
        "swin": (SwinModel(swin), 4),
        "clip": (CLIPModel(clip), 4),
        "resnet": (ResNetModel(resnet), 1),
    }


@pytest.mark.parametrize("name", ["vit", "dinov2 backbone", "swin", "clip", "resnet"])
def test_grids_of_vision_towers(name, tmp_path):
    model, side = vision_towers()[name]
    processor = RegionProcessor(model.eval(), image_processor=SMALL)
    loaded = processor.load()
    assert loaded.kind == "grid"
    (found,) = processor.find([IMAGES["0"]])
    assert found.features.shape == (side * side, 16 if name != "swin" else 32)
    np.testing.assert_allclose(found.area_shares(), np.full(side * side, side**-2), rtol=1e-5)
    pixels = SMALL(IMAGES["0"], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        outputs = loaded.model(pixel_values=pixels)
        states = outputs.feature_maps[-1] if name == "dinov2 backbone" else outputs.last_hidden_state
    if name in ("vit", "clip"):
        wanted = states[0, 1:]
    else:
        wanted = states[0] if states.ndim == 3 else states[0].flatten(1).T
    np.testing.assert_allclose(found.features, wanted, atol=1e-5)
    processor.save_pretrained(tmp_path / "model")
    again = AutoImageProcessor.from_pretrained(tmp_path / "model", backend="pil")
    np.testing.assert_allclose(again.find([IMAGES["0"]])[0].features, found.features, atol=1e-5)


def test_cells_are_averages_of_their_states():
    model, _ = vision_towers()["vit"]
    (fine,) = RegionProcessor(model.eval(), image_processor=SMALL).find([IMAGES["0"]])
    (coarse,) = RegionProcessor(model, image_processor=SMALL, grid=2).find([IMAGES["0"]])
    states = fine.features.reshape(4, 4, 16)
    np.testing.assert_allclose(coarse.features[1], states[:2, 2:].mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(coarse.boxes[1], [0.5, 0, 1, 0.5])
    with pytest.raises(ValueError, match=r"`grid=5` was given, and ViTModel has 4 by 4 states"):
        RegionProcessor(model, image_processor=SMALL, grid=5).find([IMAGES["0"]])


def test_boxes_of_cells_where_the_image_is_cropped():
    model, _ = vision_towers()["vit"]
    crop = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    (found,) = RegionProcessor(model.eval(), image_processor=crop, grid=2).find([Image.new("RGB", (80, 40))])
    np.testing.assert_allclose(found.boxes[0], [0.25, 0, 0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(found.boxes[3], [0.5, 0.5, 0.75, 1], atol=1e-6)


def test_timm_models_by_folder(tmp_path):
    pytest.importorskip("timm")
    torch.manual_seed(0)
    small = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2}
    config = TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args=small, do_pooling=False, num_classes=0,
        pretrained_cfg={"input_size": [3, 32, 32], "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3},
    )  # fmt: skip
    model = TimmWrapperModel(config).eval()
    model.save_pretrained(tmp_path / "timm")
    (found,) = RegionProcessor(tmp_path / "timm").find([Image.new("RGB", (32, 32), (255, 0, 0))])
    pixels = torch.tensor([1.0, -1, -1]).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    with torch.no_grad():
        states = model(pixels).last_hidden_state[0, 1:]
    np.testing.assert_allclose(found.features, states, atol=1e-5)
    np.testing.assert_allclose(found.boxes[3], [0.5, 0.5, 1, 1])


def test_the_shipped_clip_averaged_and_standardised(grid_store):
    features = torch.cat([grid_store.features(image_id) for image_id in grid_store])
    assert features.shape == (80, 128)
    torch.testing.assert_close(features.mean(0), torch.zeros(128), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.std(0, unbiased=False), torch.ones(128), atol=1e-4, rtol=0)
    states = load_detector("scenes_clip")
    raw = states.find([IMAGES["1"]], ["1"], 4, Limits(0, 1, 100))[0].features
    mean, deviation = grid_store.moments.numpy()
    np.testing.assert_allclose(grid_store["1"].features, (raw - mean) / deviation, atol=2e-2)


class TestProcessor:
    def test_gives_a_model_what_the_store_gave_it(self, grid_store, tmp_path):
        RegionProcessor.from_store(grid_store, box_values=True, boxes=True).save_pretrained(tmp_path / "model")
        processor = AutoImageProcessor.from_pretrained(tmp_path / "model", backend="pil")
        assert isinstance(processor, RegionProcessor)
        assert not (tmp_path / "model" / "detector").exists()  # a name is enough
        batch = processor(images=list(IMAGES.values()), return_tensors="pt")
        assert set(batch) == {"region_features", "region_mask", "region_boxes"}
        assert batch["region_features"].shape == (5, 16, 133)
        assert batch["region_mask"].tolist() == [[1] * 16] * 5
        stored = [
            arrange_regions(grid_store.describe(name), grid_store.features(name), box_values=True, boxes=True)
            for name in IMAGES
        ]
        for name, values in stack_regions(stored).items():
            torch.testing.assert_close(batch[name], values, atol=2e-2, rtol=0)  # the store rounds to float16
        one = processor(IMAGES["0"])["region_features"]
        torch.testing.assert_close(one[0], batch["region_features"][0], atol=1e-5, rtol=1e-5)

    def test_is_saved_with_its_detector(self, tmp_path):
        first = RegionProcessor(detr(), image_processor=DETR_PROCESSOR, min_regions=3, max_regions=7, by_area=True)
        wanted, about = first(list(IMAGES.values())), first.describe()
        for step, folder in enumerate(("model", "moved", "again")):
            first.save_pretrained(tmp_path / folder)
            assert (tmp_path / folder / "detector" / "model.safetensors").is_file()
            assert str(tmp_path) not in (tmp_path / folder / "preprocessor_config.json").read_text()
            first = AutoImageProcessor.from_pretrained(tmp_path / folder)
            first.save_pretrained(tmp_path / folder)  # into the folder it came from
            if step == 0:
                first.load()
        found = first(list(IMAGES.values()))
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5)
        assert first.describe() == about
        larger = DetrImageProcessorPil(size={"shortest_edge": 80, "longest_edge": 96})
        other = RegionProcessor(detr(), image_processor=larger, min_regions=3, max_regions=7).describe()
        assert {name for name in about if other[name] != about[name]} == {"pixels"}

    def test_a_folder_is_copied_into_the_model(self, tmp_path):
        detr().save_pretrained(tmp_path / "detr")
        DETR_PROCESSOR.save_pretrained(tmp_path / "detr")
        processor = RegionProcessor(tmp_path / "detr", min_regions=2, max_regions=4)
        wanted = processor(IMAGES["0"])["region_features"]
        processor.save_pretrained(tmp_path / "model")
        (tmp_path / "detr").rename(tmp_path / "gone")
        found = AutoImageProcessor.from_pretrained(tmp_path / "model")
        assert json.loads((tmp_path / "model" / "preprocessor_config.json").read_text())["detector"] == "detector"
        torch.testing.assert_close(found(IMAGES["0"])["region_features"], wanted)

    def test_faster_rcnn_is_saved_by_its_builder(self, tmp_path):
        processor = RegionProcessor(faster_rcnn(), min_regions=2, max_regions=4)
        wanted = processor.find([IMAGES["0"]])[0]
        processor.save_pretrained(tmp_path / "model")
        found = AutoImageProcessor.from_pretrained(tmp_path / "model").find([IMAGES["0"]])[0]
        np.testing.assert_allclose(found.features, wanted.features, atol=1e-5)
        assert found.classes == wanted.classes
        other = faster_rcnn()
        del other.region_builder
        with pytest.raises(ValueError, match=r"cannot be saved with a model that others load"):
            RegionProcessor(other).save_pretrained(tmp_path / "other")

    def test_a_store_of_unknown_origin_says_which_detector_is_needed(self, tmp_path):
        (tmp_path / "feats").mkdir()
        np.savez(tmp_path / "feats" / "9.npz", feat=np.ones((2, 4), np.float32))
        for made_by, name in ((None, "whoever wrote feats"), ("bottom-up attention", "bottom-up attention")):
            store = pack_regions(tmp_path / "feats", tmp_path / name, made_by=made_by, progress=False)
            RegionProcessor.from_store(store).save_pretrained(tmp_path / "model")
            processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
            with pytest.raises(ValueError, match=f"were made by {name}, outside of this library"):
                processor(IMAGES["0"])

    def test_workers_load_their_own(self, grid_store):
        processor = RegionProcessor.from_store(grid_store)
        processor.load()
        text = pickle.dumps(processor)
        assert len(text) < 10_000
        torch.testing.assert_close(pickle.loads(text)(IMAGES["0"]), processor(IMAGES["0"]))

    def test_limits_of_a_model_that_sees_less(self, grid_store):
        processor = RegionProcessor.from_store(grid_store, max_regions=5)
        assert (processor.min_regions, processor.max_regions) == (5, 5)
        with pytest.raises(TypeError, match="no option 'grid'"):
            RegionProcessor.from_store(grid_store, grid=2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"min_regions": 0}, "`min_regions=0` and `max_regions=100`"),
            ({"min_regions": 5, "max_regions": 4}, "`min_regions=5` and `max_regions=4`"),
            ({"threshold": 1.5}, "`threshold=1.5`"),
            ({"grid": 0}, "`grid=0`"),
            ({"batch_size": 0}, "`batch_size=0`"),
            ({"mean": [0.0]}, "`mean` and `std` one was given"),
        ],
    )
    def test_options_out_of_range(self, options, message):
        with pytest.raises(ValueError, match=message):
            RegionProcessor("scenes_clip", **options)

    def test_mistakes(self, tmp_path):
        with pytest.raises(TypeError, match="has no option 'gird'"):
            RegionProcessor("scenes_clip", gird=4)
        with pytest.raises(FileNotFoundError, match="There is no 'me/none' to find regions with"):
            RegionProcessor("me/none").load()
        with pytest.raises(ValueError, match="without its image processor"):
            RegionProcessor(detr())
        with pytest.raises(ValueError, match="`return_tensors='np'`"):
            RegionProcessor("scenes_clip", grid=1)(IMAGES["0"], return_tensors="np")
        detr().save_pretrained(tmp_path / "detr")
        DETR_PROCESSOR.save_pretrained(tmp_path / "detr")
        with pytest.raises(ValueError, match=r"`grid=2` was given with .* a detector"):
            RegionProcessor(tmp_path / "detr", grid=2).load()
        with pytest.raises(ValueError, match="`push_to_hub=True` uploads the settings alone"):
            RegionProcessor(tmp_path / "detr").save_pretrained(tmp_path / "pushed", push_to_hub=True)
        unsaved = RegionProcessor(**RegionProcessor(detr(), image_processor=DETR_PROCESSOR).to_dict())
        with pytest.raises(ValueError, match="was given as a model and is not saved"):
            unsaved.load()
        config = detr().config
        config.save_pretrained(tmp_path / "detr")
        ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
            tmp_path / "vit"
        )
        (tmp_path / "vit" / "model.safetensors").rename(tmp_path / "detr" / "model.safetensors")
        with pytest.raises(ValueError, match=r"lacks \d+ weights of a DetrForObjectDetection"):
            load_detector(tmp_path / "detr")

    def test_models_without_states_of_regions(self):
        ssd = type("SSD", (torch.nn.Module,), {"__module__": "torchvision.models.detection.ssd"})
        with pytest.raises(TypeError, match="SSD has no head over regions"):
            wrap_detector(ssd())
        model = detr()
        model.config.id2label = {0: "a"}
        with pytest.raises(ValueError, match="has 7 outputs per box and 1 labels"):
            RegionProcessor(model, image_processor=DETR_PROCESSOR).find([IMAGES["0"]])

        class NoStates(torch.nn.Module):
            config = detr().config

            def __init__(self):
                super().__init__()
                self.inner = detr()

            def forward(self, pixel_values):
                outputs = self.inner(pixel_values)
                outputs.last_hidden_state = None
                return outputs

        NoStates.__name__ = "NoStatesForObjectDetection"
        with pytest.raises(TypeError, match="gives no state of each detection"):
            RegionProcessor(NoStates(), image_processor=DETR_PROCESSOR).find([IMAGES["0"]])
        tower, _ = vision_towers()["vit"]
        with pytest.raises(ValueError, match="ViTModel has 17 states for an image of 640 by 8 pixels"):
            feature_map(_Fixed(tower), {"pixel_values": torch.zeros(1, 3, 640, 8)})
        with pytest.raises(TypeError, match="gives neither `feature_maps` nor patch states"):
            feature_map(_Nothing(), {"pixel_values": torch.zeros(1, 3, 8, 8)})


class _Fixed:
    """A tower whose states do not follow its image's size."""

    def __init__(self, tower):
        self.config = tower.config
        self.tower = tower
        _Fixed.__name__ = type(tower).__name__

    def __call__(self, pixel_values):
        return self.tower(torch.zeros(1, 3, 32, 32))


class _Nothing:
    def __call__(self, pixel_values):
        return ()


class TestExtract:
    def test_a_data_set_has_each_image_once(self, tmp_path, grid_store):
        rows = {"image": [IMAGES["0"], IMAGES["0"], IMAGES["1"]], "image_id": ["0", "0", "1"]}
        data = DatasetDict(
            train=Dataset.from_dict(rows), val=Dataset.from_dict({"image": [IMAGES["2"]], "image_id": ["2"]})
        )
        store = extract_regions(data, "scenes_clip", tmp_path / "store", grid=4, num_workers=1, progress=False)
        assert list(store) == ["0", "1", "2"]
        mean, deviation = grid_store.moments
        torch.testing.assert_close(
            (store.features("2") - mean) / deviation, grid_store.features("2"), atol=2e-2, rtol=0
        )

    def test_a_folder_of_images(self, tmp_path, caplog):
        (tmp_path / "photos" / "a").mkdir(parents=True)
        IMAGES["1"].save(tmp_path / "photos" / "a" / "1.png")
        IMAGES["0"].save(tmp_path / "photos" / "0.png")
        (tmp_path / "photos" / "notes.txt").write_text("")
        (tmp_path / "photos" / "a" / "._1.png").write_bytes(b"\0\5")
        store = extract_regions(tmp_path / "photos", "scenes_clip", tmp_path / "store", grid=2, progress=False)
        assert list(store) == ["0.png", "a/1.png"]
        assert "1 (notes.txt, for example); hidden files and folders: 1 (a/._1.png, for example)" in caplog.text
        (tmp_path / "photos" / "0.png").write_bytes(b"no image")
        with pytest.raises(UnreadableImageError, match=r"The image '0.png' cannot be decoded"):
            extract_regions(tmp_path / "photos", "scenes_clip", tmp_path / "other", grid=2, progress=False)
        with pytest.raises(FileNotFoundError, match="no folder of images"):
            extract_regions(tmp_path / "none", "scenes_clip", tmp_path / "other")

    def test_goes_on_where_it_stopped(self, tmp_path, monkeypatch):
        def run(name):
            return extract_regions(
                IMAGES, "scenes_clip", tmp_path / name, grid=4, standardise=True, batch_size=2, progress=False
            )

        whole = run("whole")
        find = RegionProcessor.find
        monkeypatch.setattr(module.StoreWriter, "save_sometimes", module.StoreWriter.save)
        calls = []

        def stop(self, images, ids):
            calls.append(ids)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return find(self, images, ids)

        monkeypatch.setattr(RegionProcessor, "find", stop)
        with pytest.raises(KeyboardInterrupt):
            run("killed")
        with pytest.raises(FileNotFoundError, match="has 4 images and is unfinished"):
            RegionStore(tmp_path / "killed")
        found = run("killed")
        assert calls[2:] == [["4"], ["4"]]
        for image_id in IMAGES:
            torch.testing.assert_close(found.features(image_id), whole.features(image_id), atol=1e-3, rtol=0)
        assert found.facts["images"] == 5

    def test_another_model_or_other_images(self, tmp_path, grid_store):
        def again(images=IMAGES, **options):
            options = {"grid": 4, "standardise": True, "progress": False} | options
            return extract_regions(images, "scenes_clip", grid_store.path, **options)

        assert again().fingerprint == grid_store.fingerprint
        with pytest.raises(ValueError, match="holds the regions of another detector or setting"):
            again(grid=2)
        with pytest.raises(ValueError, match="another set of images"):
            again({"0": IMAGES["0"]})
        with pytest.raises(ValueError, match="another type of number"):
            again(dtype="float32")
        with pytest.raises(ValueError, match="another standardisation"):
            again(standardise=False)

    @pytest.mark.parametrize("form", ["folder", "files", "captioned", "bytes"])
    def test_an_image_that_changed_since(self, form, tmp_path):
        photos = tmp_path / "photos"
        photos.mkdir()

        def save(name, image):  # uncompressed: all of one size
            image.resize((64, 64)).save(photos / name)

        def run(store="store"):
            data = {f"{number}.bmp": photos / f"{number}.bmp" for number in range(3)}
            if form == "folder":
                data = photos
            elif form == "captioned":
                data = load_captioned(photos)
            elif form == "bytes":
                stored = [{"bytes": file.read_bytes(), "path": None} for file in data.values()]
                data = Dataset.from_dict({"image": stored, "image_id": [*data]}).cast_column("image", ImageFeature())
            return extract_regions(data, "scenes_clip", tmp_path / store, grid=2, progress=False)

        for number in range(3):
            save(f"{number}.bmp", IMAGES[str(number)])
        if form == "captioned":
            lines = "".join(f"{number}.bmp,a picture\n" for number in range(3))
            (photos / "metadata.csv").write_text(f"file_name,caption\n{lines}")
        before = run()
        (photos / "0.bmp").touch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RegionProcessor, "find", None)  # nothing is found again
            assert torch.equal(run().features("1.bmp"), before.features("1.bmp"))
        save("1.bmp", IMAGES["4"])
        with pytest.raises(ValueError, match=r"holds features of other images: '1.bmp' has changed since.*1 of 3"):
            run()
        now = run("other")
        assert torch.equal(now.features("0.bmp"), before.features("0.bmp"))
        assert not torch.equal(now.features("1.bmp"), before.features("1.bmp"))

    def test_a_broken_image_is_replaced_and_the_run_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module.StoreWriter, "save_sometimes", module.StoreWriter.save)
        for number in range(3):
            IMAGES[str(number)].save(tmp_path / f"{number}.png")
        (tmp_path / "1.png").write_bytes(b"broken")
        run = partial(extract_regions, model="scenes_clip", grid=2, batch_size=1, progress=False)
        files = {str(number): tmp_path / f"{number}.png" for number in range(3)}
        with pytest.raises(UnreadableImageError, match="The image '1' cannot be decoded"):
            run(files, path=tmp_path / "store")
        IMAGES["1"].save(tmp_path / "1.png")
        found, whole = run(files, path=tmp_path / "store"), run(files, path=tmp_path / "whole")
        assert all(torch.equal(found.features(name), whole.features(name)) for name in files)
        (tmp_path / "1.png").write_bytes(b"broken")
        with pytest.raises(UnreadableImageError):
            run(files, path=tmp_path / "part")
        IMAGES["4"].save(tmp_path / "0.png")
        with pytest.raises(ValueError, match=r"'0' has changed since they were found \(1 of 1 have\)"):
            run(files, path=tmp_path / "part")

    def test_by_the_processor_of_a_trained_model(self, tmp_path, grid_store):
        processor = RegionProcessor.from_store(grid_store)
        store = extract_regions({"new": IMAGES["1"]}, processor, tmp_path / "store", progress=False)
        torch.testing.assert_close(store.features("new"), grid_store.features("1"), atol=2e-2, rtol=0)
        assert torch.equal(store.moments, grid_store.moments)
        assert store.fingerprint == grid_store.fingerprint
        with pytest.raises(ValueError, match=r"options of its own, so \['grid'\] would not count"):
            extract_regions(IMAGES, processor, tmp_path / "other", grid=4)
        with pytest.raises(ValueError, match="`standardise=True` was given with a processor"):
            extract_regions(IMAGES, processor, tmp_path / "other", standardise=True)

    def test_mistakes(self, tmp_path):
        with pytest.raises(ValueError, match=r"`image_id` is not in the data"):
            extract_regions(Dataset.from_dict({"image": [IMAGES["0"]]}), "scenes_clip", tmp_path / "a")
        nameless = Dataset.from_dict({"image": [IMAGES["0"]], "image_id": [None]})
        with pytest.raises(ValueError, match="1 of 1 rows have no `image_id`"):
            extract_regions(nameless, "scenes_clip", tmp_path / "a")
        with pytest.raises(ValueError, match="There is no image"):
            extract_regions({}, "scenes_clip", tmp_path / "a")
        with pytest.raises(ValueError, match="`dtype='int8'`"):
            extract_regions(IMAGES, "scenes_clip", tmp_path / "a", dtype="int8")

    @pytest.mark.slow
    def test_two_processes_find_what_one_does(self, tmp_path, launch):
        (tmp_path / "photos").mkdir()
        for number in ("0", "1"):  # of three processes one has no image
            IMAGES[number].save(tmp_path / "photos" / f"{number}.png")
        arguments = ["features", tmp_path / "photos", "--model", "scenes_clip", "--grid", 4, "--standardise"]
        for name, processes in (("one", 1), ("two", 2), ("three", 3)):
            launch("hf_curriculum.cli", *arguments[:2], tmp_path / name, *arguments[2:], processes=processes)
        one, two, three = (RegionStore(tmp_path / name) for name in ("one", "two", "three"))
        assert list(one) == list(two) == list(three)
        for image_id in one:
            torch.testing.assert_close(two.features(image_id), one.features(image_id), atol=1e-3, rtol=0)
        assert two.facts["made_by"] == one.facts["made_by"]
        again = {"model": "scenes_clip", "grid": 4, "standardise": True, "min_regions": 10, "progress": False}
        assert list(extract_regions(tmp_path / "photos", path=tmp_path / "two", **again)) == list(two)
        IMAGES["2"].save(tmp_path / "photos" / "1.png")
        with pytest.raises(ValueError, match=r"'1.png' has changed since they were found \(1 of 2 have\)"):
            extract_regions(tmp_path / "photos", path=tmp_path / "two", **again)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "photos", "three", "two"]
        wanted = RegionProcessor.from_store(one)(IMAGES["0"])["region_features"]
        torch.testing.assert_close(
            RegionProcessor.from_store(two)(IMAGES["0"])["region_features"], wanted, atol=1e-3, rtol=0
        )
