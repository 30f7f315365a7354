"""Region proposals: selective search on images whose regions are known, files of proposals, and real photographs."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow

from hf_curriculum import RegionProposals, add_scores, make_scenes, read_provenance
from hf_curriculum.data.proposals import searched_size, selective_search
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.provenance import score_values

cv2 = pytest.importorskip("cv2")
NAN = np.nan


def halves(width, height, split):
    picture = Pillow.new("RGB", (width, height))
    picture.paste((255, 255, 255), (split, 0, width, height))
    return picture


def noise(width, height, seed=0):
    return Pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def stored(picture):
    file = io.BytesIO()
    picture.save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def scores_of(pictures, **options):
    scores = RegionProposals(**options)({"image": pictures})
    return scores["region_count"].tolist(), scores["region_area"]


def test_two_halves_and_the_whole():
    # found are left, right and both; at 100 x 40 split at 25 their shares are 1/4, 3/4 and 1
    for mode in ("fast", "quality"):
        count, area = scores_of([halves(100, 40, 25)], mode=mode)
        assert count == [3]
        assert area[0] == pytest.approx(2 / 3)
    count, area = scores_of([halves(100, 40, 25)], min_size=26)  # the left one is 25 wide
    assert (count, area[0]) == ([2], pytest.approx(0.875))
    count, area = scores_of([halves(100, 40, 25)], min_size=41)
    assert count == [0]
    assert np.isnan(area[0])
    count, area = scores_of([halves(100, 40, 25)], max_proposals=2)  # caps the count; the area is of all
    assert (count, area[0]) == ([2], pytest.approx(2 / 3))


def test_naive_reference_on_opencv_itself():
    picture = noise(90, 70)
    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(np.asarray(picture)[:, :, ::-1].copy())
    search.switchToSelectiveSearchFast()
    kept = [(w, h) for _, _, w, h in search.process() if w >= 20 and h >= 20]
    count, area = scores_of([picture])
    assert count == [len(kept)]
    assert len(kept) > 5
    assert area[0] == pytest.approx(np.mean([w * h for w, h in kept]) / (90 * 70), rel=1e-6)


def test_channels_go_in_opencv_s_order(monkeypatch):
    seen = []
    make = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation

    class Spy:
        def __init__(self):
            self.inner = make()

        def setBaseImage(self, image):
            seen.append(image[0, 0].tolist())
            self.inner.setBaseImage(image)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(cv2.ximgproc.segmentation, "createSelectiveSearchSegmentation", Spy)
    scores_of([Pillow.new("RGB", (30, 30), (10, 20, 30))])
    assert seen == [[30, 20, 10]]
    assert cv2.getNumThreads() == 1


def test_boxes_are_the_same_set_every_time():
    picture = noise(80, 80, 3)
    boxes, size = selective_search(picture)
    np.testing.assert_array_equal(boxes, selective_search(picture)[0])
    assert size == (80, 80)


def test_the_size_that_is_searched():
    assert searched_size((640, 480), 1000, None) == (640, 480)
    assert searched_size((4000, 3000), 1000, None) == (1000, 750)
    assert searched_size((20_000, 20), 1000, None) == (1000, 1)
    assert searched_size((100, 1000), None, 2.2) == (454, 1000)  # as Cap2Det
    assert searched_size((1000, 455), None, 2.2) == (1000, 455)
    flat = Pillow.new("RGB", (400, 18))
    assert scores_of([flat])[0] == [0]  # 18 pixels are too few
    assert scores_of([flat], max_aspect=2.2)[0] == [1]  # stretched to 181 of them
    assert scores_of([halves(100, 40, 25)], max_side=50)[0] == [2]  # the left one, of 12 by 20, is too small


def test_broken_and_extreme_images_lose_nothing(caplog):
    images = [stored(halves(100, 40, 25)), {"bytes": b"\x89PNG damaged", "path": None}, None]
    images += [stored(noise(1, 1)), stored(noise(20_000, 20)), stored(noise(19, 60))]
    rows = {"image": [image for image in images for _ in range(2)]}
    rows["image_id"] = [str(number) for number in range(6) for _ in range(2)]
    features = Features({"image": Image(decode=False), "image_id": Value("string")})
    data = Dataset.from_dict(rows, features=features).cast_column("image", Image())
    scored = add_scores(data.shuffle(seed=1), RegionProposals(min_size=10))
    found = dict(zip(scored["image_id"], zip(scored["region_count"], scored["region_area"], strict=True), strict=True))
    count, area = (np.array([found[str(number)][part] for number in range(6)]) for part in (0, 1))
    assert count[[0, 3, 4]].tolist() == [3, 0, 0]
    assert np.isnan(count[1:3]).all()
    assert count[5] >= 1
    assert np.isnan(area[1:5]).all()
    assert "2 images cannot be scored" in caplog.text
    made = read_provenance(scored)["region_area"]
    assert (made.backend, made.easy, made.scorer) == ("opencv", "high", "RegionProposals")
    assert "opencv-contrib-python-headless" in made.versions


def test_proposals_from_a_file(tmp_path):
    boxes = [[0, 0, 50, 20], [0, 0, 100, 100], [0, 0, 30, 10], [10, 10, 90, 60]]
    np.savez(tmp_path / "a.npz", **{"9": boxes, "9/size": [100, 100], "8": np.zeros((0, 4)), "7": boxes})
    rows = {"image_id": ["9", "8", "none", None, "9"]}
    scorer = RegionProposals(source=tmp_path / "a.npz")
    assert scorer.columns == ("image_id",)
    scores = scorer(rows)
    np.testing.assert_array_equal(scores["region_count"], np.float32([3, 0, NAN, NAN, 3]))
    np.testing.assert_allclose(scores["region_area"], np.float32([0.5, NAN, NAN, NAN, 0.5]), rtol=1e-6)
    first = RegionProposals(source=open_regions(tmp_path / "a.npz"), max_proposals=1)(rows)
    assert (first["region_count"][0], first["region_area"][0]) == (1, pytest.approx(0.1))
    everything = RegionProposals(source=tmp_path / "a.npz", min_size=0)(rows)
    assert everything["region_count"][0] == 4
    with pytest.raises(ValueError, match="The boxes of image '7' are pixels and the image's width"):
        scorer({"image_id": ["7"]})
    sized = RegionProposals(source=tmp_path / "a.npz", size_columns=("w", "h"))
    found = sized({"image_id": ["7", "7"], "w": [200, 100], "h": [100, 100]})
    assert found["region_area"].tolist() == pytest.approx([0.25, 0.5])
    assert str(tmp_path) not in scorer.describe().to_json()
    assert scorer.describe().arguments["source"]["path"] == "a.npz"


def test_shares_in_a_file_need_a_size_only_for_a_shortest_side(tmp_path):
    np.save(tmp_path / "12.npy", np.float32([[0.0, 0.0, 0.1, 0.5], [0.0, 0.0, 1.0, 1.0]]))
    found = RegionProposals(source=tmp_path, min_size=0)({"image_id": ["12"]})
    assert (found["region_count"][0], found["region_area"][0]) == (2, pytest.approx(0.525))
    with pytest.raises(ValueError, match="are shares of the image"):
        RegionProposals(source=tmp_path)({"image_id": ["12"]})
    sized = RegionProposals(source=tmp_path, size_columns=("w", "h"))
    assert sized({"image_id": ["12"], "w": [100], "h": [100]})["region_count"][0] == 1  # the other is 10 pixels high


def test_options_that_cannot_be(monkeypatch):
    for option, value in (("min_size", -1), ("max_proposals", 0), ("max_side", 0), ("max_aspect", 0.5)):
        with pytest.raises(ValueError, match=f"`{option}` is {value}. It is at least"):
            RegionProposals(**{option: value})
    with pytest.raises(ValueError, match="`mode` is 'slow'"):
        RegionProposals("slow")
    with pytest.raises(ValueError, match="`easy` is 'none'"):
        RegionProposals(easy="none")
    monkeypatch.setitem(sys.modules, "cv2.ximgproc.segmentation", None)
    with pytest.raises(ImportError, match="is installed without them"):
        scores_of([noise(30, 30)])
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match=r"OpenCV, which is not installed. Run `pip install 'hf-curriculum\[detect"):
        scores_of([noise(30, 30)])


def test_both_ends_of_the_direction():
    assert RegionProposals().outputs == {"region_count": "high", "region_area": "high"}
    assert RegionProposals(easy="low", name="n", area_name="a").outputs == {"n": "low", "a": "low"}


def spearman(one, other):
    stats = pytest.importorskip("scipy.stats")
    return stats.spearmanr(one, other).statistic


@pytest.mark.slow
def test_more_objects_have_more_proposals_on_held_out_scenes():
    scenes = make_scenes(400, captions_per_image=1, seed=3, test=0.3)["test"]
    scored = add_scores(scenes, RegionProposals(min_size=10))  # 20 pixels are a fifth of these images' side
    assert len(scenes) == 120
    assert spearman(score_values(scored, "region_count"), scenes["num_objects"][:]) >= 0.6


def test_photographs(test_data):
    files = sorted((test_data("coco_open") / "images").glob("*.jpg"))[:2]
    count, area = scores_of([str(file) for file in files])
    assert all(50 <= number <= 500 for number in count)
    assert ((area > 0.01) & (area < 0.5)).all()


def test_a_limit_that_most_images_reach_is_warned_of_once(caplog):
    rng = np.random.default_rng(0)
    images = [Pillow.fromarray(rng.integers(0, 255, (48, 48, 3), np.uint8)) for _ in range(8)]
    scorer = RegionProposals(min_size=4, max_proposals=2)
    for _ in range(2):
        assert set(scorer({"image": images})["region_count"].tolist()) == {2.0}
    (record,) = caplog.records
    assert "8 of 8 images have `max_proposals=2` proposals or more" in record.message
    assert "Pass `max_proposals=None`" in record.message
    caplog.clear()
    assert len(set(RegionProposals(min_size=4, max_proposals=None)({"image": images})["region_count"].tolist())) > 1
    RegionProposals(min_size=4, max_proposals=10_000)({"image": images})
    assert caplog.text == ""
