"""The card of a model trained with a curriculum, written from facts that were gathered while it trained."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from hf_curriculum.hub.papers import PAPERS
from hf_curriculum.markdown import TAGS, filled, front_matter, merged_tags, plain, renewed, split_front_matter, table
from hf_curriculum.reporting.figures.canvas import to_png
from hf_curriculum.reporting.figures.curves import merges_of, validation_curves
from hf_curriculum.reporting.figures.growth import counted_in, phase_starts, pool_growth, pools_of
from hf_curriculum.reporting.html import cell

_GROWTH, _CURVES = "pool_growth.png", "validation_loss.png"

Facts = Mapping[str, Any]
"""What `gather_facts` gathers; all of it JSON. A card can be rendered again from it at any time:

`model` (name, repo_id, class, auto, type, processor, parameters, trainable, base_model, is_ours, is_adapter, and
`library` where it is not transformers), `data`
(name, description, rows, evaluation_rows), of a captioner on regions `images` (reads, detector, numbers_per_region,
made_by, ...) and `words` (tokens, unknown, max_length), `score` (column, easy, provenance, statistics) or None,
`curriculum` and `plan` (`to_dict()`; None where it was trained without), `describe`, `decisions`, `settings`, `before`
(earlier stages: stage, examples, steps, seconds), `history` (the log's evaluations), `results` (metric, value,
reference, source; on a benchmark of the Hub also its dataset, task, revision, notes: see `eval_results`), `cost`
(examples, steps, seconds; `examples_scored` and `compute` of a run that scores while training), `hardware`,
`versions`, `paper` (a key of `PAPERS`) or None, and what its author says: `license`, `language`, `tags`. Where the
weights are not on the Hub, `command` trains them again; `use` is Python that uses the model, where that is not an Auto
class.
"""


def render_model_card(facts: Facts, previous: str | None = None, *, figures: str = "figures") -> str:
    """The text of `README.md`."""
    old, body = split_front_matter(previous or "")
    if not body.strip() or old.get("library_name") == "peft":  # which writes questions to be filled in
        body = f"\n# {plain(facts['model']['name'])}\n"
    return _front(facts, old) + renewed(body, _section(facts, figures))


def model_figures(facts: Facts, *, figures: str = "figures") -> dict[str, bytes]:
    """The figures of the card as PNG, by path: the pools, and the validation curve if anything was evaluated."""
    found = {}
    if facts["plan"] and facts["plan"]["stages"]:
        pools = {facts["curriculum"]["type"]: pools_of(facts["plan"])}
        found[f"{figures}/{_GROWTH}"] = to_png(pool_growth(pools, counted=counted_in([facts["plan"]])))
    curve = _curve(facts)
    if curve:
        name = facts["curriculum"]["type"]
        joined = merges_of(facts["decisions"], facts["plan"]["global_batch_size"])
        ends = [] if joined else phase_starts(facts["plan"])
        figure = validation_curves({name: curve}, boundaries=ends, merges={name: joined})
        found[f"{figures}/{_CURVES}"] = to_png(figure)
    return found


def eval_results(facts: Facts) -> dict[str, bytes]:
    """Results on benchmarks of the Hub, by the path of the file that it shows on the pages of both."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    found: dict[str, list[EvalResultEntry]] = {}
    for one in facts["results"]:
        dataset, task = one.get("dataset"), one.get("task")
        if dataset is None and task is None:
            continue
        if not task or not _is_repository(dataset) or "/" not in dataset:
            raise ValueError(
                f"The result {one['metric']!r} has dataset={dataset!r} and task={task!r}. The Hub files a result by a "
                "benchmark's repository, 'owner/name', and a task in it: give both, or neither for the card alone."
            )
        if isinstance(one["value"], (int, float)) and math.isfinite(one["value"]):
            about = {"dataset_revision": one.get("revision"), "notes": one.get("notes")}
            found.setdefault(dataset, []).append(EvalResultEntry(dataset, task, one["value"], **about))
    return {
        f".eval_results/{dataset.replace('/', '--')}.yaml": yaml.safe_dump(
            eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True
        ).encode("utf-8")
        for dataset, entries in found.items()
    }


_PIPELINES = {
    "AutoModelForImageTextToText": "image-text-to-text",  # `transformers` has no pipeline "image-to-text" any more
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForObjectDetection": "object-detection",
}


def _front(facts: Facts, old: Mapping[str, Any]) -> str:
    model = facts["model"]
    header = {name: facts[name] for name in ("license", "language") if facts.get(name)}
    if _is_repository(model.get("base_model")):  # the Hub refuses a header that names a folder or anything else
        header["base_model"] = model["base_model"]
    if _is_repository(facts["data"].get("name")):
        header["datasets"] = [facts["data"]["name"]]
    if tag := _PIPELINES.get(model["auto"]):
        header["pipeline_tag"] = tag
    header["library_name"] = "peft" if model["is_adapter"] else model.get("library", "transformers")
    ours = TAGS if facts["curriculum"] else TAGS[1:]
    header["tags"] = merged_tags(old.get("tags"), *(facts.get("tags") or ()), *ours, model["type"])
    return front_matter({**{name: value for name, value in old.items() if name not in header}, **header})


def _is_repository(name: str | None) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name or "")
    except HFValidationError:
        return False
    return True


def _section(facts: Facts, folder: str) -> str:
    figures, spent = bool(facts["plan"] and facts["plan"]["stages"]), facts["cost"]
    scored = {"examples scored while training": "examples_scored", "compute, 3 to train on an example": "compute"}
    scored = {name: spent[key] for name, key in scored.items() if key in spent}
    cost = {"examples trained on": spent["examples"], **scored}
    cost |= {"optimizer steps": spent["steps"], "seconds": spent["seconds"]}
    speed = {
        "examples per second": "examples_per_second",
        "share of the time that waited for data": "idle",
        "MFU": "mfu",
    }
    cost |= {name: spent[key] for name, key in speed.items() if key in spent}
    return filled(
        "model_card.md",
        summary=_summary(facts),
        use=_fenced(facts["use"]) if facts.get("use") else _code(facts["model"], facts.get("images")),
        note=_note(facts),
        curriculum=_curriculum(facts),
        growth=f"![Examples that training could draw from]({folder}/{_GROWTH})\n" if figures else "",
        scores=_scores(facts.get("score")),
        reading=_reading(facts),
        settings=_pairs(facts["settings"]),
        before=_entries("Stages before this one", facts.get("before") or ()),
        curves=f"![Validation loss by examples seen]({folder}/{_CURVES})\n" if _curve(facts) else "",
        decisions=_entries("Decisions between rounds", facts["decisions"]),
        results=_results(facts["results"]),
        cost=_pairs({**cost, **facts["hardware"], **facts["versions"]}),
        citation=_citation(facts),
    )


def _summary(facts: Facts) -> str:
    model, data = facts["model"], facts["data"]
    name = f" of {plain(data['name'], 120)}" if data.get("name") else ""
    name += f" ({plain(data['description'], 300)})" if data.get("description") else ""
    base = f", from {plain(model['base_model'], 120)}" if model.get("base_model") else ""
    score = facts.get("score")
    ranked = f", ordered by {plain(score['column'], 80)} ({score['easy']} = easy)" if score else ""
    rule = facts["curriculum"]
    trained = model.get("trainable", model["parameters"])
    some = f" ({trained:,} trained)" if trained != model["parameters"] else ""
    shown = "in random order, without a curriculum" if rule is None else f"with the curriculum {plain(rule['type'])}"
    article = "An" if model["class"][:1] in "AEIOU" else "A"
    return (
        f"{article} {plain(model['class'], 80)} with {model['parameters']:,} parameters{some}{base}, trained on "
        f"{data['rows']:,} examples{name} {shown}{ranked}."
    )


def _curriculum(facts: Facts) -> str:
    if facts["curriculum"] is None:
        return "None: examples were drawn at random."
    return (
        "`curriculum.json` holds the rule, the plan and the decisions. The rule:\n\n"
        f"```json\n{json.dumps(facts['curriculum'])}\n```\n\nWhat was shown when:\n\n"
        f"```text\n{_fenced(facts['describe'])}\n```"
    )


def _reading(facts: Facts) -> str:
    """What a captioner on regions reads, as a table; nothing for other models."""
    if not facts.get("images"):
        return ""
    images, words = (
        _pairs({name.replace("_", " "): value for name, value in facts[part].items()}) for part in ("images", "words")
    )
    return f"What it sees of an image:\n\n{images}\nThe words it writes:\n\n{words}"


_IMAGE = 'image = Image.open("photo.jpg").convert("RGB")'
_PRINT = "print(processor.tokenizer.batch_decode(ids, skip_special_tokens=True)[0])"
_CAPTION = (
    "",
    _IMAGE,
    'pixels = processor.image_processor(images=image, return_tensors="pt").pixel_values',
    "ids = model.generate(pixel_values=pixels, max_new_tokens=30, num_beams=5)",
    _PRINT,
)
"""Where a card's code ends: a caption."""
_CAPTION_OF_REGIONS = (
    "",
    _IMAGE,
    'seen = processor.image_processor(images=image, return_tensors="pt")',
    "ids = model.generate(**seen)  # its own number of words and beams",
    _PRINT,
)
"""The same where the image processor gives what the model reads: regions of a known detector, or pixels."""
_STORE_IMPORTS = """from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.regions.open import open_regions"""
_CAPTION_OF_STORE = (
    "",
    'regions = RegionInputs.for_model(open_regions("store"), processor.image_processor)  # of the same detector',
    'seen = regions.batch([{"image_id": next(iter(regions.store))}])',
    "ids = model.generate(**seen)  # its own number of words and beams",
    _PRINT,
)
"""The same where the detector is not known: regions come from a store alone."""


_DETECT = (
    "",
    'image = "photo.jpg"  # a path, or an image of Pillow',
    "inputs = processor(image)  # it searches region proposals",
    "found = processor.post_process_object_detection(model(**inputs))[0]  # boxes as shares of the image's sides",
    'for score, label, box in zip(found["scores"], found["labels"], found["boxes"], strict=True):',
    "    print(model.config.id2label[int(label)], round(float(score), 3), box.tolist())",
)
"""What a card of a detector says after it was loaded."""


def _code(model: Mapping[str, Any], images: Mapping[str, Any] | None) -> str:
    repo, auto = json.dumps(model["repo_id"]), model["auto"]
    if model["is_adapter"]:
        return f"from peft import AutoPeftModel\n\nmodel = AutoPeftModel.from_pretrained({repo})"
    if auto is None:
        return (
            "from huggingface_hub import hf_hub_download\nfrom safetensors.torch import load_file\n\n"
            f'model.load_state_dict(load_file(hf_hub_download({repo}, "model.safetensors")))'
        )
    names = [auto] + ([model["processor"]] if model["processor"] else [])
    lines = [f"from transformers import {', '.join(names)}", "", f"model = {auto}.from_pretrained({repo})"]
    if model["is_ours"]:
        lines.insert(0, "import hf_curriculum  # makes the model known to the Auto classes")
    if model["processor"]:
        lines.append(f"processor = {model['processor']}.from_pretrained({repo})")
    if auto == "AutoModelForObjectDetection" and model["is_ours"] and model["processor"]:
        lines += _DETECT
    if auto == "AutoModelForImageTextToText" and model["processor"] == "AutoProcessor":
        stored = images is not None and images["reads"] == "region_features" and not images.get("detector")
        needed = _STORE_IMPORTS if stored else "from PIL import Image"
        lines.insert(lines.index(""), needed)
        lines += _CAPTION if images is None else _CAPTION_OF_STORE if stored else _CAPTION_OF_REGIONS
    return "\n".join(lines)


def _note(facts: Facts) -> str:
    where = _source(facts["model"])
    if not facts.get("command"):
        return where
    made = f"Its weights are not on the Hub. They are made by\n\n```text\n{_fenced(facts['command'])}\n```"
    return f"{where}\n\n{made}"


def _source(model: Mapping[str, Any]) -> str:
    if model["auto"] is None:
        name = plain(model["class"], 80)
        return f"Build the {name} first: it is no model of `transformers`, so only its weights are here."
    if model["is_ours"]:
        return (
            "The model's code is in `hf_curriculum` (`pip install hf-curriculum`); no code is taken from this "
            "repository, and `trust_remote_code` is not needed."
        )
    return "The model's code is in `transformers`; no code is taken from this repository."


def _scores(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    made = score.get("provenance") or {}
    shown = {"column": score["column"], "easy": score["easy"]}
    shown |= {name: made[name] for name in ("scorer", "model", "revision", "backend", "per_image") if made.get(name)}
    shown |= {name: json.dumps(made[name], ensure_ascii=False) for name in ("arguments", "versions") if made.get(name)}
    marks = score["statistics"]
    ends = [None if marks[name] is None else f"{marks[name]:.4g}" for name in ("min", "q25", "median", "q75", "max")]
    counts = table(
        ("examples", "unscored", "min", "25 %", "median", "75 %", "max"),
        [(f"{marks['rows']:,}", f"{marks['unscored']:,}", *ends)],
    )
    return f"The score:\n\n{_pairs(shown)}\n{counts}"


def _entries(heading: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """A table with a row for each mapping and a column for each name in any of them; nothing without a mapping."""
    if not entries:
        return ""
    columns = list(dict.fromkeys(name for entry in entries for name in entry))
    rows = [[_value(entry.get(name)) for name in columns] for entry in entries]
    return f"{heading}:\n\n{table(columns, rows)}"


def _results(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return "Nothing was evaluated."
    rows = [
        (one["metric"], _value(one["value"]), _value(one.get("reference")), one.get("source") or "this run")
        for one in results
    ]
    if any(one.get("reference") is not None for one in results):
        return table(("metric", "ours", "the paper's", "measured on"), rows)
    return table(("metric", "ours", "measured on"), [(row[0], row[1], row[3]) for row in rows])


def _citation(facts: Facts) -> str:
    paper = facts.get("paper")
    if facts["curriculum"] is None:
        return "No paper: no curriculum was used."
    if paper is None:
        return f"The rule is {plain(facts['curriculum']['type'])}: with this score it follows no single paper."
    cited = PAPERS[paper]
    return f"The curriculum comes from {plain(cited.short)}, *{plain(cited.title)}*.\n\n```bibtex\n{cited.bibtex}\n```"


def _curve(facts: Facts) -> list[Mapping[str, Any]]:
    """Evaluations with their loss; of several evaluation sets that of the first."""
    if not facts["plan"]:
        return []
    named = [name for one in facts["history"] for name in one if name.startswith("eval_") and name.endswith("_loss")]
    loss = next(iter(named), "eval_loss")
    return [
        {**one, "eval_loss": one[loss]} for one in facts["history"] if one.get(loss) is not None and "examples" in one
    ]


def _pairs(content: Mapping[str, Any]) -> str:
    return table(("fact", "value"), [(name, _value(value)) for name, value in content.items()])


def _value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.6g}"
    return cell(value) if isinstance(value, (int, str)) else json.dumps(value, ensure_ascii=False)


def _fenced(text: str) -> str:
    """Lines as they are, none of which can end the block."""
    lines = [
        "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in line) for line in text.splitlines()
    ]
    return "\n".join(line.rstrip().replace("```", "'''") for line in lines)
