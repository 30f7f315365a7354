"""The command `hf-curriculum`."""

from __future__ import annotations

try:
    from typing import Annotated

    import typer

    from hf_curriculum import __version__
    from hf_curriculum.cli.common import AsJson, say
    from hf_curriculum.cli.evaluate import evaluate_command
    from hf_curriculum.cli.features import features_command
    from hf_curriculum.cli.inspect import inspect_command
    from hf_curriculum.cli.plan import plan_command
    from hf_curriculum.cli.push import push_command
    from hf_curriculum.cli.recipe import recipe_command
    from hf_curriculum.cli.report import report_command
    from hf_curriculum.cli.score import score_command
    from hf_curriculum.cli.train import TrainCommand, train_command
    from hf_curriculum.tasks.alignment.cli import ontology_command
    from hf_curriculum.tasks.captioning.cli import caption_command
    from hf_curriculum.tasks.detection.cli import detect_command, propose_command
    from hf_curriculum.tasks.long_tail.cli import generate_command
except KeyboardInterrupt:  # Ctrl-C before the command has begun: the status of one that ends later, and no traceback
    raise SystemExit(130) from None

app: typer.Typer = typer.Typer(
    help="Curriculum learning for image-text data.\n\n"
    "From a folder of images with captions.csv in it (file_name,caption) to a trained model:\n\n"
    "1. hf-curriculum score photos scored --scorer noun_count --per-image max\n\n"
    "2. hf-curriculum inspect scored --html page\n\n"
    "3. hf-curriculum plan scored phases\n\n"
    "4. hf-curriculum train scored run --curriculum phases\n\n"
    "5. hf-curriculum report run --dataset scored\n\n"
    "6. hf-curriculum caption run/model photos\n\n"
    "7. hf-curriculum evaluate run/model\n\n"
    "8. hf-curriculum push scored me/name",
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


app.command("score")(score_command)
app.command("features")(features_command)
app.command("generate")(generate_command)
app.command("propose")(propose_command)
app.command("ontology")(ontology_command)
app.command("inspect")(inspect_command)
app.command("plan")(plan_command)
app.command("train", cls=TrainCommand, context_settings={"allow_extra_args": True})(train_command)
app.command(
    "recipe",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(recipe_command)
app.command("report")(report_command)
app.command("caption")(caption_command)
app.command("detect")(detect_command)
app.command("evaluate")(evaluate_command)
app.command("push")(push_command)
