"""What recipes share: their command line, presets, the runs that it names, and where a run resumes."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import difflib
import functools
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import (
    HfArgumentParser,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_curriculum.config import read_config, read_yaml, redact
from hf_curriculum.hub.errors import in_words
from hf_curriculum.names import CURRICULA
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.scorers.registry import import_named
from hf_curriculum.studies.grid import Arm, log_budgets, read_arms, select_arms, study_arms
from hf_curriculum.studies.study import Study
from hf_curriculum.training.checkpoints import is_complete
from hf_curriculum.training.setup import close_process_group

_SHARED = re.compile(
    r"(hub|push|trackio|do|log_level|log_on)_\w+|output_dir|seed|report_to|run_name|project|disable_tqdm|local_rank"
    r"|resume_from_checkpoint|resume_on_other_data|use_cpu|dataloader_pin_memory"
)
"""Training arguments that no result depends on, and that therefore make no other run: trackers, the Hub, devices."""


def read_preset(name_or_file: str, folder: Path, what: str = "preset") -> dict[str, Any]:
    """The fields of a preset, or the rows of another file of its kind.

    A preset may begin from another one, `base: paper`, by its name or a path from the preset's own folder
    (`base: ../babylm_git/paper`), or from several, `base: [embedded, ../babylm/smoke]`: where two of them have a field
    the later one's holds, and the preset's own fields hold against all of them. In a grid this goes for each row's
    fields.

    Args:
        name_or_file: the name of a file in `folder` without its ending, or else a file.
        folder: where the recipe's presets are.
        what: what it is called in messages.

    Raises:
        ValueError: there is no such preset, or it is not a mapping.
    """
    path = folder / f"{name_or_file}.yaml"
    if not path.is_file():
        path = Path(name_or_file)
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ValueError(f"The {what} {name_or_file!r} is neither a file nor one of {names} in {folder}.")
    values = read_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"The {what} {path} is not a mapping of fields or rows to values.")
    bases = values.pop("base", None) or []
    merged: dict[str, Any] = {}
    for part in [
        *(read_preset(base, path.parent, what) for base in (bases if isinstance(bases, list) else [bases])),
        values,
    ]:
        merged |= _merged_rows(merged, part) if what == "grid" else part
    return merged


def _merged_rows(before: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, with what rows of the same names had before; what is no row is refused later."""
    return {
        name: {**(before.get(name) or {}), **(row or {})} if isinstance(row or {}, dict) else row
        for name, row in rows.items()
    }


class FlagParser(HfArgumentParser):
    """An `HfArgumentParser` whose errors name the nearest flag, and whose namespace holds what was given, no defaults.

    `none` gives a field without a value; a field for a mapping takes JSON, YAML or a file of either, and one for a
    curriculum its name too.

    Args:
        dataclass_types: whose fields are flags.
        others: further flags that may have been meant.
        **kwargs: of `argparse.ArgumentParser`.
    """

    def __init__(self, dataclass_types: Iterable[type], others: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(
            dataclass_types, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )
        self._others = list(others)
        self._by_name = {action.dest: action for action in reversed(self._actions)}  # --x before --no_x
        self.fields: set[str] = set()
        self.required: list[str] = []
        inherited = {item.name for item in dataclasses.fields(TrainingArguments)}
        for dtype in self.dataclass_types:
            hints = get_type_hints(dtype)
            for item in dataclasses.fields(dtype):
                action, kinds = self._by_name.get(item.name), get_args(hints[item.name])
                if action is None:
                    continue
                self.fields.add(item.name)
                missing = item.default is item.default_factory is dataclasses.MISSING
                self.required += [item.name] * missing
                if dict in (hints[item.name], *kinds) and item.name not in inherited:
                    action.type = functools.partial(_mapping, item.name)
                if type(None) in kinds and (missing or item.default is None) and action.nargs is None:
                    action.type = _or_none(action.type)
        for action in self._actions[1:]:
            if action.default not in (None, argparse.SUPPRESS):
                action.help = f"{action.help or ''} (default: {str(action.default).replace('%', '%%')})".strip()
            action.required, action.default = False, argparse.SUPPRESS

    def read_value(self, name: str, text: Any) -> Any:
        """A field's value from text, as the command line has it; what is no text stays."""
        action = self._by_name[name]
        try:
            if text is False and "no" in (action.choices or ()):
                return "no"  # which YAML takes for a truth value
            if not isinstance(text, str):
                return text
            if action.nargs == "+":
                parts = read_yaml(text)
                return [self._get_value(action, str(part)) for part in (parts if isinstance(parts, list) else [parts])]
            value = self._get_value(action, text)
            self._check_value(action, value)
        except argparse.ArgumentError as error:
            raise ValueError(str(error)) from error
        return value

    def parse_given(
        self, argv: Sequence[str] | None = None, values: Mapping[str, Any] | None = None
    ) -> argparse.Namespace:
        """What the command line gives, over `values`."""
        namespace, unknown = self.parse_known_args(argv, argparse.Namespace(**(values or {})))
        if unknown:
            hints = [hint for word in unknown if word.startswith("--") and (hint := self.nearest(word))]
            names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            shown = names if any("token" in hint for hint in hints) else unknown  # a misspelt option's value is none
            self.error(f"unrecognized arguments: {' '.join(shown)}" + "".join(f" ({hint})" for hint in hints))
        return namespace

    def nearest(self, flag: str) -> str:
        """What to write in place of an unknown flag or field."""
        name = flag.partition("=")[0].lstrip("-").replace("-", "_")
        known = {action.dest: f"--{action.dest}" for action in self._actions}
        known |= {other.lstrip("-").replace("-", "_"): other for other in self._others}
        near = difflib.get_close_matches(name, known)
        return f"did you mean {known[near[0]]}?" if near else ""

    def error(self, message: str) -> Any:
        """Ends with status 2, without the usage, which would be as long as `TrainingArguments`."""
        self.exit(2, f"{self.prog}: error: {redact(message)}\nAll flags: {self.prog} --help\n")


class RecipeParser(FlagParser):
    """The command line of a recipe: a flag for every field of its dataclasses, filled from a preset.

    `--preset NAME_OR_FILE` gives the fields' values, `--config FILE` others in their place, and what stands on the
    command line holds against both. `--seeds`, `--grid`, `--table`, `--arms`, `--compare` and `--control` say which
    runs there are; a preset may name the `grid` that is taken where the command line names none of them but `--seeds`
    and `--arms` (`--grid none`: no grid).

    Args:
        dataclass_types: of the recipe; one of them is a `TrainingArguments` with a `curriculum`, and one has the field
            `control_curriculum`.
        presets: the folder of the recipe's presets; its name is the recipe's.
        default: the preset taken where none is named.
        check: called with an instance of each dataclass; raises `ValueError` where they contradict each other.
        **kwargs: of `FlagParser`.

    Example:
        >>> parser = RecipeParser([DataArguments, CurriculumTrainingArguments], Path("presets/mine"))  # doctest: +SKIP
        >>> parser.parse(["--preset", "paper", "--learning_rate", "1e-4"]).settings["learning_rate"]  # doctest: +SKIP
        0.0001
    """

    def __init__(
        self,
        dataclass_types: Iterable[type],
        presets: Path,
        *,
        default: str = "embedded",
        check: Callable[..., None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataclass_types, **kwargs)
        self.presets = presets
        self._check = check
        group = self.add_argument_group("which runs")
        group.add_argument("--preset", default=default, help=f"a preset's name or file (default: {default})")
        group.add_argument("--config", help="a YAML file of fields that hold against the preset's")
        group.add_argument("--seeds", type=_whole_numbers, nargs="+", help="one run per seed: 0,1,2 (default: 0)")
        group.add_argument(
            "--grid",
            action="append",
            default=[],
            metavar="FIELD=A,B or FILE",
            help="one run per value, once per field; or one per row of a file, or of one named in the presets' "
            "grids/; none: no grid, where the preset names one",
        )
        group.add_argument(
            "--table", metavar="NAME", help="the rows of a table of the paper, a file in the presets' grids/"
        )
        group.add_argument("--arms", nargs="+", metavar="NAME", help="rows of a grid file, and what they need, alone")
        without = group.add_mutually_exclusive_group()
        without.add_argument("--compare", action="store_true", help="also train the i.i.d. control at the same seeds")
        without.add_argument("--control", action="store_true", help="train the i.i.d. control alone, in its place")

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """What the command line asks for.

        Returns:
            `preset`, `output_dir` (or None), `seeds`, `grid` (field → values), `arms` (name → `Arm`, of a grid file),
            `compare`, `control`; `settings`, the values that make a run what it is; and `shared`, those that no result
            depends on.

        Raises:
            SystemExit: the command line cannot be read; argparse has said why.
            ValueError: the preset does not exist, has an unknown field, or a field is missing.
        """
        files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        files.add_argument("--preset", default=self.get_default("preset"))
        files.add_argument("--config")
        named, _ = files.parse_known_args(argv)
        values = read_preset(named.preset, self.presets)
        values |= read_config(Path(named.config), "config") if named.config else {}
        usual_grid = values.pop("grid", None)
        if unknown := sorted(set(values) - self.fields):
            hints = "".join(f" {hint.capitalize()}." for name in unknown if (hint := self.nearest(name)))
            raise ValueError(f"The preset {named.preset!r} has fields this recipe does not know: {unknown}.{hints}")
        values = {name: self.read_value(name, value) for name, value in values.items()}
        options = self.parse_given(argv, values)
        given = {name: vars(options).pop(name) for name in self.fields & set(vars(options))}
        if missing := sorted(set(self.required) - set(given)):
            raise ValueError(f"The preset {options.preset!r} has no {missing}, which every run needs. Give them.")
        if usual_grid and not (options.grid or options.table or options.compare or options.control):
            options.grid = [usual_grid]
        try:
            options.grid = [*([] if options.table is None else [self._table(options.table)]), *options.grid]
            options.grid, arms = self._read_grid([text for text in options.grid if text != "none"])
            options.arms = select_arms(arms, options.arms)
        except ValueError as error:
            self.error(f"argument --grid: {error}")
        for half, other in (("fp16", "bf16"), ("bf16", "fp16")):
            if given.get(half) and not values.get(half) and values.get(other):
                given[other] = False  # the command line holds against the preset
        seeds = options.seeds or [[given.get("seed", 0)]]
        options.seeds, options.output_dir = [seed for part in seeds for seed in part], given.pop("output_dir", None)
        options.settings = {name: value for name, value in given.items() if not _SHARED.fullmatch(name)}
        # Without an accelerator several processes are several only if this says so, whatever has launched them.
        machine = {"use_cpu": not torch.accelerator.is_available(), "hub_strategy": "end"}
        machine["dataloader_pin_memory"] = torch.cuda.is_available()
        machine["disable_tqdm"] = not sys.stderr.isatty()
        options.shared = {**machine, **{name: given[name] for name in set(given) - set(options.settings)}}
        return options

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """The dataclasses of a run, checked against each other."""
        made = super().parse_dict(copy.deepcopy(args), allow_extra_keys)
        if self._check is not None:
            self._check(*made)
        return made

    def folder(self, options: argparse.Namespace) -> Path:
        """`outputs/RECIPE/PRESET`, of other data than the usual preset's `outputs/RECIPE/DATA`; or the one named."""
        if options.output_dir is not None:
            return Path(options.output_dir)
        data = str(options.settings.get("data", "scenes"))
        own = data != "scenes" and options.preset == self.get_default("preset")
        name = re.sub(r"[^\w.-]+", "-", Path(data).stem) if own else Path(options.preset).stem
        return Path("outputs") / self.presets.name / name

    def study(
        self,
        run: Callable[..., Mapping[str, Any]],
        options: argparse.Namespace,
        output_dir: str | Path,
        *,
        data: Callable[..., Any] | None = None,
    ) -> tuple[Study, dict[str, str]]:
        """The runs that the command line asks for, all settings checked before the first one starts.

        A run that finished before and is to be pushed now is taken up again from its last checkpoint.

        Args:
            run: called with an instance of each dataclass; returns numbers by name, and `pushed` where it pushed.
            options: of `parse`.
            output_dir: where the runs' folders go.
            data: called as `run` is; returns the data sets that the run reads, see `Study`.

        Returns:
            the study, and arm → its control; the first arm is the others' control if there is none.

        Raises:
            ValueError: settings contradict each other, or a control is to be made beside one that is its own.
        """
        folder, shared = Path(output_dir), options.shared
        arms, controls, needs = study_arms(options)
        several = len(arms) * len(options.seeds) > 1

        def arguments(given: Mapping[str, Any]) -> tuple[Any, ...]:
            name = Path(given["output_dir"]).name
            own = {"run_name": f"{folder.name}/{name}", **shared, **given}
            if own.get("push_to_hub"):
                target = own.get("hub_model_id") or f"{self.presets.name}-{folder.name}"
                own["hub_model_id"] = "-".join([target, re.sub(r"[^-.\w]+", "-", name)]) if several else target
            return self.parse_dict(own)

        for settings in arms.values():
            arguments({**settings, "seed": options.seeds[0], "output_dir": str(folder / "run")})
        is_main = PartialState().is_main_process
        logging.basicConfig(level=logging.INFO if is_main else logging.ERROR, format="%(message)s")
        if shared.get("disable_tqdm"):
            disable_progress_bars()
        read = None if data is None else (lambda given: data(*arguments(given)))
        made = Study(
            lambda given: run(*arguments(given)),
            *(arms, options.seeds, folder),
            data=read,
            needs=needs,
            paper={name: arm.paper for name, arm in options.arms.items() if name in arms},  # not of other values
        )
        for item in made.runs:
            if shared.get("push_to_hub") and item.status == "finished" and not item.result.get("pushed"):
                item.status = "pending"
        if options.arms and data is not None:
            log_budgets(made, data, arguments)
        first, *others = arms
        return made, controls or dict.fromkeys(others, first)

    def _table(self, name: str) -> str:
        """The file of a table's rows."""
        file = self.presets / "grids" / f"{name}.yaml"
        if not file.is_file():
            known = sorted(one.stem for one in file.parent.glob("*.yaml"))
            raise ValueError(f"--table {name} is none of {known} in {file.parent}. Name one; --grid takes any file")
        return str(file)

    def _read_grid(self, texts: Sequence[str]) -> tuple[dict[str, list[Any]], dict[str, Arm]]:
        """Each `field=a,b` as the field and its values, and the arms of a file."""
        grid: dict[str, list[Any]] = {}
        arms: dict[str, Arm] = {}
        folder = self.presets / "grids"
        for text in texts:
            name, equals, values = text.partition("=")
            if (folder / f"{text}.yaml").is_file() or Path(text).is_file():
                if arms:
                    raise ValueError(
                        f"{text!r} is a second file of arms; one study has one. Put all rows into one file"
                    )
                arms = read_arms(read_preset(text, folder, "grid"), self._read_arm_field)
                continue
            if not equals or not self._makes_a_run(name):
                files = sorted(file.stem for file in folder.glob("*.yaml"))
                raise ValueError(
                    f"{text!r} is not FIELD=A,B with one of the fields that make a run, nor a file of arms"
                    f"{f', nor one of {files} in {folder}' if files else ''}. {self.nearest(name)}"
                )
            if name in grid:
                raise ValueError(f"{name!r} is given twice; put all its values into one --grid {name}=A,B")
            grid[name] = [self.read_value(name, part.strip()) for part in _split(values)]
        return grid, arms

    def _makes_a_run(self, name: str) -> bool:
        return name in self.fields and not _SHARED.fullmatch(name)

    def _read_arm_field(self, name: str, value: Any) -> Any:
        """A field's value as a row of a grid file has it."""
        if not self._makes_a_run(name):
            raise ValueError(f"{name!r} is none of the fields that make a run. {self.nearest(name)}".strip())
        return self.read_value(name, value)


def resume_point(args: TrainingArguments) -> str | bool:
    """What `trainer.train(resume_from_checkpoint=)` takes: the one named, else the last complete one if there is any.

    `last` and `true` stand for the last complete one, as nothing does.
    """
    named = args.resume_from_checkpoint
    if named and str(named).lower() not in ("last", "true"):
        return named
    return any(map(is_complete, Path(args.output_dir).glob("checkpoint-*")))


def run_command(main: Callable[[], None], parser: FlagParser) -> None:
    """Runs a recipe's `main` as a command: what it was asked wrongly is said in a line, and Ctrl-C how to go on."""
    speaks = os.environ.get("RANK", "0") == "0"  # one of several processes
    try:
        main()
    except Exception as error:
        said = in_words(error)
        if said is None:
            raise
        if not speaks:
            raise SystemExit(2) from None
        parser.error(said)
    except KeyboardInterrupt:
        if speaks:
            print(
                "\nInterrupted. Finished runs and complete checkpoints are kept; "
                "the same command continues from them:\n"
                f"  {command_line()}",
                file=sys.stderr,
            )
        raise SystemExit(130) from None


def command_line(*more: str) -> str:
    """This process's command as it can be typed again, with further words."""
    program, *words = sys.argv
    if program.endswith(".py"):
        installed = Path(__file__).parents[1] in Path(program).absolute().parents
        recipe = ["hf-curriculum", "recipe", Path(program).stem]
        start = recipe if installed else ["accelerate", "launch", program]
    else:
        start = [program]
    return redact(shlex.join([*start, *words, *more]))


def disable_progress_bars() -> None:
    """No bars, for where nobody watches: a log file would keep every state of each."""
    import datasets
    import huggingface_hub.utils
    import transformers

    datasets.disable_progress_bars()
    huggingface_hub.utils.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


_NOTES = logging.getLogger("hf_curriculum.training.callbacks")


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class _Bar(ProgressCallback):
    """The bar of training, without the entries of the log."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Leaves the lines to `RunLines`."""


class RunLines(TrainerCallback):
    """Prints a line when a phase begins and a line for each evaluation, in place of every entry of the log.

    Args:
        trainer: with a plan, a `CurriculumTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._stage, self._loss = trainer, None, None

    @classmethod
    def follow(cls, trainer: Trainer) -> None:
        """Puts the lines in the place of what `trainer` prints; its bar stays where it has one."""
        trainer.remove_callback(PrinterCallback)
        if trainer.pop_callback(ProgressCallback) is not None:
            trainer.add_callback(_Bar)
        trainer.add_callback(cls(trainer))

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Keeps phases from being announced twice, where notes are shown."""
        _NOTES.addFilter(_is_warning)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Lets notes through again."""
        _NOTES.removeFilter(_is_warning)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Says which phase begins."""
        plan = self._trainer.plan
        stage = plan.stage_at(state.global_step)
        if not state.is_world_process_zero or stage.number == self._stage:
            return
        self._stage = stage.number
        of = "" if plan.undecided or len(plan.stages) == 1 else f" of {len(plan.stages)}"
        last = next((step for step, other in plan.stage_ends.items() if other.number == stage.number), plan.max_steps)
        new = plan.new_examples()[stage.number]
        tqdm.write(
            f"{stage.name}{of}: {stage.rule}, pool {stage.pool_size:,} ({new:,} new), "
            f"steps {state.global_step + 1:,} to {last:,}"
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Says what an evaluation found."""
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        if "eval_loss" not in logs or not state.is_world_process_zero:
            return
        trained = "" if self._loss is None else f"training loss {self._loss:.3f}, "
        seconds = f", {logs['seconds']:.0f} s" if "seconds" in logs else ""
        tqdm.write(
            f"  step {state.global_step:,} of {state.max_steps:,}: {trained}validation loss {logs['eval_loss']:.3f}, "
            f"{self._trainer.examples_seen():,} examples{seconds}"
        )


def finish(study: Study) -> None:
    """Ends a recipe: no process is left, and a crash, which `study.run()` has told, is an exit status."""
    close_process_group()
    if crashed := sum(item.status == "crashed" for item in study.runs):
        raise SystemExit(f"{crashed} of {len(study.runs)} runs crashed: see above.")


def _mapping(name: str, text: str) -> dict[str, Any]:
    try:
        if name.endswith("curriculum"):
            import_named(text, CURRICULA, Curriculum)
        return read_config(text, name, CURRICULA if name.endswith("curriculum") else ())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same reader, for which `none` and `null` are None."""
    wrapped = functools.wraps(read)(lambda text: None if text.lower() in ("none", "null") else read(text))
    wrapped.__name__ = getattr(read, "__name__", "value")
    return wrapped


def _whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _split(text: str) -> list[str]:
    """The parts between commas; those within braces and brackets separate nothing."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
