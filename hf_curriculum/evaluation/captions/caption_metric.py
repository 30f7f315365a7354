"""All metrics of captions as one metric of the library `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import evaluate
from datasets import Features, Value
from datasets import Sequence as ListOf

from hf_curriculum.evaluation.captions.metrics import METRICS, CaptionEvaluator, check_rows
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP

if TYPE_CHECKING:
    from hf_curriculum.scorers.alignment.clip import CLIPSimilarity

_CITATION = """\
@article{chen2015microsoft,
  title = {Microsoft {COCO} Captions: Data Collection and Evaluation Server},
  author = {Chen, Xinlei and Fang, Hao and Lin, Tsung-Yi and Vedantam, Ramakrishna and Gupta, Saurabh and
            Doll{\\'a}r, Piotr and Zitnick, C. Lawrence},
  journal = {arXiv preprint arXiv:1504.00325},
  year = {2015}
}"""


class CaptionMetric(evaluate.Metric):
    """BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE and CLIPScore as an `evaluate.Metric`; nothing is downloaded.

    Args (of `compute`):
        predictions: one caption per image.
        references: the captions of each image.
        metrics: names, or `"all"` that can be computed here, see `CaptionEvaluator`; then `unavailable` in the result
            says which cannot be, and why.
        per_image: also give the values of each image, under `per_image`.
        images: of CLIPScore.
        clip: of CLIPScore.

    Raises:
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        ValueError: an unknown metric, an image without references, lists of unequal length.

    Source: Chen et al. 2015, §3.

    Example:
        >>> metric = CaptionMetric()
        >>> metric.compute(predictions=["a dog", "a cat"], references=[["a dog"], ["one cat"]], metrics=["rouge"])
        {'rouge_l': 0.75}
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE and CLIPScore of image captions.",
            citation=_CITATION,
            inputs_description=self.__doc__ or "",
            features=Features({"predictions": Value("string"), "references": ListOf(Value("string"))}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        metrics: Sequence[str] | str = METRICS,
        per_image: bool = False,
        images: Sequence[Any] | None = None,
        clip: str | CLIPSimilarity = SCENES_CLIP,
    ) -> dict[str, Any]:
        check_rows(predictions, references)
        scores = CaptionEvaluator(references, metrics, images=images, clip=clip)(predictions)
        found: dict[str, Any] = dict(scores.corpus)
        if per_image:
            found["per_image"] = {name: values.tolist() for name, values in scores.per_image.items()}
        if metrics == "all":
            found["unavailable"] = scores.unavailable
        return found
