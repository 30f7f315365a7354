"""`hf-curriculum recipe`: a recipe from the installed package, or from the checkout."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

import hf_curriculum

RECIPES = (
    *("babylm_git", "babylm_flamingo", "simi_cl_captioning"),
    *("tonics_alignment", "wsod_wsddn", "discl_longtail", "reference_model"),
    *("scenes_clip", "scenes_diffusion", "vlm_sft", "photographs"),
)


def recipe_folder() -> Path:
    """Where the recipes are: in the installed package, or beside it in a checkout."""
    package = Path(hf_curriculum.__file__).parent
    return next(folder for folder in (package / "recipes", package.parent / "recipes") if folder.is_dir())


def recipe_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}; what follows are its own flags.")],
) -> None:
    """Run a recipe: `hf-curriculum recipe babylm_git --help` shows its flags.

    On several processes: `accelerate launch -m hf_curriculum.cli recipe babylm_git`.
    """
    if name not in RECIPES:
        raise typer.BadParameter(f"There is no recipe {name!r}. There are {', '.join(RECIPES)}.", param_hint="NAME")
    script = recipe_folder() / f"{name}.py"
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *context.args]
    runpy.run_path(str(script), run_name="__main__")


recipe_command.options = {  # type: ignore[attr-defined]
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
}
