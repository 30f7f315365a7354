"""A trainer whose models tell on the Hub how they were trained, and whose failed pushes are heard of."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import Trainer
from transformers.trainer_utils import HubStrategy

from hf_curriculum.hub.data_card import write_files
from hf_curriculum.hub.errors import check_token, explain, explained
from hf_curriculum.hub.model_card import model_figures, render_model_card
from hf_curriculum.training.checkpoints import require_complete, write_curriculum
from hf_curriculum.training.clock import TrainingClock
from hf_curriculum.training.hub_checkpoints import checkpoint_from_hub, named_on_hub
from hf_curriculum.training.run_facts import gather_facts

if TYPE_CHECKING:
    from hf_curriculum.pacing import Plan

logger = logging.getLogger(__name__)

FACTS_FILE = "training_facts.json"
"""What the card was written from, beside it."""


class PublishingTrainer(Trainer):
    """What `CurriculumTrainer` does around the Hub, and nothing else.

    - `push_to_hub()` writes `curriculum.json` (rule, plan, decisions), the card and the facts it was written from.
    - `hub_strategy` works as in `Trainer`. A push in the background that fails is reported at once; training goes on.
    - An error says what the Hub answered, what to do, and that nothing here is lost. It never holds a token.

    A subclass has a `plan`, counts `examples_seen()` and keeps a clock. Without training data there is no plan, and a
    push is that of `Trainer`.
    """

    plan: Plan
    _plan: Plan | None
    _clock: TrainingClock

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """`Trainer.init_hf_repo`, with errors that say what to do."""
        check_token(token or self.args.hub_token)
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
        """`Trainer.push_to_hub` with the curriculum, its decisions and a card.

        Args:
            commit_message: of the commit.
            blocking: whether to wait until it is done.
            token: of somebody who may write there.
            revision: a branch; the main one by default.
            private: whether the repository is private, if this makes it.
            **kwargs: passed to `create_model_card`.

        Raises:
            HubError: the Hub refused, failed or could not be reached; its message says what to do.
            ValueError: the token cannot be one.
        """
        check_token(token or self.args.hub_token)
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
        paper: str | None = None,
        results: Sequence[Mapping[str, Any]] = (),
        description: str | None = None,
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Writes `README.md`, its figures and `training_facts.json` into `output_dir`.

        What people wrote into the card around our section stays.

        Args:
            language: of the captions.
            license: the Hub's short name of the model's licence.
            tags: further tags.
            model_name: its name; that of the repository by default.
            finetuned_from: the model it began from.
            tasks: not used: the Hub reads the task from the model's class.
            dataset_tags: repositories of the data.
            dataset: name of the data, in place of `dataset_tags`.
            dataset_args: not used: the card shows the scores and the plan instead.
            paper: a key of `hf_curriculum.hub.papers.PAPERS`; that of the curriculum's rule by default.
            results: further measurements: `metric`, `value`, and where known `reference` (the paper's) and `source`.
            description: of the data in a few words, where its name says nothing.
            before: stages of training before this one, each with its `stage`, `examples`, `steps` and `seconds`.

        Raises:
            ValueError: an unknown paper, a card that cannot be read, or an argument that is not used was given.
        """
        if tasks is not None or dataset_args is not None:
            raise ValueError(
                "tasks= and dataset_args= were given; this card has no place for them. Write them into the README.md "
                "outside of our section: they stay there."
            )
        if self._plan is None:
            named = {"tags": tags, "model_name": model_name, "finetuned_from": finetuned_from}
            super().create_model_card(language, license, dataset_tags=dataset_tags, dataset=dataset, **named)
            return
        if not self.is_world_process_zero():
            return
        facts = gather_facts(
            self,
            name=model_name,
            paper=paper,
            results=results,
            license=license,
            language=language,
            tags=[tags] if isinstance(tags, str) else tags,
            dataset=_first(dataset_tags) or _first(dataset),
            finetuned_from=finetuned_from,
            description=description,
            before=before,
        )
        folder = Path(self.args.output_dir)
        card = folder / "README.md"
        previous = card.read_text(encoding="utf-8") if card.is_file() else None
        text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        rendered = render_model_card(facts, previous)
        write_files(
            {**model_figures(facts), FACTS_FILE: text.encode("utf-8"), card.name: rendered.encode("utf-8")}, folder
        )

    @property
    def trained_seconds(self) -> float:
        """Seconds of training so far; what passes between its end and a push does not count."""
        if self.is_in_train:
            return self._clock.seconds
        return next((entry["seconds"] for entry in reversed(self.state.log_history) if "seconds" in entry), 0.0)

    def local_checkpoint(self, name: str | os.PathLike[str]) -> str:
        """The folder of a checkpoint that is here, or that is downloaded from the Hub first ("me/model@revision").

        Raises:
            ValueError: it is not whole, or the repository holds none.
            HubError: the Hub refused, failed or could not be reached.
        """
        named = named_on_hub(name)
        if named is None:
            require_complete(name)
            return os.fspath(name)
        repo_id, revision = named
        logger.info(f"There is no folder {name} here: it is taken as a repository on the Hub.")
        token = self.args.hub_token
        with self.args.main_process_first(local=True, desc="downloading the checkpoint"):
            folder = checkpoint_from_hub(repo_id, revision=revision, token=token)
        # The branch may have moved between two processes: all resume from what the main one found.
        commit = broadcast_object_list([Path(folder).parent.name])[0]
        if commit != Path(folder).parent.name:
            folder = checkpoint_from_hub(repo_id, revision=commit, token=token)
        return folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        self._save_curriculum()
        before = set(self._jobs())
        super()._push_from_checkpoint(checkpoint_folder)
        for job in set(self._jobs()) - before:
            job.add_done_callback(self._report_push)

    def _save_curriculum(self) -> None:
        if self.args.should_save and self._plan is not None:
            write_curriculum(self.args.output_dir, self.plan, self.trained_seconds)

    def _jobs(self) -> list[Future]:
        running = getattr(self, "push_in_progress", None)
        return [] if running is None else list(running.jobs)

    def _report_push(self, job: Future) -> None:
        error = None if job.cancelled() else job.exception()
        if error is not None:
            told = explain(error, "A push while training", self._kept, self.args.hub_token)
            logger.warning(str(told) if told is not None else f"A push while training failed: {type(error).__name__}.")

    @property
    def _kept(self) -> str:
        return (
            f"Nothing is lost: the model and its checkpoints are in {self.args.output_dir}. `trainer.push_to_hub()` "
            "sends what is missing."
        )


def _first(names: str | list[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else next(iter(names), None)
