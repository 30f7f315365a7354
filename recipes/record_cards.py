"""The cards in `model_cards/`, made again: recipes run on embedded data, and what they recorded is rendered.

    python recipes/record_cards.py                      # all of them; about half an hour on one CPU thread
    python recipes/record_cards.py babylm_git_c         # one
    python recipes/record_cards.py --render             # the cards from the facts that are there; nothing is trained

A run that is finished is read back. `NAME.json` holds the facts that the run recorded itself (`training_facts.json` in
its folder), without what is true of one machine's folders only; `NAME.md` is rendered from them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel

import hf_curriculum
from hf_curriculum.files import write_together
from hf_curriculum.hub.model_card import model_figures, render_model_card
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP
from hf_curriculum.training.publishing import FACTS_FILE

ROOT = Path(__file__).parent.parent
RUNS = Path("outputs") / "cards"
SHIPPED = {SCENES_CLIP: "8542597", "scenes_diffusion": "2153943"}
"""Models that ship, and the commits that their weights came with."""


@dataclass(frozen=True)
class Recorded:
    """A system that a recipe trains on embedded data.

    Args:
        recipe: its file.
        options: its options.
        arm: which of the study's arms the card describes, where there are several.
    """

    recipe: str
    options: tuple[str, ...] = ()
    arm: str = ""

    @property
    def command(self) -> str:
        """What a person types."""
        return f"accelerate launch recipes/{shlex.join((self.recipe, *self.options))}"


_DROPOUTS = "feature_dropout: 0.1, word_dropout: 0.1, output_dropout: 0.1"
_SIZES = {
    "updown": f"{{hidden_size: 96, attention_size: 48, {_DROPOUTS}}}",
    "aoanet": f"{{hidden_size: 96, num_attention_heads: 4, num_refiner_layers: 2, {_DROPOUTS}, context_dropout: 0.1}}",
}
_ONE_ARM = ("--grid", "none")  # the curriculum's alone
SYSTEMS = {
    "babylm_git_c": Recorded("babylm_git.py"),
    "babylm_git_tc": Recorded("babylm_git.py", ("--text", "scenes")),
    "babylm_flamingo_c": Recorded("babylm_flamingo.py"),
    "babylm_flamingo_tc": Recorded("babylm_flamingo.py", ("--text", "scenes")),
    "simi_cl_transformer": Recorded("simi_cl_captioning.py", _ONE_ARM),
    **{
        f"simi_cl_{name}": Recorded("simi_cl_captioning.py", (*_ONE_ARM, "--model", name, "--model_options", sizes))
        for name, sizes in _SIZES.items()
    },
    "wsod_wsddn": Recorded("wsod_wsddn.py", arm="Curriculum"),
    "tonics_aligner": Recorded("tonics_alignment.py", arm="TOnICS"),
    "discl_resnet": Recorded("discl_longtail.py", ("--seeds", "3"), arm="Alg._3"),
}


def record(name: str, runs: Path) -> dict[str, Any]:
    """The facts of a system, from its run, which is made if it is not there."""
    system, folder = SYSTEMS[name], runs / name
    subprocess.run(
        [sys.executable, str(ROOT / "recipes" / system.recipe), *system.options, "--output_dir", str(folder)],
        check=True,
    )
    found = sorted(folder.glob(f"{system.arm}*/{FACTS_FILE}"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} holds {len(found)} runs with a {FACTS_FILE}, and a card describes one. A run made before its "
            "recipe wrote facts has none, and one of other settings stands beside it: delete the folder and try again."
        )
    facts = json.loads(found[0].read_text(encoding="utf-8"))
    facts["versions"] |= digests(found[0].parent / "model")
    facts["model"] |= {"name": name, "repo_id": (RUNS / name / found[0].parent.name / "model").as_posix()}
    command = f"{system.command} --output_dir {(RUNS / name).as_posix()}"
    return {**facts, "command": command, "language": "en", "license": "apache-2.0"}


def digests(folder: Path) -> dict[str, str]:
    """What tells the weights in a folder from others: their files' SHA-256."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f"sha256 of {file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def shipped(name: str) -> dict[str, Any]:
    """The facts of a model that ships, from the file that its recipe wrote beside it."""
    folder = Path(hf_curriculum.__file__).parent / "models" / name
    made = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    own = _clip(folder, made) if name == SCENES_CLIP else _diffusion(made)
    shared = {"base_model": None, "is_adapter": False, "trainable": own["model"]["parameters"], "processor": None}
    return {
        "format": 1,
        **own,
        "model": {"name": name, "repo_id": name, **own["model"], **shared},
        "score": None, "curriculum": None, "plan": None, "describe": "", "decisions": [], "before": [], "history": [],
        "settings": {
            **own["settings"], "learning rate": made["learning_rate"], "pixels of a scene": made["image_size"],
            "seed": made["seed"], "training loss at the end": made["final_loss"],
        },
        "hardware": {"device": own["hardware"]},
        "versions": {**made["versions"], "shipped in commit": SHIPPED[name], **digests(folder)},
        "paper": None,
        "command": f"python recipes/{made['recipe']}",
        "language": "en",
        "license": "apache-2.0",
    }  # fmt: skip


def _clip(folder: Path, made: Mapping[str, Any]) -> dict[str, Any]:
    """What the CLIP's facts alone have."""
    model, auc = AutoModel.from_config(AutoConfig.from_pretrained(folder)), made["held_out_auc"]
    return {
        "model": {
            "class": type(model).__name__, "auto": "AutoModel", "type": model.config.model_type,
            "parameters": model.num_parameters(), "is_ours": False,
        },
        "data": {
            "name": None, "rows": made["captions"], "evaluation_rows": None,
            "description": f"captions of {made['scenes']:,} embedded scenes, data seed {made['data_seed']}",
        },
        "settings": {
            "pictures per optimizer step": made["batch_size"], "captions per picture": made["captions_per_image"],
        },
        "results": [
            {"metric": f"AUC of matched captions beside {kind} ones", "value": auc[key],
             "source": f"held-out scenes, data seed {made['held_out_seed']}"}
            for key, kind in (("mismatched", "false"), ("shuffled", "other pictures'"))
        ],
        "cost": {
            "examples": made["steps"] * made["batch_size"] * made["captions_per_image"], "steps": made["steps"],
            "seconds": round(60 * made["minutes"], 1),
        },
        "hardware": "one CPU thread",
        "use": "from hf_curriculum import CLIPSimilarity\n\nscorer = CLIPSimilarity()  # it ships with the package",
    }  # fmt: skip


def _diffusion(made: Mapping[str, Any]) -> dict[str, Any]:
    """What the diffusion model's facts alone have."""
    held_out = f"{made['held_out_pictures']} held-out pictures, data seed {made['held_out_seed']}"
    return {
        "model": {
            "class": "PixelDiffusionPipeline", "auto": "", "type": "diffusion", "parameters": made["parameters"],
            "is_ours": True, "library": "diffusers",
        },
        "data": {
            "name": None, "rows": made["pictures"], "evaluation_rows": made["held_out_pictures"],
            "description": f"single objects of embedded scenes, data seed {made['data_seed']}",
        },
        "settings": {"pictures per optimizer step": made["batch_size"]},
        "results": [
            {"metric": f"{metric} at guidance {level}", "value": value, "source": held_out}
            for metric, values in (("distance from the source", made["distance"]), ("named rightly", made["named"]))
            for level, value in values.items()
        ],
        "cost": {
            "examples": made["steps"] * made["batch_size"], "steps": made["steps"],
            "seconds": round(60 * made["minutes"], 1),
        },
        "hardware": "two CPU threads",
        "use": "from hf_curriculum.tasks.long_tail import generate_spectrum\n\n"
        'spectrum = generate_spectrum(marked, "scenes_diffusion", prompts="a {label}", folder="spectrum")',
    }  # fmt: skip


def write(name: str, facts: Mapping[str, Any], folder: Path) -> None:
    """Writes the facts, the card and its figures."""
    text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_together(folder, {f"{name}.json": text})
    render(name, folder)


def render(name: str, folder: Path) -> None:
    """Writes the card and its figures from the facts that are there."""
    file = folder / f"{name}.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist, so there is nothing to render. Record it without --render.")
    facts = json.loads(file.read_text(encoding="utf-8"))
    figures = f"figures/{name}"
    card = render_model_card(facts, figures=figures).encode("utf-8")
    write_together(folder, {f"{name}.md": card, **model_figures(facts, figures=figures)})


def main() -> None:
    """Runs what is missing, and writes facts and cards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*SYSTEMS, *SHIPPED)
    parser.add_argument("names", nargs="*", help=f"which cards; all of {', '.join(names)} if none is named")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs go, and are found again")
    parser.add_argument("--output", type=Path, default=ROOT / "model_cards", help="where cards go")
    parser.add_argument("--render", action="store_true", help="render the facts that are there")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"{', '.join(sorted(unknown))} is no card; {', '.join(names)} are")
    for name in options.names or names:
        if not options.render:
            write(name, shipped(name) if name in SHIPPED else record(name, options.runs), options.output)
        else:
            render(name, options.output)
        print(options.output / f"{name}.md")


if __name__ == "__main__":
    main()
