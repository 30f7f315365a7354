"""The command `hf-curriculum`."""

from __future__ import annotations

try:
    from importlib import import_module
    from typing import Annotated, Any

    import typer
    from typer.core import TyperGroup
    from typer.exceptions import TyperException

    from hf_curriculum import __version__
    from hf_curriculum.cli.common import AsJson, say
    from hf_curriculum.config import redact
except KeyboardInterrupt:  # Ctrl-C before the command has begun: the status of one that ends later, and no traceback
    raise SystemExit(130) from None


COMMANDS = {
    "score": "cli.score:score_command",
    "features": "cli.features:features_command",
    "generate": "tasks.long_tail.cli:generate_command",
    "propose": "tasks.detection.cli:propose_command",
    "ontology": "tasks.alignment.cli:ontology_command",
    "inspect": "cli.inspect:inspect_command",
    "bucket": "cli.bucket:bucket_command",
    "advise": "cli.advise:advise_command",
    "plan": "cli.plan:plan_command",
    "train": "tasks.captioning.train:train_command",
    "recipe": "cli.recipe:recipe_command",
    "report": "cli.report:report_command",
    "caption": "tasks.captioning.cli:caption_command",
    "detect": "tasks.detection.cli:detect_command",
    "evaluate": "cli.evaluate:evaluate_command",
    "verify": "cli.verify:verify_command",
    "push": "cli.push:push_command",
    "space": "cli.space:space_command",
}
"""The commands of `hf-curriculum`, in the order of its help, and the function behind each."""


class Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is called, or when all are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in COMMANDS if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, _, function = COMMANDS[cmd_name].partition(":")
            callback = getattr(import_module(f"hf_curriculum.{module}"), function)
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name, **getattr(callback, "options", {}))(callback)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TyperException as error:  # it repeats what was typed
            error.message = redact(error.message)
            raise


app: typer.Typer = typer.Typer(
    cls=Commands,
    help="Curriculum learning for image-text data.\n\n"
    "From a folder of images with captions.csv in it (file_name,caption) to a trained model:\n\n"
    "1. hf-curriculum score photos scored --scorer noun_count --per-image max\n\n"
    "2. hf-curriculum inspect scored --html page\n\n"
    "3. hf-curriculum plan scored phases\n\n"
    "4. hf-curriculum train scored run --curriculum phases\n\n"
    "5. hf-curriculum report run --dataset scored\n\n"
    "6. hf-curriculum caption run/model photos\n\n"
    "7. hf-curriculum evaluate run/model\n\n"
    "8. hf-curriculum push scored me/name\n\n"
    "9. hf-curriculum space scored out",
    epilog="Results go to standard output, as JSON with --json; notes and progress go to standard error. Exit status: "
    "0 done, 1 the work failed, 2 called in a way that cannot work, 130 interrupted (Ctrl-C). "
    "TAB completes commands, options and names after `hf-curriculum --install-completion`.",
    no_args_is_help=True,
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before a command."""


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    say(__version__, {"version": __version__}, as_json)
