"""The card of a model trained with a curriculum, written from facts that were gathered while it trained."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from hf_curriculum.hub.figures import pool_growth, validation_curves
from hf_curriculum.hub.figures.canvas import to_png
from hf_curriculum.hub.figures.growth import pools_of
from hf_curriculum.hub.markdown import front_matter, plain, renewed, split_front_matter, table
from hf_curriculum.hub.markup import cell
from hf_curriculum.hub.papers import PAPERS

TAGS = ("curriculum-learning", "hf_curriculum")
_GROWTH, _CURVES = "figures/pool_growth.png", "figures/validation_loss.png"

Facts = Mapping[str, Any]
"""What `gather_facts` gathers; all of it JSON. A card can be rendered again from it at any time:

`model` (name, repo_id, class, auto, type, processor, parameters, base_model, is_ours, is_adapter), `data` (name, rows,
evaluation_rows), `score` (column, easy, provenance, statistics) or None, `curriculum` and `plan` (`to_dict()`),
`describe`, `decisions`, `settings`, `history` (the log's evaluations), `results` (metric, value, reference, source),
`cost` (examples, steps, seconds), `hardware`, `versions`, `paper` (a key of `PAPERS`) or None, and what its author
says: `license`, `language`, `tags`.
"""


def render_model_card(facts: Facts, previous: str | None = None) -> str:
    """The text of `README.md`.

    Args:
        facts: of the run, see `Facts`.
        previous: the card that is there now: its header and what people wrote around our section stay.

    Raises:
        ValueError: the header of the card that is there cannot be read.

    Example:
        >>> text = render_model_card(json.loads(Path("out/training_facts.json").read_text()))   # doctest: +SKIP
    """
    old, body = split_front_matter(previous or "")
    if not body.strip() or old.get("library_name") == "peft":  # which writes questions to be filled in
        body = f"\n# {plain(facts['model']['name'])}\n"
    return _front(facts, old) + renewed(body, _section(facts))


def model_figures(facts: Facts) -> dict[str, bytes]:
    """The figures of the card as PNG, by path: the pools, and the validation curve if anything was evaluated."""
    found = {}
    if facts["plan"] and facts["plan"]["stages"]:
        found[_GROWTH] = to_png(pool_growth({facts["curriculum"]["type"]: pools_of(facts["plan"])}))
    curve = _curve(facts)
    if curve:
        ends = [stage["last_slot"] + 1 for stage in facts["plan"]["stages"][:-1]]
        found[_CURVES] = to_png(validation_curves({facts["curriculum"]["type"]: curve}, boundaries=ends))
    return found


def _front(facts: Facts, old: Mapping[str, Any]) -> str:
    model, told = facts["model"], {}
    if facts.get("license"):
        told["license"] = facts["license"]
    if facts.get("language"):
        told["language"] = facts["language"]
    if model.get("base_model"):
        told["base_model"] = model["base_model"]
    if facts["data"].get("name"):
        told["datasets"] = [facts["data"]["name"]]
    if model["auto"] == "AutoModelForImageTextToText":
        told["pipeline_tag"] = "image-to-text"
    told["library_name"] = "peft" if model["is_adapter"] else "transformers"
    before = old.get("tags") or []
    tags = [*([before] if isinstance(before, str) else before), *(facts.get("tags") or ()), *TAGS, model["type"]]
    told["tags"] = list(dict.fromkeys(tag for tag in tags if tag))
    return front_matter({**{name: value for name, value in old.items() if name not in told}, **told})


def _section(facts: Facts) -> str:
    template = (files("hf_curriculum.hub") / "templates" / "model_card.md").read_text("utf-8")
    figures = bool(facts["plan"] and facts["plan"]["stages"])
    text = Template(template).substitute(
        summary=_summary(facts),
        use=_code(facts["model"]),
        note=_note(facts["model"]),
        curriculum=f"`curriculum.json` holds the rule, the plan and the decisions. The rule:\n\n"
        f"```json\n{json.dumps(facts['curriculum'])}\n```\n\nWhat was shown when:",
        plan=_fenced(facts["describe"]),
        growth=f"![Examples that training could draw from]({_GROWTH})\n" if figures else "",
        scores=_scores(facts.get("score")),
        settings=_pairs(facts["settings"]),
        curves=f"![Validation loss by examples seen]({_CURVES})\n" if _curve(facts) else "",
        decisions=_decisions(facts["decisions"]),
        results=_results(facts["results"]),
        cost=_pairs({**_cost(facts["cost"]), **facts["hardware"], **facts["versions"]}),
        citation=_citation(facts.get("paper")),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _summary(facts: Facts) -> str:
    model, data = facts["model"], facts["data"]
    name = f" of {plain(data['name'], 120)}" if data.get("name") else ""
    base = f", from {plain(model['base_model'], 120)}" if model.get("base_model") else ""
    score = facts.get("score")
    ranked = f", ordered by {plain(score['column'], 80)} ({score['easy']} = easy)" if score else ""
    return (
        f"A {plain(model['class'], 80)} with {model['parameters']:,} parameters{base}, trained on {data['rows']:,} "
        f"examples{name} with the curriculum {plain(facts['curriculum']['type'])}{ranked}."
    )


def _code(model: Mapping[str, Any]) -> str:
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
        lines.insert(0, "import hf_curriculum.models  # makes the model known to the Auto classes")
    if model["processor"]:
        lines.append(f"processor = {model['processor']}.from_pretrained({repo})")
    return "\n".join(lines)


def _note(model: Mapping[str, Any]) -> str:
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


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> str:
    if not decisions:
        return ""
    columns = list(dict.fromkeys(name for entry in decisions for name in entry))
    rows = [[_value(entry.get(name)) for name in columns] for entry in decisions]
    return f"Decisions between rounds:\n\n{table(columns, rows)}"


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


def _cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    return {"examples trained on": cost["examples"], "optimizer steps": cost["steps"], "seconds": cost["seconds"]}


def _citation(paper: str | None) -> str:
    if paper is None:
        return "The rule of this curriculum is not that of one paper."
    cited = PAPERS[paper]
    return f"The curriculum comes from {plain(cited.short)}, *{plain(cited.title)}*.\n\n```bibtex\n{cited.bibtex}\n```"


def _curve(facts: Facts) -> list[Mapping[str, Any]]:
    if not facts["plan"]:
        return []
    return [one for one in facts["history"] if one.get("eval_loss") is not None and "examples" in one]


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
