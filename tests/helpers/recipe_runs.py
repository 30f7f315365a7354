"""What a command line makes of a recipe of BabyLM, without training; a helper, loaded by path."""

from __future__ import annotations

from babylm.arguments import recipe_parser


def parser_of(recipe="babylm_git"):
    """A new parser of that recipe."""
    return recipe_parser(recipe, "")


def settings_of(*options, recipe="babylm_git"):
    """The settings of a run, as JSON has them; of the preset `smoke`, if no other is named."""
    return parser_of(recipe).parse(["--preset", "smoke", *options]).settings


def arguments_of(*options, recipe="babylm_git", output_dir="out", **changed):
    """Data, model, own and training arguments of a run."""
    parser = parser_of(recipe)
    options = parser.parse(["--preset", "smoke", *options])
    return parser.parse_dict({**options.shared, **options.settings, "output_dir": str(output_dir), **changed})
