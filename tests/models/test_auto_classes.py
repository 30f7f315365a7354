"""`import hf_curriculum` is all that the Auto classes need, before or after them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap

import pytest
from detection_task import shapes_data, shapes_model, shapes_processor
from transformers import AutoConfig, GitProcessor
from typer.testing import CliRunner

from hf_curriculum import make_image_processor, train_wordpiece
from hf_curriculum.cli import app
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.models.flamingo.build import flamingo_from_config, small_flamingo_config
from hf_curriculum.models.git.build import git_from_config, small_git_config

LOAD = """
folder = sys.argv[1]
for name in ("Git", "Flamingo"):
    for auto, expected in (
        (AutoModelForCausalLM, f"Caption{name}ForCausalLM"),
        (AutoModelForImageTextToText, f"Caption{name}ForCausalLM"),
        (AutoModel, f"Caption{name}Model"),
    ):
        found = type(auto.from_pretrained(f"{folder}/{name}")).__name__
        assert found == expected, (found, expected)
    assert type(AutoProcessor.from_pretrained(f"{folder}/{name}")).__name__ == "GitProcessor"
    assert len(AutoTokenizer.from_pretrained(f"{folder}/{name}")) > 4
    assert AutoImageProcessor.from_pretrained(f"{folder}/{name}", backend="pil").size["height"] == 16
assert type(AutoImageProcessor.from_pretrained(f"{folder}/Detector")).__name__ == "WsddnImageProcessor"
"""
NAMES = (
    "AutoImageProcessor, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two captioners with what turns images and captions into their input, a detector, and a reader of regions."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = train_wordpiece(["a red ball", "two blue cubes"], 60)
    sizes = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 1}
    git_from_config(small_git_config(60, tokenizer=tokenizer, **sizes)).save_pretrained(folder / "Git")
    flamingo = small_flamingo_config(60, perceiver_latents=3, **sizes)
    flamingo_from_config(flamingo).save_pretrained(folder / "Flamingo")
    for name in ("Git", "Flamingo"):
        GitProcessor(make_image_processor(16), tokenizer).save_pretrained(folder / name)
    shapes_model(initializer_range=3.0).save_pretrained(folder / "Detector")
    shapes_processor().save_pretrained(folder / "Detector")
    shapes_data(1)[0]["image"].save(folder / "photo.png")
    RegionProcessor(grid=2).save_pretrained(folder / "Regions")
    (folder / "config.pkl").write_bytes(pickle.dumps(AutoConfig.from_pretrained(folder / "Flamingo")))
    return folder


def run(code, *arguments):
    """What a new process prints that runs this code."""
    program = "import sys\nsys.modules['torchvision'] = None\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_no_model_is_loaded_before_it_is_needed():
    # Torch and transformers are loaded, because the Auto classes know our models from then on: a hook into the imports
    # of transformers would spare them to whoever needs neither, and finds its modules half ready.
    out = run(
        """
        import hf_curriculum
        print({"datasets", "matplotlib", "hf_curriculum.training"} & set(sys.modules))
        import transformers.models.auto.configuration_auto as module
        print("curriculum_git" in module.CONFIG_MAPPING, "hf_curriculum.models.git.model" in sys.modules)
        module.AutoConfig.for_model("curriculum_git")
        print("hf_curriculum.models.git.model" in sys.modules)
        """
    )
    assert out.splitlines() == ["set()", "True False", "True"]


ORDERS = (
    f"from transformers import {NAMES}; import hf_curriculum",
    # Modules of `transformers` that load the Auto classes while they are half ready themselves:
    "import hf_curriculum; from transformers import PreTrainedModel, GitForCausalLM",
    "import hf_curriculum; from transformers import OPTForCausalLM, LlavaConfig",
    "import hf_curriculum; from transformers import Trainer, pipeline",
    "import hf_curriculum; from transformers import AutoModelForCausalLM",
    "from hf_curriculum.models.git.config import CaptionGitConfig",
    "from hf_curriculum.models.flamingo.model import CaptionFlamingoForCausalLM",
    "from hf_curriculum.names import MODELS",
)


COMMAND = """
sys.argv[0] = "/usr/bin/hf-curriculum"
import hf_curriculum
assert "hf_curriculum.models" not in sys.modules
from hf_curriculum.models.captioner import load_captioner
for name in ("Git", "Flamingo"):
    found = type(load_captioner(f"{sys.argv[1]}/{name}")[0]).__name__
    assert found == f"Caption{name}ForCausalLM", found
"""


REGIONS = """
import hf_curriculum
assert "hf_curriculum.data.regions.processor" not in sys.modules
from transformers import AutoImageProcessor
assert AutoImageProcessor.from_pretrained(f"{sys.argv[1]}/Regions", backend="pil").grid == 2
"""

UNPICKLE = """
import pickle
from pathlib import Path
from transformers import AutoModelForCausalLM
config = pickle.loads(Path(sys.argv[1], "config.pkl").read_bytes())
found = type(AutoModelForCausalLM.from_config(config)).__name__
assert found == "CaptionFlamingoForCausalLM", found
"""

DETECT = """
import contextlib, runpy
from pathlib import Path
del sys.modules["torchvision"]  # regions are pooled by it
folder = Path(sys.argv[1])
sys.argv = ["hf-curriculum", "detect", f"{folder}/Detector", f"{folder}/photo.png", "--json", "--threshold", "0.02"]
with (folder / "detected.json").open("w") as file, contextlib.redirect_stdout(file):
    try:
        runpy.run_module("hf_curriculum.cli", run_name="__main__")
    except SystemExit as end:
        assert not end.code, end
"""


FORKS = """
import atexit, gc, json, os, traceback
# What takes long and has no part in it, once for all:
import datasets, huggingface_hub, safetensors.torch, scipy.optimize, tokenizers, torch
import torch._dynamo, torch._inductor.utils, torch.distributed.tensor, torch.utils.checkpoint
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)
told = {}
for order in json.loads(sys.argv[2]):
    reading, writing = os.pipe()
    if not os.fork():
        try:
            exec(order, {"sys": sys})
            said = "loaded"
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        told[order] = stream.read()
    os.wait()
assert not {"transformers", "hf_curriculum"} & set(sys.modules)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def outcomes(saved):
    """What became of each order of imports, in a process of its own that had imported neither library."""
    programs = {imports: f"{imports}\nfrom transformers import {NAMES}\n{LOAD}" for imports in ORDERS}
    programs |= {program: program for program in (COMMAND, REGIONS, UNPICKLE, DETECT)}
    told = json.loads(run(FORKS, saved, json.dumps(list(programs.values()))))
    return {imports: told[program] for imports, program in programs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("imports", ORDERS)
def test_whatever_is_imported_first(outcomes, imports):
    assert outcomes[imports] == "loaded"


@pytest.mark.slow
def test_a_configuration_travels_to_another_process(outcomes, saved, tmp_path):
    """What is pickled is found again in a process that has imported nothing, and a spawned one finds what is saved."""
    assert outcomes[UNPICKLE] == "loaded"
    script = tmp_path / "spawned.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys

            def name(folder):
                import hf_curriculum  # noqa: F401
                from transformers import AutoModelForCausalLM

                return type(AutoModelForCausalLM.from_pretrained(folder)).__name__

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(pool.map(name, [sys.argv[1] + "/Git"])[0])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), str(saved)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip() == "CaptionGitForCausalLM", done.stderr[-2000:]


@pytest.mark.slow
def test_the_command_loads_the_models_it_saved(outcomes):
    """`hf-curriculum` imports the library without its models, so that help and completion answer at once."""
    assert outcomes[COMMAND] == "loaded"


@pytest.mark.slow
def test_importing_the_package_makes_auto_image_processor_know_regions(outcomes):
    assert outcomes[REGIONS] == "loaded"


@pytest.mark.slow
def test_a_command_that_has_imported_nothing_knows_the_detector(outcomes, saved):
    assert outcomes[DETECT] == "loaded"
    told = json.loads((saved / "detected.json").read_text())
    words = ["detect", f"{saved}/Detector", f"{saved}/photo.png", "--json", "--threshold", "0.02"]
    assert told == json.loads(CliRunner().invoke(app, words).stdout)
    assert told[0]["objects"]


def test_other_models_are_as_they_were():
    from transformers import AutoModelForCausalLM, GitConfig, GitForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert set(CONFIG_MAPPING._extra_content) >= {"curriculum_git", "curriculum_flamingo"}
    assert AutoModelForCausalLM._model_mapping[GitConfig] is GitForCausalLM
