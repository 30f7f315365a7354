"""`Trainer` with a curriculum."""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast
from torch.utils.data import DataLoader
from transformers import DataCollator, EvalPrediction, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from hf_curriculum.curricula.iid import IID
from hf_curriculum.data.processors import look_up
from hf_curriculum.data.seeding import IndexedCollator, IndexedDataset
from hf_curriculum.files import explained
from hf_curriculum.models.on_host import host_values, note_host_values
from hf_curriculum.planning.curriculum import Curriculum, curriculum_from
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.plan import Plan, make_plan
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.streaming.dataset import BucketedStream, StreamExamples
from hf_curriculum.training.amendment import Amendment, amend_run, note_amendment, rest_of_run, validate_amendable
from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.callbacks import DrawLog, TrainingClock, broadcast_decision, numbers_of, paced, round_facts
from hf_curriculum.training.checkpoints import (
    TrainingData,
    invalidate,
    load_renamed_weights,
    new_run,
    only_run_in,
    read_curriculum,
    resume_plan,
    validate_same_data,
    validate_same_inputs,
    validate_same_plan,
    validate_training_state,
    write_curriculum,
)
from hf_curriculum.training.prediction import (
    SCORING,
    example_losses,
    input_digests,
    measure_losses,
    preserve_rng_state,
    try_first_batch,
)
from hf_curriculum.training.publishing import HubMixin
from hf_curriculum.training.sampler import CurriculumSampler, DrawAudit, RoundReader, validate_steps_per_process
from hf_curriculum.training.selection import Selector, recorded_draws, start_audit
from hf_curriculum.training.setup import (
    ListCollator,
    complete_arguments,
    may_be_random,
    open_training_data,
    plan_stream,
    prolonged,
    rank_training_data,
    reason_without_plan,
    reference_compute,
    saved_batch_size,
    sending_bytes,
    stock_epochs,
    validate_batch_size,
    validate_evaluation,
    validate_evaluation_data,
    validate_metric,
    validate_own_losses,
    validate_sampling,
    validate_scores,
    validate_selection,
    validate_shared_images,
    validate_without_plan,
)
from hf_curriculum.training.speed import SpeedLog
from hf_curriculum.training.weighting import LossWeights, read_weights, validate_weighting

logger: logging.Logger = logging.getLogger(__name__)

_PARAMETERS = frozenset(inspect.signature(Trainer).parameters)


class CurriculumTrainer(HubMixin, Trainer):
    """A `transformers.Trainer` that shows examples in the order of a curriculum.

    Use it like `Trainer`; the arguments name the curriculum and the score column. A step's examples are a pure
    function of (plan, seed, step). A killed run resumes bit for bit with `trainer.train(resume_from_checkpoint=True)`.
    The same global batch on more processes sees the same examples in every step.

    Args:
        model, and all arguments not named here: as in `Trainer`.
        args: a `CurriculumTrainingArguments`; None: its defaults. Stock arguments are copied, without a curriculum.
        train_dataset: may also be the folder that `save_bucketed` wrote, its address (`"s3://..."`) or a
            `BucketedStream`: data of any size is read from its shards. Without a curriculum, a score and weights also
            data that no plan can order (iterable data, a dictionary): the other trainer's own loader reads it.
        scores: one score per training row, array or tensor (n,), in place of `args.score_column`: for unnamed columns.
        **kwargs: further arguments of another trainer, see `with_curriculum`.

    Attributes:
        plan: the plan of the run; `print(trainer.plan.describe())` before paying for it. It follows the arguments and
            the training data, as they are now and when `train()` begins; a run in progress keeps its own. There is
            none if the other trainer's own loader reads the data.

    Raises:
        FileNotFoundError: the folder was not written by `save_bucketed`.
        TypeError: `args` are another trainer's, the training data has no length, or buckets cannot follow the
            curriculum.
        ValueError: the scores are missing, do not fit, are given twice or without a curriculum, or the plan
            contradicts `num_train_epochs` or `max_steps`.

    Example:
        >>> trainer = CurriculumTrainer(model=model, args=args, train_dataset=train, data_collator=collator)
        >>> print(trainer.plan.describe())
        >>> trainer.train()
    """

    args_class: type[Any] = CurriculumTrainingArguments
    """What `args` is, for those who build it by name."""
    model: Any  # `Trainer` may be without one; not here
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    is_in_train: bool
    arrays: Mapping[str, np.ndarray] = MappingProxyType({})
    """What `compute_metrics` returned as arrays in the last evaluation, by the metric's name, with its prefix."""
    _audit: DrawAudit | None = None
    _rows_of_batch: torch.Tensor | None = None
    _evaluating = False
    _pixel_table: torch.Tensor | None = None
    amended: Mapping[str, Any] | None = None
    """What was before the plan, of an amended run; see `Plan.amended`."""
    _amended_at: str | None = None
    _without_plan: str | None = None
    """Why the run is the other trainer's own, in words: see `reason_without_plan`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[: cls.__mro__.index(CurriculumTrainer)]:
            other = issubclass(base, Trainer) and not issubclass(base, CurriculumTrainer)
            if other and {"get_train_dataloader", "_get_train_sampler"} & set(vars(base)):
                raise TypeError(
                    f"{cls.__name__} has {base.__name__} before CurriculumTrainer, and its sampler would be used in "
                    "place of the curriculum's. Put CurriculumTrainer first."
                )

    def __init__(
        self,
        model: PreTrainedModel | torch.nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: DataCollator | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, Any] | None = None,
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., torch.Tensor] | None = None,
        *,
        scores: np.ndarray | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        args = complete_arguments(self.args_class, self._other_trainers(), args)
        if scores is not None or reason_without_plan((), args, train_dataset) is None:
            train_dataset = open_training_data(train_dataset)
        validate_evaluation_data(eval_dataset)
        given = {name: value for name, value in locals().items() if name in _PARAMETERS and value is not None}
        self.selector, self._weighting = Selector(self), LossWeights(self)
        super().__init__(**given, **kwargs)
        if scores is not None and self.train_dataset is not train_dataset:
            raise ValueError(
                f"{type(self).__name__} made new rows of train_dataset, which scores= may not belong to. Give them as "
                'a column: train_dataset.add_column("difficulty", scores) and score_column="difficulty".'
            )
        validate_shared_images(self.model, self.data_collator, self.args.n_gpu)
        if self.args.uint8_images:
            sending_bytes(self.data_collator)  # for its errors alone
        self._scores, self._scored_data = scores, self.train_dataset
        self._plan: Plan | None = None
        self._planned_for: tuple[Any, Mapping[str, Any]] | None = None
        self._ranking: tuple[Any, Curriculum, str | None, Ranking] | None = None
        self._asked_batch_size = self.args.train_batch_size
        self._clock = TrainingClock()
        self._reader: RoundReader | None = None
        self._skips = self._resumed = False
        self._resumed_from: str | None = None
        self._reference_compute = 0
        self._draw_log, self._trained_seconds = DrawLog(), 0.0
        self.speed = SpeedLog(self)
        self._follow_arguments()
        self.eval_dataset = self._without_curriculum_columns(self.eval_dataset)

    @classmethod
    def _other_trainers(cls) -> tuple[type[Trainer], ...]:
        """The trainers whose curriculum this is: `SFTTrainer`, and what it is made of."""
        order = cls.__mro__
        return tuple(
            one for one in order[order.index(HubMixin) + 1 : order.index(Trainer)] if issubclass(one, Trainer)
        )

    # ---- The plan ----

    @property
    def plan(self) -> Plan:
        """The plan of the run, by the arguments and the data as they are now; of a run in progress, its own.

        Raises:
            ValueError: there is no training data, or changed settings contradict each other.
        """
        if not self.is_in_train:
            self._follow_arguments()
        if self._without_plan is not None:
            raise ValueError(
                f"The run has no plan: {self._without_plan}. Without a curriculum it is trained as the stock class "
                "does, by its own loader. Pass curriculum= (IID() for shuffled passes) and data that it can order."
            )
        if self._plan is None:
            raise ValueError("The trainer has no train_dataset, so there is nothing to plan. Pass train_dataset=.")
        return self._plan

    @property
    def curriculum(self) -> Curriculum:
        """The curriculum; shuffled passes over everything if none was given."""
        return IID() if self.args.curriculum is None else curriculum_from(self.args.curriculum)

    def examples_seen(self, step: int | None = None) -> int:
        """Examples trained on after `step` optimizer steps, so far if None."""
        return self.plan.examples_after(self.state.global_step if step is None else step)

    def costs(self) -> dict[str, int]:
        """The cost of the run so far: `examples` trained on, `examples_scored`, and their `compute`.

        Compute is counted in forward passes of one example: 1 to score one, 3 to train on one. If losses of a
        reference are read, its own training and its pass over the data count once.
        """
        plan, step = self.plan, self.state.global_step
        compute = plan.compute_after(step) + self._reference_compute
        return {"examples": plan.examples_after(step), "examples_scored": plan.scored_after(step), "compute": compute}

    def _follow_arguments(self) -> None:
        """Makes the plan anew where the arguments or the training data are not those that it was made for."""
        args = self.args
        if args.train_batch_size != self._asked_batch_size:
            self._asked_batch_size = self._train_batch_size = args.train_batch_size
        settings = {
            "curriculum": self.curriculum,
            "score_column": args.score_column,
            "weight_column": args.weight_column,
            "global_batch_size": self.get_total_train_batch_size(args),
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "epochs": args.num_train_epochs if args.num_train_epochs > 0 else None,
            "max_steps": args.max_steps if args.max_steps > 0 else None,
            "amended": self.amended,
        }
        before = self._planned_for
        if before is not None and before[0] is self.train_dataset and before[1] == settings:
            return
        own = (
            None if self._scores is not None else reason_without_plan(self._other_trainers(), args, self.train_dataset)
        )
        self._without_plan = own
        if own is not None:
            validate_without_plan(args, own)
        self._plan = None if self.train_dataset is None or own is not None else self._make_plan(**settings)
        self._planned_for = self.train_dataset, settings

    def _make_plan(
        self,
        *,
        curriculum: Curriculum,
        score_column: str | None,
        weight_column: str | None,
        amended: Mapping[str, Any] | None,
        **budget: Any,
    ) -> Plan:
        args = self.args
        data = self.train_dataset = open_training_data(self.train_dataset)
        validate_scores(args.curriculum, score_column, self._scores, data is self._scored_data)
        validate_evaluation(curriculum, self.eval_dataset)
        validate_own_losses(self)
        validate_weighting(self)
        self._weighting.column = read_weights(data, weight_column)
        validate_batch_size(args.global_batch_size, budget["global_batch_size"])
        if isinstance(data, BucketedStream):
            self.train_dataset = plan_stream(data, curriculum, score_column, self._scores, **budget)
            plan = self.train_dataset.plan
        elif amended is not None:
            plan = rest_of_run(curriculum, self._rank(data, curriculum, score_column), amended, **budget)
        else:
            plan = make_plan(curriculum, self._rank(data, curriculum, score_column), **budget)
        validate_sampling(self._other_trainers(), args, plan)
        validate_selection(plan, args, self._train_batch_size)
        return plan

    def _rank(self, data: Any, rule: Curriculum, score_column: str | None) -> Ranking:
        """The order of the rows, which other lengths, seeds and batch sizes do not change."""
        if self._ranking is None or self._ranking[0] is not data or self._ranking[1:3] != (rule, score_column):
            from hf_curriculum.training.shared_order import SharedOrder

            ranking = rank_training_data(data, rule, score_column, self._scores, SharedOrder.of(self.args))
            self._ranking = data, rule, score_column, ranking
        return self._ranking[3]

    def _hp_search_setup(self, trial: Any) -> None:
        # Private in transformers 5.24: called for each trial of a search, after its values went into `self.args`.
        super()._hp_search_setup(trial)
        self._follow_arguments()

    # ---- Loading data by the plan ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of the whole run as one stream, from the step the run is at."""
        if self._without_plan is not None:
            return super().get_train_dataloader()
        before = self._plan
        self._follow_arguments()  # auto_find_batch_size may have lowered the batch size
        if self.is_in_train and self._resumed and self._plan is not before:
            raise ValueError(
                f"The run was resumed with batches of {before.global_batch_size}, and now memory ran out. With "
                f"{self.plan.global_batch_size} a step number would stand for other examples. Free memory, or start a "
                "new run from the checkpoint's weights."
            )
        validate_steps_per_process(self.plan, self._train_batch_size)
        data = self.train_dataset
        if hasattr(data, "remove_columns"):
            data = self._remove_unused_columns(data, description="Training")
        if isinstance(data, BucketedStream):
            data = StreamExamples(data)
        else:
            data = IndexedDataset(data, self.plan.seed, self._seeded)
        self._reader, self._train_loader = (
            None,
            self._get_dataloader(
                dataset=data,
                description="Training",
                batch_size=self._train_batch_size * self.plan.candidates,
                sampler_fn=self._get_train_sampler,
                is_training=True,
            ),
        )
        return self._train_loader

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> DataLoader:
        # Private in transformers 5.24: makes all loaders; `description` says which one.
        collator, dropped = self.data_collator, self.args.dataloader_drop_last
        if description != "Training" and hasattr(collator, "without_augmentation"):
            self.data_collator = collator.without_augmentation()
        if self.args.uint8_images:
            self.data_collator, table = sending_bytes(self.data_collator)
            self._pixel_table = table.to(self.args.device)
        self.args.dataloader_drop_last = dropped and description != SCORING
        persistent = self.args.dataloader_persistent_workers
        if description == "Training" and self._without_plan is None and not self._resumed:
            # Workers of one round serve the next. A resumed run's first round is read by a loader of its own.
            self.args.dataloader_persistent_workers |= self.plan.undecided and self.args.dataloader_num_workers > 0
        try:
            return super()._get_dataloader(dataset, description, *args, **kwargs)
        finally:
            self.data_collator, self.args.dataloader_drop_last = collator, dropped
            self.args.dataloader_persistent_workers = persistent

    def _prepare_inputs(self, inputs: Any) -> Any:
        # Private in transformers 5.24: puts a batch on the device.
        prepared = super()._prepare_inputs(inputs)
        if self._pixel_table is None or getattr(prepared.get("pixel_values"), "dtype", None) != torch.uint8:
            return prepared
        pixels = look_up(self._pixel_table, prepared["pixel_values"])
        return {**prepared, "pixel_values": self._prepare_input(pixels)}  # DeepSpeed's type

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self._without_plan is not None:
            return super()._get_train_sampler(train_dataset)
        # Private in transformers 5.24: what the training loader draws by. It reads plan and step when it is iterated,
        # so a decision between two rounds needs no new sampler.
        return CurriculumSampler(
            lambda: self.plan, lambda: self.state.global_step, placeholders=lambda: self._skips, with_samples=True
        )

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """`Trainer.get_batch_samples`, from the round that the last decision began.

        Raises:
            RuntimeError: a decision was due and none was taken.
        """
        if self._without_plan is not None:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.decision_is_due():
            raise RuntimeError(
                f"{type(self.curriculum).__name__} had to decide after step {self.state.global_step}, and nothing was "
                "evaluated: a callback took back should_evaluate, or evaluate() was replaced. Without a decision "
                "the next round has no examples."
            )
        if self._reader is None:
            self._reader = RoundReader(self._train_loader, epoch_iterator, len(self.plan.log))
        if self._reader.is_current(self.plan):
            return self._read(num_batches, device)
        # The completed steps were skipped once already, and a new iterator draws a seed for its workers.
        self._skips = False
        with preserve_rng_state():
            self._reader.refresh(self.plan)
            return self._read(num_batches, device)

    def _read(self, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """A step's batches, of what is chosen where the rule chooses: before `Trainer` counts the step's tokens."""
        batches = self._reader.iterator
        if self.state.global_step >= self.plan.known_steps:
            num_batches = 0  # a run that had ended was resumed: accelerate 1.4 yields None of an empty loader
        elif self.plan.candidates > 1:
            batches = self.selector.read(batches, num_batches)
        with self.speed.waiting():
            return super().get_batch_samples(batches, num_batches, device)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        # Private in transformers 5.24: wraps the collator of data that cannot drop columns itself.
        if self._without_plan is not None:
            return super()._get_collator_with_removed_columns(data_collator, description)
        # A collator that names its columns reads no others, and from a `Dataset` they were removed before.
        chosen = hasattr(data_collator, "columns") or hasattr(self.train_dataset, "remove_columns")
        if description != "Training" or not chosen:
            data_collator = super()._get_collator_with_removed_columns(data_collator, description)
        # The training data comes wrapped, so the collator has to unwrap it.
        if description != "Training":
            return data_collator
        # GRPO takes its examples as a list.
        collator_class = ListCollator if hasattr(self.args, "num_generations") else IndexedCollator
        return collator_class(data_collator, self.plan.seed, self._seeded, host_values if self.is_in_train else None)

    @property
    def _collates_all_columns(self) -> bool:
        """Whether the trainer's own loader makes inputs of every column, as Sentence Transformers' does."""
        return hasattr(self.args, "batch_sampler")

    def _without_curriculum_columns(self, data: Any) -> Any:
        """The data without what only the curriculum reads, where every column would be taken for an input."""
        if not self._collates_all_columns or self._without_plan or data is None or isinstance(data, str):
            return data
        if isinstance(data, dict):
            return type(data)({name: self._without_curriculum_columns(part) for name, part in data.items()})
        labels = getattr(self.data_collator, "valid_label_columns", ())
        read = {self.args.score_column, *self.curriculum.reads_in_all} - set(labels)
        return data.remove_columns([name for name in data.column_names if name in read])

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        # Private in transformers 5.24: leaves the columns that `forward` names.
        if self._collates_all_columns and not self._without_plan:
            return self._without_curriculum_columns(dataset)
        return super()._remove_unused_columns(dataset, description)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        # A collator that makes the model's inputs from other columns says which.
        wanted = getattr(self.data_collator, "columns", ())
        self._signature_columns += [column for column in wanted if column not in self._signature_columns]

    @property
    def _seeded(self) -> bool:
        if self.args.seed_examples is not None:
            return self.args.seed_examples
        return may_be_random(self.train_dataset, self.data_collator)

    def set_initial_training_values(self, args: Any, dataloader: DataLoader[Any]) -> tuple[Any, ...]:
        """`Trainer`'s counts, with the plan's number of steps."""
        counted = copy.copy(args)  # the user's arguments stay as they were given
        if self._without_plan is None:
            counted.max_steps = self.plan.max_steps
        elif counted.num_train_epochs <= 0:
            counted.num_train_epochs = stock_epochs(type(counted))
        return super().set_initial_training_values(counted, dataloader)

    def floating_point_ops(self, inputs: Any) -> int:
        """The model's own count, images included; `Trainer`'s, of its text alone, where it has none."""
        return getattr(self.model, "floating_point_ops", super().floating_point_ops)(inputs)

    # ---- The losses of a step ----

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """`Trainer.training_step`; the rows that the batch was made of are noted and never reach the model."""
        if self._without_plan is not None:
            return super().training_step(model, inputs, num_items_in_batch)
        if isinstance(inputs, list):
            rows = torch.tensor([example.pop("example_index") for example in inputs])
        else:
            note_host_values(inputs)
            rows = inputs.pop("example_index", None) if hasattr(inputs, "pop") else None
        if rows is not None:
            rows = rows.clone()  # what a worker sent keeps a file open as long as it is noted
        if rows is not None and self._audit is not None:
            self._audit.add(self.state.global_step, rows)
        self._rows_of_batch = rows
        self.speed.count(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """`Trainer.compute_loss`, weighted: Σ wᵢ lᵢ in place of Σ lᵢ, with the same divisor.

        lᵢ is the sum over the tokens of example i, or its own loss if it has one. wᵢ is its weight in `weight_column`
        times the curriculum's weight, 1 without any. Evaluation is without weights.
        """
        compute = super().compute_loss
        return self._weighting.compute_loss(compute, model, inputs, return_outputs, num_items_in_batch)

    def example_losses(self, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """One loss per example of a batch, shape (B,); override it for a model whose loss is another."""
        return example_losses(model, inputs)

    @property
    def has_own_losses(self) -> bool:
        """Whether the losses of examples are a user's own."""
        return type(self).example_losses is not CurriculumTrainer.example_losses

    def validate_draws(self) -> None:
        """Compares the rows trained on since the last check with the plan, and records them with `audit_draws`."""
        if self._audit is not None:
            self._audit.flush()

    # ---- Logs ----

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """`Trainer.log`, with the examples so far, and with a loss the draws since the last: see `DrawLog`.

        Entries of evaluations and decisions have the seconds of training so far too.
        """
        if self._without_plan is not None:
            super().log(logs, *args, **kwargs)
            return
        # Other trainers add their averages to what they log, and begin new ones: not to a curriculum's numbers.
        own = all(name.startswith("curriculum/") for name in logs)
        given, logs = logs, dict(logs)
        if self.is_in_train:
            plan, costs = self.plan, self.costs()
            scores = plan.candidates > 1 or plan.curriculum.signal == "losses"
            logs |= costs if scores else {"examples": costs["examples"]}
            if "loss" in logs:
                drawn = self._draw_log.note(self.plan, self.state)
                if plan.candidates > 1:
                    drawn = {**drawn, **self.selector.facts()}
                logs |= {f"curriculum/{name}": value for name, value in drawn.items()}
            if "loss" in logs or "train_runtime" in logs:
                self._trained_seconds = round(self._clock.seconds, 3)
            else:
                logs["seconds"] = round(self._clock.seconds, 3)
        added = logs.keys() - given.keys()
        if own:
            Trainer.log(self, logs, *args, **kwargs)
        else:
            super().log(logs, *args, **kwargs)
        # The caller goes on with its own mapping, which other trainers and callbacks add to and take from.
        given.clear()
        given.update({name: value for name, value in logs.items() if name not in added})

    def note_draws(self) -> None:
        """Notes the draws since the last entry with a loss, before a decision changes the order."""
        self._draw_log.note(self.plan, self.state)

    def log_curriculum(self, facts: Mapping[str, float]) -> None:
        """Logs numbers about the curriculum, as `curriculum/…`."""
        wanted = self.control.should_log  # logging takes it back, and this step's loss is still to be served
        self.log({f"curriculum/{name}": value for name, value in facts.items()})
        self.control.should_log = wanted

    # ---- Decisions between rounds ----

    def begin_amendment(self) -> None:
        """Records the amendment that begins here, if any, in logs and in the output folder."""
        if self._amended_at is not None:
            note_amendment(self, self._amended_at)
            self.log_curriculum({"amended_after_step": self.state.global_step})

    def decision_is_due(self) -> bool:
        """Whether the curriculum has to decide before the next step."""
        return self.plan.undecided and self.state.global_step == self.plan.known_steps

    def reach_decision(self) -> None:
        """Takes the curriculum's decision, on an evaluation or on the losses of the training data."""
        if self.curriculum.signal == "metrics":
            self.evaluate()
        elif self.curriculum.losses_of_training:
            self._decide({}, self._weighting.losses())
        else:
            self._decide({}, self.training_losses())

    def try_first_batch(self) -> None:
        """Collates the next batch, and tries the curriculum's signal; training's randomness is untouched.

        Raises:
            ValueError: the model does not take it, it has no loss per example, or rows become other inputs now.
        """
        with preserve_rng_state(), self._clock.paused():
            try_first_batch(self)
            self._trained_on = replace(self._trained_on, inputs=input_digests(self))
        if self._resumed_from is not None:
            validate_same_inputs(self._resumed_from, self._trained_on, accept=self.args.resume_on_other_data)

    def training_losses(self) -> np.ndarray:
        """The current loss of every training row, float32, shape (num_rows,); training's randomness is untouched."""
        with preserve_rng_state(), self._clock.paused():
            return measure_losses(self)

    def _decide(self, metrics: Mapping[str, Any], losses: np.ndarray | None = None) -> None:
        self.validate_draws()
        step = self.state.global_step
        self._plan = plan = broadcast_decision(self.plan, Observed(step, numbers_of(metrics), losses, self.arrays))
        if self._audit is not None:
            self._audit.plan = plan
        if self.is_world_process_zero():
            pool = f"; pool {plan.stage_at(step).pool_size:,}" if plan.known_steps > step else ""
            logger.info(plan.curriculum.describe_decision(plan.log[-1]) + pool)
        if plan.known_steps > step:
            self.log_curriculum(round_facts(plan, step))
        elif step < self.state.max_steps:
            self.end_early()

    def time_is_up(self) -> bool:
        """Whether `max_seconds` of training have passed, by the main process's clock."""
        limit = self.args.max_seconds
        if limit is None:
            return False
        return bool(broadcast(torch.tensor(float(self._clock.seconds >= limit), device=self.args.device)).item())

    def end_early(self) -> None:
        """Ends training before the declared maximum of steps."""
        self.control.should_training_stop = True
        self.control.should_save |= self.args.save_strategy not in (SaveStrategy.NO, SaveStrategy.BEST)

    # ---- Resuming ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        *args: Any,
        amend: Amendment | None = None,
        **kwargs: Any,
    ) -> Any:
        """`Trainer.train`, by the arguments and the data as they are now.

        Before the first step it looks up stored regions or features of every image, and collates one batch (not of a
        `BucketedStream`, which would open shards). It also tries the curriculum's signal, losses or metric.

        Args:
            resume_from_checkpoint: a folder, or "me/model" on the Hub; True: the last whole one of the run.
            *args: what `Trainer.train` takes.
            amend: another rule, or other data, for the rest of the run.
            **kwargs: what `Trainer.train` takes.

        Raises:
            TypeError: `amend` is no `Amendment`.
            ValueError: there is no complete checkpoint, it is damaged or holds weights alone, or it was made for
                another plan, other data or inputs. Or nothing is stored of an image, words are another model's, the
                curriculum's signal is unavailable, or the run cannot be amended so.
            RuntimeError: another run trains into the output folder.
        """
        self.is_in_train = False  # an earlier call may have ended with an error
        self._follow_arguments()
        validate_amendable(amend, resume_from_checkpoint, self._without_plan)
        if self._without_plan is not None:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        if resume_from_checkpoint:
            resume_from_checkpoint = self.local_checkpoint(resume_from_checkpoint)
        # `Trainer` skips the completed steps' batches: the sampler then yields placeholders, and no example is loaded.
        self._seconds_before, self._skips = 0.0, bool(resume_from_checkpoint)
        self._resumed = self._skips
        if resume_from_checkpoint and self.args.auto_find_batch_size:
            self._train_batch_size = saved_batch_size(resume_from_checkpoint) or self._train_batch_size
        amended_at = amend_run(self, resume_from_checkpoint, amend) if resume_from_checkpoint else None
        self._amended_at = amended_at
        # What is new at an amendment is not compared with what was before.
        self._resumed_from = None if amended_at or not resume_from_checkpoint else os.fspath(resume_from_checkpoint)
        self._plan = plan = self.plan.with_log(())
        self._trained_on = TrainingData.of(self.train_dataset, self.data_collator, self._weighting.column)
        self._reference_compute = reference_compute(plan, self.train_dataset)
        validate_metric(self)
        self._run = new_run()
        if resume_from_checkpoint:
            validate_training_state(resume_from_checkpoint)
            saved, accept = read_curriculum(resume_from_checkpoint), self.args.resume_on_other_data
            self._seconds_before, self._run = saved["seconds"], saved["run"]
        if self._resumed_from is not None:
            saved["plan"] = prolonged(saved["plan"], plan)
            validate_same_plan(saved["plan"], plan.fingerprint(), resume_from_checkpoint)
            validate_same_data(saved, self._trained_on, resume_from_checkpoint, accept=accept)
            self._plan = resume_plan(saved, plan, resume_from_checkpoint)
        with only_run_in(self._get_output_dir(kwargs.get("trial")), self.args.process_index), paced(self, self.speed):
            output = super().train(resume_from_checkpoint or None, *args, **kwargs)
        self.validate_draws()
        recorded_draws(self)
        return output

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        # Private in transformers 5.24, as are the next two: only here the folder is known whose weights are loaded.
        self._loading_from = resume_from_checkpoint
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_best_model(self) -> None:
        self._loading_from = self.state.best_model_checkpoint
        super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # `Trainer` goes on with a warning where weights found no place.
        load_renamed_weights(self.model, self._loading_from, load_result)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        # Private in transformers 5.24: restores optimizer, schedule and step. After it the step is known at which the
        # clock, the audit and the choice among candidates go on.
        trained = super()._init_training_state(*args, **kwargs)
        if self._without_plan is not None:
            return trained
        self._clock = TrainingClock(self._seconds_before)
        self._draw_log = DrawLog()
        self._weighting.start(self._resumed_from)
        self._audit = start_audit(self)
        self.selector.resume(self._resumed_from)
        return trained

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Private in transformers 5.24: writes the trainer's state last, then pushes it and deletes old checkpoints.
        # The record of all files comes right after the state.
        if self._without_plan is not None:
            super()._save_checkpoint(model, trial)
            return
        self.validate_draws()
        seen, draws = self._weighting.seen, recorded_draws(self)  # every process takes part in gathering
        losses = None if seen is None else seen.gather(self.accelerator)
        seconds, step, write_state = self._clock.seconds, self.state.global_step, self.state.save_to_json
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{step}")
        invalidate(folder)
        self.accelerator.wait_for_everyone()  # no process writes before all have looked

        def finish(path: str) -> None:
            write_state(path)
            facts = {"data": self._trained_on, "step": step, "run": self._run, "training_losses": losses}
            write_curriculum(folder, self.plan, seconds, draws=draws, **facts)

        self._saves_checkpoint, self.state.save_to_json = True, finish
        try:
            with explained(folder):
                super()._save_checkpoint(model, trial)
        finally:
            self._saves_checkpoint = False
            del self.state.save_to_json

    def _save_rng_state(self, output_dir: str) -> None:
        # Private in transformers 5.24: called in every process, each of which has candidates of its own to save.
        super()._save_rng_state(output_dir)
        self.selector.save(output_dir)
        # The main process records next what every process has written: so wait for all.
        self.accelerator.wait_for_everyone()

    # ---- Evaluation ----

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> dict[str, float]:
        """`Trainer.evaluate`, which leaves training's randomness alone; at a round's end the curriculum decides."""
        if self._without_plan is not None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)
        data, within = self._without_curriculum_columns(eval_dataset), self._evaluating
        self.arrays = self.arrays if within else {}  # of several sets `Trainer` calls this again, for each of them
        self._evaluating = True
        try:
            with preserve_rng_state(), self._clock.paused():
                metrics = super().evaluate(data, ignore_keys, metric_key_prefix, **kwargs)
        finally:
            self._evaluating = within
        own = eval_dataset is None and metric_key_prefix == "eval"
        if own and self.is_in_train and self.curriculum.signal == "metrics" and self.decision_is_due():
            self._decide(metrics)
        return metrics

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """`Trainer.evaluation_loop`; metrics that are arrays go to `arrays`, since no log could hold them."""
        output = super().evaluation_loop(*args, **kwargs)
        metrics = output.metrics or {}
        found = {name: value for name, value in metrics.items() if isinstance(value, np.ndarray) and value.ndim}
        self.arrays = {**self.arrays, **found}
        kept = {name: value for name, value in metrics.items() if name not in found}
        return output._replace(metrics=kept) if found else output

    def metric_names(self, name: str | None) -> tuple[str, ...] | None:
        """The names of `evaluate()`'s metrics for one of the `eval_dataset`, without its prefix; None if unknown."""
        return None if self.compute_metrics else ("loss",)
