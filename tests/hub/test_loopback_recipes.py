"""A recipe and `hf-curriculum train` publish what they trained, on a Hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_curriculum.files import read_sealed, write_sealed

pytest.importorskip("tensorboard")

ROOT = Path(__file__).parents[2]


def figures(folder):
    """The names of the numbers that TensorBoard finds below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.rglob("events.out.tfevents.*")
    return set(EventAccumulator(str(events)).Reload().Tags()["scalars"])


@pytest.mark.slow
def test_a_recipe_pushes_model_card_and_scored_data_and_writes_figures(hub, user, tmp_path):
    folder = tmp_path / "study"
    flags = ["--preset", "smoke", "--num_examples", "60", "--output_dir", str(folder)]
    published = ["--report_to", "tensorboard", "--push_to_hub", "--hub_model_id", "me/git"]
    recipe = f"""
        import runpy, sys
        sys.path.insert(0, {str(ROOT / "recipes")!r})
        sys.argv = ["babylm_git.py", *{[*flags, *published]}]
        runpy.run_path({str(ROOT / "recipes" / "babylm_git.py")!r}, run_name="__main__")
        """
    user.run(recipe)
    run = folder / "curriculum-seed0"
    names = figures(run)
    assert {"train/curriculum/phase", "train/curriculum/pool_size", "train/curriculum/score_q50", "eval/loss"} <= names
    model, data = hub.files("model", "me/git"), hub.files("dataset", "me/git-scored")
    assert {"README.md", "config.json", "curriculum.json", "model.safetensors", "training_facts.json"} <= set(model)
    assert {"tokenizer.json", "processor_config.json"} <= set(model)
    assert not [name for name in model if name.startswith(("checkpoint", "model/", "text/", "result"))]
    card = model["README.md"].decode()
    assert "noun recall of the captions it writes" in card
    assert "me/git-scored" in card
    assert {"README.md", "scores.json"} <= set(data)
    assert "noun_count" in data["README.md"].decode()
    (entry,) = json.loads((folder / "results.json").read_text())
    assert entry["pushed"] == "me/git"
    rows = user.run('print(len(load_dataset("me/git-scored", split="train")["noun_count"]))')
    assert int(rows) == entry["plan"]["num_rows"]
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert weights == model["model.safetensors"]
    losses = [one["eval_loss"] for one in entry["log"] if "eval_loss" in one]
    user.run(recipe)  # read back: nothing is trained or sent again
    assert json.loads((folder / "results.json").read_text()) == [entry]
    facts = read_sealed(run / "result.json", "")
    write_sealed(run / "result.json", json.loads(json.dumps(facts).replace('"pushed"', '"sent"')))
    user.run(recipe)  # finished, and not pushed: from its last checkpoint
    (again,) = json.loads((folder / "results.json").read_text())
    assert (again["pushed"], again["captions"]) == ("me/git", entry["captions"])
    assert [one["eval_loss"] for one in again["log"] if "eval_loss" in one][: len(losses)] == losses
    assert again["eval_loss"] == entry["eval_loss"]


@pytest.mark.slow
def test_a_captioner_on_regions_is_pushed_and_captions_new_images(hub, user, tmp_path):
    folder = tmp_path / "study"
    flags = ["--preset", "smoke", "--arms", "Transformer", "--grid", "embedded", "--output_dir", str(folder)]
    user.run(
        f"""
        import runpy, sys
        sys.path.insert(0, {str(ROOT / "recipes")!r})
        sys.argv = ["simi_cl_captioning.py", *{[*flags, "--push_to_hub", "--hub_model_id", "me/regions"]}]
        runpy.run_path({str(ROOT / "recipes" / "simi_cl_captioning.py")!r}, run_name="__main__")
        """
    )
    model = hub.files("model", "me/regions")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "training_facts.json"} <= set(model)
    assert not [name for name in model if name.startswith(("checkpoint", "model/", "result"))]
    (entry,) = json.loads((folder / "results.json").read_text())
    assert entry["pushed"] == "me/regions"
    caption = """
        from typer.testing import CliRunner
        from hf_curriculum.cli import app
        done = CliRunner().invoke(app, ["caption", {model!r}, {images!r}])
        assert done.exit_code == 0, done.output
        print(done.stdout)
        """
    images = str(folder / "held_out")
    ours = user.run(caption.format(model=str(folder / "Transformer-seed0" / "model"), images=images))
    assert len(ours.split("\n")) >= 10
    assert user.run(caption.format(model="me/regions", images=images)) == ours  # its detector comes with it


@pytest.mark.slow
def test_the_command_takes_every_training_argument(hub, user, tmp_path):
    user.run(
        f"""
        from hf_curriculum.cli import app
        from hf_curriculum.scored_data import save_scored
        tiny = Dataset.from_dict({{
            "image": [Image.new("RGB", (16, 16), (9 * i, 9, 9)) for i in range(24)],
            "image_id": [f"i{{i}}" for i in range(24)],
            "caption": ["word " * (1 + i % 7) for i in range(24)],
        }})
        save_scored(add_scores(tiny, CaptionLength()), {str(tmp_path / "scored")!r})
        app(["train", {str(tmp_path / "scored")!r}, {str(tmp_path / "run")!r}, "--curriculum", "iid", "--epochs", "2",
             "--image-size", "16", "--validation", "0.2", "--report_to", "tensorboard", "--push_to_hub",
             "--hub_model_id", "me/trained", "--global_batch_size", "4", "--adam_beta2=0.9"], standalone_mode=False)
        """
    )
    assert "eval/loss" in figures(tmp_path / "run")
    files = hub.files("model", "me/trained")
    assert {"README.md", "config.json", "curriculum.json", "model.safetensors"} <= set(files)
    settings = json.loads(files["training_facts.json"])["settings"]
    assert settings["examples per optimizer step"] == 4
