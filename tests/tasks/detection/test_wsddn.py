"""`WsddnForObjectDetection` beside loops over regions and classes, and each picture alone."""

from __future__ import annotations

import inspect
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForObjectDetection,
    BertConfig,
    CLIPVisionConfig,
    Dinov2Config,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
)

from hf_curriculum.names import MODELS
from hf_curriculum.tasks.detection import ConvBackboneConfig, WsddnConfig, WsddnForObjectDetection
from hf_curriculum.tasks.detection.backbone import backbone_facts, map_of
from hf_curriculum.tasks.detection.config import VGG16
from hf_curriculum.tasks.detection.model import image_losses
from hf_curriculum.tasks.detection.regions import keep_best, pool_regions, spatial_distance

SIZES = [(64, 48), (40, 80), (64, 48), (50, 33)]
"""Heights and widths; the first and the third picture pass the backbone together."""


def tiny(seed=0, batch_norm=False, **options):
    """Three stages, stride 4, five classes."""
    torch.manual_seed(seed)
    backbone = ConvBackboneConfig(stages=((8, 8), (8,), (12,)), batch_norm=batch_norm)
    defaults = {"pool_size": 3, "head_sizes": (16, 10), "dropout": 0.0, "initializer_range": 0.5, "num_labels": 5}
    return WsddnForObjectDetection(WsddnConfig(backbone, **{**defaults, **options}))


def batch(seed=0, counts=(6, 1, 4, 3), classes=5):
    """Pictures of three sizes with one to six proposals; padding is of no sensible value."""
    generator = torch.Generator().manual_seed(seed)
    pictures = [torch.rand(3, *size, generator=generator) for size in SIZES]
    proposals = torch.full((len(SIZES), max(counts), 4), 777.0)
    for row, ((height, width), count) in enumerate(zip(SIZES, counts, strict=True)):
        corners = torch.rand(count, 2, 2, generator=generator).sort(dim=1).values * torch.tensor([width, height])
        proposals[row, :count] = corners.flatten(1)
    labels = (torch.rand(len(SIZES), classes, generator=generator) < 0.4).float()
    labels[:, 0] = 1
    return {
        "pixel_values": pictures,
        "proposals": proposals,
        "proposal_counts": torch.tensor(counts),
        "labels": labels,
    }


def only(given, row):
    """One picture of a batch, without padding."""
    count = int(given["proposal_counts"][row])
    return {
        "pixel_values": [given["pixel_values"][row]],
        "proposals": given["proposals"][row : row + 1, :count],
        "labels": given["labels"][row : row + 1],
    }


def gradients(model):
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize(("classes", "parameters"), [(80, 134_916_064), (20, 134_424_424)])
def test_the_number_of_parameters(classes, parameters):
    with torch.device("meta"):
        model = AutoModelForObjectDetection.from_config(AutoConfig.for_model("curriculum_wsddn", num_labels=classes))
    assert model.num_parameters() == parameters
    assert model.stride == 16
    assert type(model) is MODELS["wsddn"] is WsddnForObjectDetection


@pytest.mark.parametrize(("positives", "loss"), [(1, 5.375750), (2, 9.745198), (3, 14.114646)])
@pytest.mark.parametrize("regions", [1, 6])
def test_the_loss_of_uniform_logits(positives, loss, regions):
    model = tiny(num_labels=80)
    for stream in (model.class_stream, model.detection_stream):
        nn.init.zeros_(stream.weight)
    labels = torch.zeros(4, 80)
    labels[:, 5 : 5 + positives] = 1
    given = batch(counts=(regions,) * 4) | {"labels": labels}
    out = model(**given)
    assert out.loss.item() == pytest.approx(loss, abs=2e-5)
    assert out.losses.tolist() == pytest.approx([loss] * 4, abs=2e-5)
    assert torch.allclose(out.image_scores, torch.full((4, 80), 1 / 80))
    assert torch.allclose(out.scores, torch.full((4, regions, 80), 1 / (80 * regions)))


def test_a_score_that_is_no_number_makes_a_loss_that_is_none():
    scores = torch.tensor([[0.5, math.nan], [0.25, 1.5]], requires_grad=True)
    found = image_losses(scores, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert math.isnan(found[0].item())
    assert found[1].item() == pytest.approx(-math.log(0.75))
    found[1].backward()
    assert scores.grad[1].tolist() == pytest.approx([4 / 3, 0])


@torch.no_grad()
def naive(model, given, row):
    """One picture's scores and loss, region after region and class after class."""
    picture, count = given["pixel_values"][row], int(given["proposal_counts"][row])
    features = model.backbone.features(picture[None])[0]
    rows = []
    for box in given["proposals"][row, :count]:
        state = naive_pool(features, box, 3, 4).flatten()
        for layer in model.head:
            state = layer(state)
        rows.append((model.class_stream(state), model.detection_stream(state)))
    scores = torch.zeros(count, 5)
    for region, (by_class, by_region) in enumerate(rows):
        for number in range(5):
            over_classes = by_class[number].exp() / by_class.exp().sum()
            over_regions = by_region[number].exp() / sum(other[1][number].exp() for other in rows)
            scores[region, number] = over_classes * over_regions
    loss = 0.0
    for number, wanted in enumerate(given["labels"][row]):
        probability = float(sum(scores[region, number] for region in range(count)))
        loss -= math.log(probability) if wanted else math.log(1 - probability)
    return scores, loss


def naive_pool(features, box, size, stride):
    """RoI max pooling in loops: edges rounded half up, bins from ⌊·⌋ to ⌈·⌉, cut at the map's edges."""
    channels, rows, columns = features.shape
    left, top, right, bottom = (math.floor(float(edge) / stride + 0.5) for edge in box)
    width, height = max(right - left + 1, 1), max(bottom - top + 1, 1)
    pooled = torch.zeros(channels, size, size)
    for y in range(size):
        for x in range(size):
            y0 = min(max(math.floor(np.float32(y) * (np.float32(height) / size)) + top, 0), rows)
            y1 = min(max(math.ceil(np.float32(y + 1) * (np.float32(height) / size)) + top, 0), rows)
            x0 = min(max(math.floor(np.float32(x) * (np.float32(width) / size)) + left, 0), columns)
            x1 = min(max(math.ceil(np.float32(x + 1) * (np.float32(width) / size)) + left, 0), columns)
            if y1 > y0 and x1 > x0:
                pooled[:, y, x] = features[:, y0:y1, x0:x1].amax((1, 2))
    return pooled


@pytest.mark.parametrize("size", [3, 7])
def test_roi_pooling_is_that_of_loops_bit_for_bit(size):
    generator = torch.Generator().manual_seed(size)
    maps = torch.randn(2, 4, 20, 30, generator=generator)
    corners = torch.rand(60, 2, 2, generator=generator) * torch.tensor([500.0, 340.0])
    boxes = corners.sort(dim=1).values.flatten(1)
    boxes[:20] = (boxes[:20] / 8).round() * 8  # halves of cells
    images = torch.arange(60) % 2
    pooled = pool_regions(maps, images, boxes, size, 16, "roi_pool")
    for image, box, ours in zip(images, boxes, pooled, strict=True):
        assert torch.equal(ours, naive_pool(maps[image], box, size, 16))


def test_it_is_a_loop_over_regions_and_classes():
    model, given = tiny(), batch()
    out = model(**given)
    expected = [naive(model, given, row) for row in range(4)]
    for row, (scores, loss) in enumerate(expected):
        assert torch.allclose(out.scores[row, : len(scores)], scores, atol=1e-6)
        assert (out.scores[row, len(scores) :] == 0).all()
        assert out.losses[row].item() == pytest.approx(loss, rel=1e-5)
    assert out.loss.item() == pytest.approx(np.mean([loss for _, loss in expected]), rel=1e-5)
    assert torch.allclose(out.image_scores, out.scores.sum(1))
    shares = given["proposals"][1, 0] / torch.tensor([80, 40, 80, 40])
    assert torch.equal(out.pred_boxes[1, 0], shares)


def test_one_point_of_a_bin_is_its_middle():
    maps = torch.arange(64.0).reshape(1, 1, 8, 8)
    boxes, images = torch.tensor([[2.0, 2.0, 6.0, 6.0]]), torch.zeros(1, dtype=torch.int64)
    middle = pool_regions(maps, images, boxes, 1, 1, "roi_align", 1)
    assert middle.item() == 8 * 3.5 + 3.5  # pixel centres lie at .5
    assert pool_regions(maps, images, boxes, 1, 1, "roi_align").item() == pytest.approx(8 * 3.5 + 3.5)
    maps[0, 0, 2, 2] += 100  # a corner of the box
    assert pool_regions(maps, images, boxes, 1, 1, "roi_align", 1).item() == middle.item()
    assert pool_regions(maps, images, boxes, 1, 1, "roi_align").item() > middle.item()
    assert tiny(pooling="roi_align", sampling_ratio=1).config.sampling_ratio == 1


@pytest.mark.parametrize("pooling", ["roi_pool", "roi_align"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_pictures_of_several_sizes_are_as_if_alone(pooling, batch_norm):
    model = tiny(pooling=pooling, batch_norm=batch_norm).train()  # stored statistics: batch norms are frozen
    given = batch()
    out = model(**given)
    out.loss.backward()
    together = gradients(model)
    model.zero_grad()
    for row in range(4):
        alone = model(**only(given, row))
        (alone.loss / 4).backward()
        count = alone.scores.shape[1]
        assert torch.allclose(out.scores[row, :count], alone.scores[0], atol=1e-6)
        assert out.losses[row].item() == pytest.approx(alone.loss.item(), rel=1e-5)
    assert torch.allclose(together, gradients(model), atol=1e-5 * together.abs().max())


def test_padding_and_the_order_of_pictures_count_for_nothing():
    model, given = tiny(), batch()
    padded = {**given, "proposals": nn.functional.pad(given["proposals"], (0, 0, 0, 5))}
    first, second = model(**given), model(**padded)
    assert torch.equal(first.losses, second.losses)
    assert (second.scores[:, 6:] == 0).all()
    order = [3, 1, 0, 2]
    turned = {name: [part[row] for row in order] for name, part in given.items()}
    turned = {name: part if name == "pixel_values" else torch.stack(part) for name, part in turned.items()}
    assert torch.allclose(model(**turned).losses, first.losses[order], rtol=1e-5)


def test_a_picture_without_proposals_adds_nothing():
    model, given = tiny(), batch(counts=(6, 0, 4, 0))
    out = model(**given)
    assert out.losses.isnan().tolist() == [False, True, False, True]
    assert out.loss.item() == pytest.approx(out.losses.nansum().item() / 4, rel=1e-6)
    assert (out.image_scores[1] == 0).all()
    out.loss.backward()
    with_them = gradients(model)
    model.zero_grad()
    both = [only(given, row) for row in (0, 2)]
    for one in both:
        (model(**one).loss / 4).backward()
    assert torch.allclose(with_them, gradients(model), atol=1e-6)
    assert model.class_stream.weight.grad.abs().sum() > 0


def test_a_batch_without_any_proposal_has_gradients_of_zero():
    """Each weight has one, as training on several processes wants."""
    model, given = tiny(spatial_weight=1.0), batch(counts=(0, 0, 0, 0))
    given["proposals"] = torch.zeros(4, 1, 4)
    out = model(**given)
    out.loss.backward()
    assert out.loss.item() == 0
    assert all(weight.grad is not None and (weight.grad == 0).all() for weight in model.parameters())


def test_views_of_an_image_are_averaged():
    model, given = tiny(), batch(counts=(4, 4, 4, 4))
    apart = model(**given)
    labels, index = given["labels"][:2], torch.tensor([0, 0, 0, 1])
    out = model(**given | {"labels": labels, "view_index": index})
    assert torch.allclose(out.scores[0], apart.scores[:3].mean(0), atol=1e-7)
    assert torch.equal(out.scores[1], apart.scores[3])
    assert torch.equal(out.pred_boxes, apart.pred_boxes[[0, 3]])
    expected = nn.functional.binary_cross_entropy(out.scores.sum(1), labels, reduction="sum") / 2
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    regular = tiny(spatial_weight=1e4)(**given | {"labels": labels, "view_index": index})
    assert torch.equal(regular.losses, out.losses)  # which region of which view is best is not asked


def test_objectness_multiplies_pooled_features():
    given = batch()
    weights = torch.rand(4, 6)
    model = tiny(objectness=True, objectness_scale=10.0)
    plain = tiny()
    assert not torch.allclose(model(**given, objectness=weights).scores, plain(**given).scores)
    assert torch.equal(model(**given, objectness=torch.full((4, 6), 0.1)).scores, plain(**given).scores)
    # The first and the third picture have one size.
    each = torch.cat([weights[row, : (6, 1, 4, 3)[row]] for row in (0, 2, 1, 3)])[:, None]
    hook = plain.head.register_forward_pre_hook(lambda _, args: (args[0] * (10 * each),))
    assert torch.equal(model(**given, objectness=weights).scores, plain(**given).scores)
    hook.remove()
    with pytest.raises(ValueError, match="multiplies features by objectness scores, and the batch has none"):
        model(**given)


def test_new_weights_are_as_the_configuration_says():
    own = {"dropout": 0.0, "num_labels": 400, "head_sizes": (300,), "pool_size": 2}
    model = WsddnForObjectDetection(WsddnConfig(ConvBackboneConfig(((60, 200),)), **own, initializer_range=0.3))
    first, second = model.backbone.features[0], model.backbone.features[2]
    assert first.weight.std().item() == pytest.approx((2 / (9 * 60)) ** 0.5, rel=0.1)  # as many go out as 60 × 9
    assert second.weight.std().item() == pytest.approx((2 / (9 * 200)) ** 0.5, rel=0.05)
    assert (first.bias == 0).all()
    assert model.head[0].weight.std().item() == pytest.approx((2 / 800) ** 0.5, rel=0.05)
    for stream in (model.class_stream, model.detection_stream):
        assert stream.weight.std().item() == pytest.approx(0.3, rel=0.05)
        assert (stream.bias == 0).all()
        assert (model.head[0].bias == 0).all()
    norms = ConvBackboneConfig(((60, 200),), batch_norm=True)
    plain = WsddnForObjectDetection(WsddnConfig(norms, **own, initializer_range=None))
    uniform = {plain.backbone.features[3]: 540, plain.head[0]: 800, plain.class_stream: 300}
    for layer, inside in uniform.items():
        for part in (layer.weight, layer.bias):
            if part is not None:
                assert part.abs().max().item() == pytest.approx(inside**-0.5, rel=0.02)


def test_weights_that_a_checkpoint_lacks_begin_as_new_ones_do(tmp_path):
    tiny(head_sizes=(300, 10), initializer_range=None).save_pretrained(tmp_path)
    options = {"head_sizes": (400, 10), "ignore_mismatched_sizes": True}
    layer = WsddnForObjectDetection.from_pretrained(tmp_path, **options).head[0]
    for part in (layer.weight, layer.bias):
        assert part.abs().max().item() == pytest.approx(layer.in_features**-0.5, rel=0.05)


def test_temperature_divides_the_detection_stream():
    given, plain, soft = batch(), tiny(), tiny(detection_temperature=2.0)
    plain.detection_stream.weight.data /= 2
    assert torch.allclose(plain(**given).scores, soft(**given).scores, atol=1e-7)


def test_the_spatial_regulariser():
    given, plain, model = batch(counts=(6, 5, 4, 3)), tiny(), tiny(spatial_weight=1e4, spatial_iou=0.3)
    states, totals = [], []
    plain.class_stream.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    out = plain(**given)
    order = [(row, place) for row in (0, 2, 1, 3) for place in range((6, 5, 4, 3)[row])]
    features = dict(zip(order, states[0], strict=True))
    for row in range(4):
        total = 0.0
        for number in given["labels"][row].nonzero()[:, 0].tolist():
            best = int(out.scores[row, :, number].argmax())
            for place in range((6, 5, 4, 3)[row]):
                if overlap(given["proposals"][row, best], given["proposals"][row, place]) >= 0.3:
                    apart = (features[row, place] - features[row, best]).square().sum()
                    total += 0.5 * float(out.scores[row, place, number] ** 2 * apart)
        expected = out.losses[row].item() + 1e4 * total / 5
        totals.append(total)
        assert model(**given).losses[row].item() == pytest.approx(expected, rel=1e-5)
    assert 1e4 * sum(totals) > 0.1


def overlap(one, other):
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]), min(one[3], other[3])
    inside = max(right - left, 0) * max(bottom - top, 0)
    return float(inside / (sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - inside))


def test_frozen_stages_stay():
    model, given = tiny(frozen_stages=2, batch_norm=True, freeze_batch_norm=False), batch()
    model.train()
    model(**given).loss.backward()
    trained = [name for name, weight in model.backbone.named_parameters() if weight.grad is not None]
    assert trained == ["features.11.weight", "features.12.weight", "features.12.bias"]
    norms = [module for module in model.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert [int(norm.num_batches_tracked > 0) for norm in norms] == [0, 0, 0, 1]  # nor do their statistics move
    with pytest.raises(ValueError, match=r"frozen_stages=4 was given, .*ConvBackboneConfig\) has 3 stages"):
        tiny(frozen_stages=4)
    with pytest.raises(ValueError, match=r"ResNetConfig\) has 0 stages"):
        WsddnConfig(ResNetConfig(), frozen_stages=1)


def test_suppression_is_that_of_loops():
    generator = torch.Generator().manual_seed(0)
    boxes = (torch.rand(40, 2, 2, generator=generator) * 50).sort(dim=1).values.flatten(1)
    scores = torch.rand(40, 3, generator=generator)
    expected = []
    for number in range(3):
        left = sorted(range(40), key=lambda region: -scores[region, number])
        while left and scores[left[0], number] > 0.2:
            best = left.pop(0)
            expected.append((scores[best, number].item(), number, boxes[best].tolist()))
            left = [region for region in left if overlap(boxes[best], boxes[region]) <= 0.4]
    expected.sort(key=lambda found: -found[0])
    for limit in (7, 1000):
        best, classes, edges = keep_best(scores, boxes, 0.4, limit, threshold=0.2)
        found = list(zip(best.tolist(), classes.tolist(), edges.tolist(), strict=True))
        assert found == expected[:limit]


def test_a_score_at_the_threshold_is_none_above_it():
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 6.0, 6.0]])
    best, classes, edges = keep_best(torch.tensor([[0.25, 0.0], [0.0, 0.5]]), boxes, 0.4, 9, threshold=0.25)
    assert (best.tolist(), classes.tolist(), edges.tolist()) == ([0.5], [1], [[5, 5, 6, 6]])
    assert keep_best(torch.tensor([[0.25, 0.0], [0.0, 0.5]]), boxes, 0.4, 9)[0].tolist() == [0.5, 0.25]


def test_detections_have_one_form():
    model, given = tiny(max_detections=9), batch(counts=(6, 1, 0, 3))
    sizes = torch.tensor([[640, 480], [400, 800], [64, 48], [100, 66]])
    out = model(**given, image_sizes=sizes)
    assert out.detections.shape == (4, 9, 6)
    assert out.detections.dtype == torch.float32
    assert (out.detections[2, :, 0] == -1).all()
    assert out.detections[1, :, 0].sort().values.tolist() == [-1] * 4 + [0, 1, 2, 3, 4]
    number = int(out.detections[1, 0, 0])
    assert out.detections[1, 0, 1] == out.scores[1, 0, number]
    assert torch.allclose(out.detections[1, 0, 2:], given["proposals"][1, 0] * 10)  # 40 × 80 is 400 × 800
    assert (out.detections[0, :-1, 1] >= out.detections[0, 1:, 1]).all()
    assert model(**given).detections is None


TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BACKBONES = {
    "clip": (CLIPVisionConfig(**TOWER, intermediate_size=32, image_size=32, patch_size=8), 8),
    "resnet": (ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1] * 4, layer_type="basic"), 32),
    "vit": (ViTConfig(**TOWER, intermediate_size=32, image_size=32, patch_size=8), 8),
    "dinov2": (Dinov2Config(**TOWER, image_size=28, patch_size=14), 14),
    "swin": (
        SwinConfig(image_size=64, embed_dim=8, depths=[1, 1], num_heads=[1, 1], window_size=4, drop_path_rate=0.0),
        8,
    ),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_any_backbone(name, tmp_path):
    config, stride = BACKBONES[name]
    torch.manual_seed(0)
    model = WsddnForObjectDetection(WsddnConfig(config, pool_size=2, head_sizes=(8,), dropout=0.0, num_labels=5))
    assert model.stride == stride
    given = batch()
    given["pixel_values"] = [torch.rand(3, *size) for size in ((56, 112), (112, 56), (56, 112), (64, 64))]
    model.train()
    out = model(**given)
    for row in range(4):
        count = int(given["proposal_counts"][row])
        assert torch.allclose(out.scores[row, :count], model(**only(given, row)).scores[0], atol=1e-5)
    out.loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None and weight.requires_grad] == []
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForObjectDetection.from_pretrained(tmp_path)
    assert type(loaded.config.backbone_config) is type(config)
    assert torch.allclose(loaded(**given).scores, model(**given).scores, atol=1e-6)


def test_batch_norms_keep_their_statistics():
    config = BACKBONES["resnet"][0]
    fixed = WsddnForObjectDetection(WsddnConfig(config, head_sizes=(8,), num_labels=5)).train()
    free = WsddnForObjectDetection(WsddnConfig(config, head_sizes=(8,), num_labels=5, freeze_batch_norm=False)).train()
    means = {}
    for name, model in (("fixed", fixed), ("free", free)):
        model(**batch())
        buffers = dict(model.named_buffers())
        means[name] = sum(float(buffers[key].abs().sum()) for key in buffers if key.endswith("running_mean"))
    assert means["fixed"] == 0
    assert means["free"] > 0


def test_a_feature_map_without_whole_cells_is_refused():
    with pytest.raises(ValueError, match="makes a map of 37 × 37 cells of 448 × 448 pixels: no whole number"):
        backbone_facts(ViTConfig(**TOWER, intermediate_size=32, image_size=24, patch_size=12))
    odd = ViTConfig(**TOWER, intermediate_size=32, image_size=24, patch_size=12)
    facts = backbone_facts(odd, stride=12)
    assert (facts.stride, facts.width, facts.unused) == (12, 16, frozenset())
    with pytest.raises(TypeError, match="gives neither `feature_maps` nor patch states"):
        map_of(_Nothing(), torch.zeros(1, 3, 8, 8))


class _Nothing(nn.Module):
    """Returns no states."""

    def forward(self, pixel_values):
        return BertConfig()


def test_it_is_saved_with_its_classes(tmp_path):
    names = dict(enumerate("abcde"))
    model, given = tiny(id2label=names, label2id={name: number for number, name in names.items()}), batch()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForObjectDetection.from_pretrained(tmp_path)
    assert loaded.config.id2label == names
    assert loaded.config.backbone_config.stages == [[8, 8], [8], [12]]
    assert torch.equal(loaded(**given).scores, model.eval()(**given).scores)


def test_half_precision():
    model, given = tiny().eval(), batch()
    exact = model(**given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**given)
    mixed.loss.backward()
    assert mixed.scores.dtype == mixed.loss.dtype == torch.float32
    assert mixed.loss.item() == pytest.approx(exact.loss.item(), rel=0.05)
    half = tiny().to(torch.bfloat16)(**given)
    assert half.loss.item() == pytest.approx(exact.loss.item(), rel=0.05)
    assert half.loss.item() != exact.loss.item()


@pytest.mark.slow
def test_it_compiles():
    model, given = tiny(), batch()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    out, expected = compiled(**given), model(**given)
    assert torch.allclose(out.scores, expected.scores, atol=1e-6)
    out.loss.backward()
    ours = gradients(model)
    model.zero_grad()
    expected.loss.backward()
    assert torch.allclose(ours, gradients(model), atol=1e-6)


def test_inputs_that_do_not_fit_are_named():
    model, given = tiny(), batch()
    torn, many = [torch.zeros(2, 9, 9)] * 4, [torch.zeros(3, 9, 9, 9)] * 4
    for change, message in (
        ({"pixel_values": torn}, r"picture of the shape \(2, 9, 9\).*launch one process per device"),
        ({"pixel_values": many}, r"picture of the shape \(3, 9, 9, 9\)"),
        ({"proposals": given["proposals"][0]}, r"proposals has the shape \(6, 4\) for 4 pictures"),
        ({"proposals": torch.zeros(4, 6, 5)}, r"proposals has the shape \(4, 6, 5\) for 4 pictures"),
        ({"labels": given["labels"][0]}, r"labels has the shape \(5,\), and the model has 5 classes"),
        ({"proposals": given["proposals"][:3]}, r"proposals has the shape \(3, 6, 4\) for 4 pictures"),
        ({"labels": given["labels"][:, :4]}, r"labels has the shape \(4, 4\), and the model has 5 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            model(**{**given, **change})


@pytest.mark.parametrize(
    ("name", "least", "beyond"),
    [
        ("stride", 1, 0), ("pool_size", 1, 0), ("sampling_ratio", 0, -1), ("head_sizes", [1], [0]),
        ("dropout", 0.0, -0.1), ("dropout", 0.99, 1.0), ("detection_temperature", 0.01, 0.0),
        ("objectness_scale", 0.01, 0.0), ("spatial_weight", 0.0, -0.1), ("spatial_iou", 1.0, 1.01),
        ("spatial_iou", 0.01, 0.0), ("frozen_stages", 0, -1), ("nms_iou", 1.0, 1.01), ("nms_iou", 0.01, 0.0),
        ("max_detections", 1, 0),
    ],
)  # fmt: skip
def test_edges_of_what_an_option_may_be(name, least, beyond):
    assert getattr(WsddnConfig(**{name: least}), name) == least
    with pytest.raises(ValueError, match=f"{name}=.* was given, which is out of range"):
        WsddnConfig(**{name: beyond})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pooling": "mean"}, "pooling='mean' was given"), ({"backbone_config": {"depth": 3}}, "no `model_type`")],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        WsddnConfig(**options)


def test_a_backbone_s_stages_are_checked():
    assert ConvBackboneConfig().stages == [list(stage) for stage in VGG16]
    with pytest.raises(ValueError, match="at least one convolution"):
        ConvBackboneConfig(stages=((8,), ()))


def test_without_torchvision_the_extra_is_named(monkeypatch):
    model, given = tiny(), batch()
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    with pytest.raises(ImportError, match=r'pip install "hf-curriculum\[detection\]"'):
        model(**given)


def test_a_single_class_is_refused():
    with pytest.raises(ValueError, match=r"has 1 class: .* the loss is 0 .* Add a second class"):
        WsddnConfig(num_labels=1)


def test_every_field_of_a_configuration_is_saved(tmp_path):
    options = {
        "stride": 8, "pooling": "roi_align", "pool_size": 3, "sampling_ratio": 2, "head_sizes": [5, 6],
        "dropout": 0.25,
        "detection_temperature": 2.0, "objectness": True, "objectness_scale": 10.0, "spatial_weight": 0.5,
        "spatial_iou": 0.7, "frozen_stages": 1, "freeze_batch_norm": False, "nms_iou": 0.3, "max_detections": 9,
        "initializer_range": None,
    }  # fmt: skip
    parameters = inspect.signature(WsddnConfig.__init__).parameters
    assert set(options) == set(parameters) - {"self", "backbone_config", "kwargs"}
    assert all(parameters[name].default != value for name, value in options.items())
    backbone = {"stages": [[4], [6, 8]], "num_channels": 1, "batch_norm": True}
    WsddnConfig(ConvBackboneConfig(**backbone), **options).save_pretrained(tmp_path)
    again = WsddnConfig.from_pretrained(tmp_path)
    assert {name: getattr(again, name) for name in options} == options
    assert {name: getattr(again.backbone_config, name) for name in backbone} == backbone


def test_the_spatial_regulariser_counts_the_edge_and_leaves_weights_alone():
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 2.0], [9.0, 9.0, 10.0, 10.0]])  # half of the best one
    features = torch.tensor([[1.0], [3.0], [50.0]], requires_grad=True)
    scores = torch.tensor([[0.9], [0.5], [0.1]], requires_grad=True)
    found = spatial_distance(features, scores, boxes, [0], 0.5)
    assert found.item() == pytest.approx(0.5 * 0.5**2 * 2**2)
    found.backward()
    assert scores.grad is None
    assert features.grad[:, 0].tolist() == pytest.approx([-0.5, 0.5, 0.0])
