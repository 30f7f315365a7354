"""Pushes models with a card of how they were trained, and reports failed pushes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import HubStrategy

from hf_curriculum.columns import CAPTION
from hf_curriculum.files import write_together
from hf_curriculum.fingerprint import sketch_texts
from hf_curriculum.hub.errors import explain, explained, validate_token
from hf_curriculum.training.callbacks import TrainingClock
from hf_curriculum.training.checkpoints import checkpoint_from_hub, named_on_hub, whole_checkpoint, write_curriculum
from hf_curriculum.training.setup import image_processor_of

if TYPE_CHECKING:
    from hf_curriculum.planning.plan import Plan

logger: logging.Logger = logging.getLogger(__name__)

FACTS_FILE = "training_facts.json"
"""What the card was written from, beside it."""


class HubMixin:
    """What `CurriculumTrainer` does around the Hub.

    - `push_to_hub()` writes `curriculum.json` (rule, plan, decisions), the card and the facts it was written from.
    - `hub_strategy` works as in `Trainer`. A push in the background that fails is reported at once; training goes on.
    - An error says what the Hub answered, what to do, and that nothing here is lost. It never holds a token.

    It stands before `Trainer`. Without training data there is no plan, and a push is that of `Trainer`.
    """

    args: Any
    accelerator: Any
    state: Any
    train_dataset: Any
    data_collator: Any
    hub_model_id: Any
    is_in_train: bool
    is_world_process_zero: Any
    plan: Plan
    examples_seen: Any
    _plan: Plan | None
    _clock: TrainingClock
    _trained_seconds: float
    _sketched: tuple[Any, str | None] | None = None
    _saves_checkpoint = False
    """TRL's trainers ask for a card with every checkpoint, whose figures would take longer than the checkpoint."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """`Trainer.init_hf_repo`, with errors that say what to do."""
        validate_token(token or self.args.hub_token)
        with explained("Making the model's repository on the Hub", self._kept, token or self.args.hub_token):
            super().init_hf_repo(token, private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """`Trainer.push_to_hub` with the curriculum, its decisions and a card; `kwargs` go to `create_model_card`."""
        validate_token(token or self.args.hub_token)
        self._save_curriculum()
        with explained("Pushing the model to the Hub", self._kept, token or self.args.hub_token):
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
        *,
        dataset_name: str | None = None,
        paper: str | None = None,
        results: Sequence[Mapping[str, Any]] = (),
        description: str | None = None,
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Writes `README.md`, its figures, `training_facts.json` and `.eval_results/*.yaml` into `output_dir`.

        What is written in the card outside of our section stays.
        """
        given = locals()
        if self._plan is None:  # the card of another trainer takes what it names
            given = {name: value for name, value in given.items() if value and name not in ("self", "__class__")}
            super().create_model_card(**given)
            return
        if tasks is not None or dataset_args is not None:
            raise ValueError(
                "tasks= and dataset_args= were given; this card has no place for them. Write them into the README.md "
                "outside of our section: they stay there."
            )
        if not self.is_world_process_zero() or self._saves_checkpoint:
            return
        # Cards and their figures load half of the library, which training does without.
        from hf_curriculum.hub.model_card import eval_results, model_figures, render_model_card
        from hf_curriculum.training.facts import gather_facts

        facts = gather_facts(
            self,
            name=model_name,
            paper=paper,
            results=results,
            license=license,
            language=language,
            tags=[tags] if isinstance(tags, str) else tags,
            dataset=_first(dataset_tags) or _first(dataset) or dataset_name,
            finetuned_from=finetuned_from,
            description=description,
            before=before,
        )
        found = eval_results(facts)
        folder = Path(self.args.output_dir)
        card = folder / "README.md"
        previous = card.read_text(encoding="utf-8") if card.is_file() else None
        text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        rendered = render_model_card(facts, previous)
        texts = {FACTS_FILE: text.encode("utf-8"), card.name: rendered.encode("utf-8")}
        write_together(folder, {**model_figures(facts), **found, **texts})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """`Trainer.save_model`; in a checkpoint, whose files are recorded next, it waits for all processes."""
        super().save_model(output_dir, _internal_call)
        if self._saves_checkpoint:
            self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As `Trainer`, which saves the collator's tokenizer with a model; its image processor and the run's plan too.

        A checkpoint has a `curriculum.json` of its own; that of a model says what it was trained on.
        """
        # Private in transformers 5.24: writes a model's folder, for checkpoints, `save_model` and pushes alike.
        super()._save(output_dir, state_dict)
        if self.state.global_step and not self._saves_checkpoint:
            self._save_curriculum(output_dir)
        if (images := image_processor_of(self)) is not None:
            images.save_pretrained(output_dir or self.args.output_dir)

    @property
    def trained_seconds(self) -> float:
        """Seconds of training so far; what passes between its end and a push does not count."""
        if self.is_in_train:
            return self._clock.seconds
        before = next((entry["seconds"] for entry in reversed(self.state.log_history) if "seconds" in entry), 0.0)
        return self._trained_seconds or before

    def local_checkpoint(self, name: str | os.PathLike[str] | bool) -> str:
        """The folder of a whole checkpoint, from the Hub where "me/model@revision" is given; True: the run's last."""
        if name is True or (named := named_on_hub(name)) is None:
            return whole_checkpoint(self.args, None if name is True else os.fspath(name))
        repo_id, revision = named
        logger.info(f"There is no folder {name} here: it is taken as a repository on the Hub.")
        token = self.args.hub_token
        with self.args.main_process_first(local=True, desc="downloading the checkpoint"):
            folder = checkpoint_from_hub(repo_id, revision=revision, token=token)
        # The branch may have moved between two processes: all resume from what the main one found.
        commit = broadcast_object_list([Path(folder).parent.name])[0]
        if commit != Path(folder).parent.name:
            folder = checkpoint_from_hub(repo_id, revision=commit, token=token)
        return whole_checkpoint(self.args, folder)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        # Private in transformers 5.24: starts a push in the background, whose failure `Trainer` never looks at.
        self._save_curriculum()
        before = set(self._jobs())
        super()._push_from_checkpoint(checkpoint_folder)
        for job in set(self._jobs()) - before:
            job.add_done_callback(self._report_push)

    def _save_curriculum(self, output_dir: str | None = None) -> None:
        if self.args.should_save and self._plan is not None:
            folder, seconds = output_dir or self.args.output_dir, self.trained_seconds
            in_output_dir = Path(folder).resolve() == Path(self.args.output_dir).resolve()
            draws = self._audit.draws if in_output_dir and self._audit is not None else None
            write_curriculum(folder, self.plan, seconds, trained_on=self._trained_on_facts(), draws=draws)

    def _trained_on_facts(self) -> dict[str, Any]:
        """How many examples were trained on, and a sketch of the training captions, made once."""
        if not self.state.global_step:
            return {}
        data = self.train_dataset
        if self._sketched is None or self._sketched[0] is not data:
            self._sketched = data, sketch_texts(data, getattr(self.data_collator, "caption_column", CAPTION))
        sketch = self._sketched[1]
        return {"examples": self.examples_seen(), **({} if sketch is None else {"captions": sketch})}

    def _jobs(self) -> list[Future]:
        running = getattr(self, "push_in_progress", None)
        return [] if running is None else list(running.jobs)

    def _report_push(self, job: Future) -> None:
        error = None if job.cancelled() else job.exception()
        if error is not None:
            known = explain(error, "A push while training", self._kept, self.args.hub_token)
            logger.warning(str(known) if known else f"A push while training failed: {type(error).__name__}.")

    @property
    def _kept(self) -> str:
        return (
            f"Nothing is lost: the model and its checkpoints are in {self.args.output_dir}. `trainer.push_to_hub()` "
            "sends what is missing."
        )


def _first(names: str | list[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else next(iter(names), None)
