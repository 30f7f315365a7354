"""What a model sees of regions: box values, lengths, order and number, by hand and by the reference code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.values import arrange_regions, box_shares

BOXES = np.float32([[0, 0, 10, 20], [0, 0, 50, 100], [10, 20, 20, 40]])
FOUND = Regions("9", boxes=BOXES, width=100, height=200, confidence=np.float32([0.9, 0.2, 0.5]))


class TestArrange:
    def test_box_values_by_hand(self):
        features = torch.arange(6.0).view(3, 2) + 1
        values = arrange_regions(FOUND, features, box_values=True)["region_features"]
        wanted = [[1, 2, 0, 0, 0.1, 0.1, 0.01], [3, 4, 0, 0, 0.5, 0.5, 0.25], [5, 6, 0.1, 0.1, 0.2, 0.2, 0.01]]
        torch.testing.assert_close(values, torch.tensor(wanted))
        six = arrange_regions(FOUND, features, box_values="vinvl")["region_features"]
        torch.testing.assert_close(six[2], torch.tensor([5, 6, 0.1, 0.1, 0.2, 0.2, 0.1, 0.1]))

    def test_the_reference_code(self):
        """As `dataloader.py` of Luo et al. has it: length, then box values, then the order of areas."""
        features = torch.randn(3, 4)
        lengths = np.linalg.norm(features.numpy(), 2, 1, keepdims=True)
        left, top, right, bottom = np.hsplit(BOXES, 4)
        values = np.hstack((left / 100, top / 200, right / 100, bottom / 200, (right - left) * (bottom - top) / 20000))
        rows = sorted(np.hstack([features.numpy() / lengths, values]), key=lambda row: row[-1], reverse=True)
        found = arrange_regions(FOUND, features, box_values=True, normalise=True, by_area=True, boxes=True)
        np.testing.assert_allclose(found["region_features"], np.stack(rows), atol=1e-6)
        np.testing.assert_allclose(found["region_boxes"], np.stack(rows)[:, 4:8], atol=1e-6)

    def test_the_most_regions(self):
        features = torch.arange(3.0)[:, None]
        assert arrange_regions(FOUND, features, max_regions=2)["region_features"].flatten().tolist() == [0, 2]
        rising = Regions("9", boxes=BOXES, confidence=np.float32([0.5, 0.2, 0.9]))  # the best one comes last
        assert arrange_regions(rising, features, max_regions=2)["region_features"].flatten().tolist() == [0, 2]
        assert arrange_regions(rising, features, max_regions=1)["region_features"].flatten().tolist() == [2]
        unknown = Regions("9", boxes=BOXES)
        assert arrange_regions(unknown, features, max_regions=2)["region_features"].flatten().tolist() == [0, 1]

    def test_errors_name_the_image(self):
        features = torch.zeros(3, 2)
        with pytest.raises(ValueError, match="width and height of image '9' are not known"):
            arrange_regions(Regions("9", boxes=BOXES), features, box_values=True)
        with pytest.raises(ValueError, match="regions of image '9' have no boxes"):
            arrange_regions(Regions("9"), features, by_area=True)
        with pytest.raises(ValueError, match="Image '9' has no region"):
            arrange_regions(Regions("9"), features[:0])
        with pytest.raises(ValueError, match="`max_regions=0`"):
            arrange_regions(FOUND, features, max_regions=0)
        with pytest.raises(ValueError, match="`box_values='six'`"):
            arrange_regions(FOUND, features, box_values="six")
        shares = Regions("9", boxes=BOXES / 100, normalised=True)
        assert torch.equal(box_shares(shares), torch.from_numpy(BOXES / 100))
