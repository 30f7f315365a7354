"""A suite on a model from the Hub or a folder: what the command line calls."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.evaluation.babylm.miniature import make_miniature_benchmarks
from hf_curriculum.evaluation.babylm.suite import SuiteResult, evaluate_suite
from hf_curriculum.models.captioner import reads
from hf_curriculum.scorers.pretrained import load_model


def evaluate_pretrained(
    name: str,
    suite: str = "babylm",
    *,
    output_dir: str | PathLike[str],
    data_dir: str | PathLike[str] | None = None,
    revision: str | None = None,
    device: str | None = None,
    **options: Any,
) -> SuiteResult:
    """`evaluate_suite` for a model's folder or a repository of the Hub.

    Args:
        name: the folder or repository; tokenizer and image processor are taken from it too.
        suite: of `evaluate_suite`.
        output_dir: of `evaluate_suite`.
        data_dir: of `evaluate_suite`. Without one, miniature benchmarks are made below `output_dir`, which the results
            say.
        revision: of a repository.
        device: such as `"cuda"`; by default a GPU where there is one.
        options: more arguments of `evaluate_suite`, such as `tasks`, `batch_size` or `glue`.

    Raises:
        FileNotFoundError, ValueError: of `load_for_evaluation` and `evaluate_suite`.

    Example:
        >>> evaluate_pretrained("my-model", output_dir="results").averages["blimp"]  # doctest: +SKIP
        {'accuracy': 0.8125}
    """
    import torch

    model, tokenizer, image_processor = load_for_evaluation(name, revision)
    if data_dir is None:
        data_dir = Path(output_dir) / "miniature"
        if not (data_dir / "MINIATURE.txt").is_file():
            make_miniature_benchmarks(data_dir)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return evaluate_suite(
        model, tokenizer, image_processor, suite, data_dir=data_dir, output_dir=output_dir, **options
    )


def load_for_evaluation(name: str, revision: str | None = None) -> tuple[Any, Any, Any | None]:
    """Model, tokenizer and, for models with images, image processor.

    Args:
        name: a folder, or a repository of the Hub.
        revision: of a repository.

    Raises:
        FileNotFoundError: there is no such model, or it has no tokenizer or image processor.
        ValueError: weights are missing; a captioner on stored regions, whose detector is not saved with it.

    Example:
        >>> model, tokenizer, image_processor = load_for_evaluation("my-model")  # doctest: +SKIP
    """
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = _load(AutoConfig, name, revision)
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = load_model(AutoModelForImageTextToText if sees else AutoModelForCausalLM, name, revision)
    tokenizer = _load(AutoTokenizer, name, revision)
    if not sees:
        return model, tokenizer, None
    if reads(model, "region_features") and config.vision_config is None:
        found = CaptionProcessor.from_pretrained(name, revision=revision).image_processor
        if getattr(found, "detector", found) is None:
            raise ValueError(
                f"{name} was trained on stored regions, and the detector that made them is not saved with it: it sees "
                f"nothing of a benchmark's images. Evaluate its captions (`hf-curriculum evaluate {name} --suite "
                "captions --features STORE`), or texts on images of a store (`TextImageScorer(..., regions=store)`)."
            )
        return model, tokenizer, found
    return model, tokenizer, _load(AutoImageProcessor, name, revision, backend="pil")


def _load(auto_class: Any, name: str, revision: str | None, **options: Any) -> Any:
    """A part of the model, or what is missing."""
    try:
        return auto_class.from_pretrained(name, revision=revision or "main", **options)
    except (OSError, ValueError) as error:  # ValueError: a folder that exists, without what is looked for
        reason, folder = " ".join(str(error).split())[:300], Path(name)
        if not folder.is_dir():
            found = f"no such folder here, and the Hub's {name!r} could not be loaded ({reason})"
        elif not (folder / "config.json").is_file():
            found = "the folder holds no config.json"
        else:
            found = f"{auto_class.__name__} found nothing in it ({reason})"
        raise FileNotFoundError(
            f"There is no model {name} to evaluate: {found}. Name a folder with a model and its tokenizer, such as "
            "RUN/model of `hf-curriculum train`, or a repository of the Hub; on a machine without network one that is "
            f"in its cache (`hf download NAME`)."
        ) from error
