"""A trainer for programs that are written for the `Trainer` of transformers."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from hocket.data.loader_state import loader_state, restore_loader
from hocket.errors import DataError, HocketError, OptionError, missing_extra, unknown_name
from hocket.methods import as_method
from hocket.methods.method import Method
from hocket.partition import Plan
from hocket.training.session.batches import length_of
from hocket.training.trainer import Trainer

try:
    import transformers
    from transformers import trainer_pt_utils, trainer_utils
    from transformers.integrations import get_reporting_integration_callbacks
    from transformers.trainer import DEFAULT_CALLBACKS, DEFAULT_PROGRESS_CALLBACK
    from transformers.trainer_callback import CallbackHandler, PrinterCallback

    from hocket.integrations.model_batches import ModelBatches, PredictionArrays, StepLosses
    from hocket.integrations.training_arguments import check_arguments, trainer_options
except ImportError as error:
    raise missing_extra("transformers", "transformers", "StageTrainer") from error

STAGES = "stages"
"""Folder with the states of the stages, in a checkpoint of theirs."""
METRICS = "metrics"
"""Name of `compute_metrics` among the metrics of a `hocket.Trainer`."""


class StageTrainer:
    """Trains a model of transformers in stages, by the arguments of transformers' `Trainer`.

    Steps, epochs, the order of the data and the loss are as in their `Trainer`. Three things
    differ: each stage draws its own dropout; ``max_grad_norm`` limits the gradient of each
    stage; and with delays a log has the losses of the batches that have left the last stage.
    Batches in flight are completed after the last step, and after a step of fewer batches at
    the end of an epoch.

    Among several processes (``torchrun``, ``hocket launch``) each takes a stage, reads all
    data, and calls the same methods. ``per_device_train_batch_size`` is the whole network's.

    Args:
        model: The model, of transformers or peft, which computes its loss.
        args: The arguments. Fields that have no effect here are refused, or warned of.
        data_collator: Makes a batch from a list of samples.
        train_dataset: Samples to train on.
        eval_dataset: Samples to evaluate on; or several such sets, by name.
        processing_class: Tokenizer or processor, which is saved with the model.
        compute_metrics: Returns metrics by name for an `EvalPrediction` of theirs.
        callbacks: Callbacks of theirs. Each process has them, and they decide alike in all.
        stages: Number of stages, or the cuts. A number is cut between the layers that the
            model's ``_pp_plan`` names, if it names enough, or else by counted operations.
        method: The method, which accumulates the batches of a step.

    Attributes:
        trainer: The `hocket.Trainer` that trains, with its ``plan`` and ``close``.
        state: `TrainerState` of theirs.
        control: `TrainerControl` of theirs.

    Raises:
        OptionError: With every field of the arguments that is refused, by name; or the model or
            a callback cannot be used.
    """

    log_metrics = trainer_pt_utils.log_metrics
    save_metrics = trainer_pt_utils.save_metrics
    save_state = trainer_pt_utils.save_state

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        args: transformers.TrainingArguments,
        *,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
        callbacks: Sequence[transformers.TrainerCallback] | None = None,
        stages: int | Plan = 2,
        method: Method | str = "paci:accumulate=4+predict",
    ) -> None:
        # Refuse what has no effect.
        method = as_method(method)
        if not hasattr(model, "save_pretrained"):
            raise OptionError(
                f"the model is a {type(model).__name__}; StageTrainer trains models of "
                "transformers and peft, and hocket.Trainer trains any module"
            )
        _check_callbacks(callbacks or [])
        check_arguments(args, method)
        # Set seeds and modes, as their Trainer does.
        if args.full_determinism:
            trainer_utils.enable_full_determinism(args.seed)
        else:
            transformers.set_seed(args.seed)
        transformers.logging.set_verbosity(args.get_process_log_level())
        model.config.use_cache = args.use_cache
        self.model, self.args, self.processing_class = model, args, processing_class
        # Prepare the data.
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self._batches = ModelBatches(model, args, data_collator, processing_class)
        self._epoch_start: dict[str, Any] | None = None  # random state where an epoch began
        self._train_loader: Any = self._batches.load_to_train(train_dataset)
        # Build the trainer of the stages.
        if self._batches.counts_items:
            method = replace(method, reduce="sum")  # of the batches' shares in a step's loss
        self._accumulate = method.accumulate
        self._losses = StepLosses(shares=self._batches.counts_items)
        self._predictions = PredictionArrays(model, args, compute_metrics)
        measures = compute_metrics is not None and not args.prediction_loss_only
        self.trainer = Trainer(
            model,
            stages=_choose_cuts(model, stages),
            method=method,
            watchers=[self._losses],
            split_batch=self._batches.split,
            metrics={METRICS: self._predictions} if measures else {},
            **trainer_options(args, model, self._count_steps()),
        )
        # Begin with the callbacks of their Trainer.
        shown = PrinterCallback if args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK
        reports = get_reporting_integration_callbacks(args.report_to)
        every = [*DEFAULT_CALLBACKS, *reports, *(callbacks or []), shown]
        self.callback_handler = CallbackHandler(every, model, processing_class, None, None)
        self.callback_handler.train_dataloader = self._train_loader
        self.state, self.control = self._start_state(), transformers.TrainerControl()
        self._call("on_init_end")

    def train(
        self, resume_from_checkpoint: str | bool | None = None
    ) -> trainer_utils.TrainOutput:
        """Train for all steps; return the number of steps, the mean loss and metrics.

        Args:
            resume_from_checkpoint: Folder of a checkpoint to continue from, to the bits of a
                training that never stopped; True for the newest in ``output_dir``.

        Raises:
            HocketError: It has trained already.
            OptionError: There is nothing to train on, or no checkpoint.
            DataError: The training data have no batches.
        """
        if self.train_dataset is None:
            raise OptionError("there is nothing to train on; give StageTrainer a train_dataset")
        if self.state.global_step:
            raise HocketError("this StageTrainer has trained already; build a new one")
        # Begin, or continue where a checkpoint was written.
        started_s = time.perf_counter()
        skipped = self._resume(resume_from_checkpoint) if resume_from_checkpoint else 0
        first_step = self.state.global_step
        self.model.train()
        self._call("on_train_begin")
        if self.args.eval_on_start:
            self.evaluate()
        # Train for all steps, unless a callback stops.
        while self.state.global_step < self.state.max_steps:
            self._train_epoch(skipped)
            skipped = 0
            if self.control.should_training_stop:
                break
        self.trainer.finish()
        self.trainer.collect()
        # Report on the training, and leave the best weights in the model.
        steps = self.state.global_step - first_step
        samples = steps * self._accumulate * self.args.per_device_train_batch_size
        self._losses.read(self.trainer)
        metrics = _speeds("train", started_s, samples=samples, steps=steps)
        metrics["train_loss"] = self._losses.mean
        self.log(metrics)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_weights(self.state.best_model_checkpoint)
        self._call("on_train_end")
        return trainer_utils.TrainOutput(self.state.global_step, self._losses.mean, metrics)

    def _train_epoch(self, skipped: int) -> None:
        """Train for the steps of an epoch.

        Args:
            skipped: Batches that entered before the checkpoint from which this continues.

        Raises:
            DataError: The training data have no batches.
        """
        # Begin with the random state and the order of the epoch.
        loader, epoch = self._train_loader, self.trainer.epoch
        self._call("on_epoch_begin")
        self._epoch_start = self._epoch_start or loader_state(None)
        restore_loader(self._epoch_start, None)
        self._batches.shuffle(self.train_dataset, epoch)
        # Train, with a step for each group of batches.
        length = length_of(loader) or self.state.max_steps * self._accumulate
        entered = skipped
        for group in self._batches.groups(islice(loader, skipped, None), self._accumulate):
            entered += len(group)
            self._train_step(group, epoch + entered / length)
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        if not entered:
            raise DataError("the training data have no batches; give samples as train_dataset")
        # End it.
        self.trainer.end_epoch()
        self._epoch_start = None
        self._call("on_epoch_end")
        self._log_evaluate_save()

    def _train_step(self, group: Sequence[Mapping[str, Any]], epoch: float) -> None:
        """Let the batches of a step enter.

        Args:
            group: The batches, fewer than the method accumulates where an epoch ends.
            epoch: Epochs done after the step.
        """
        self._call("on_step_begin")
        for number, batch in enumerate(group, 1):
            self.trainer.step(*self._batches.split(batch))
            if number < len(group):
                self._call("on_substep_end")
        is_last = self.state.global_step + 1 == self.state.max_steps
        if is_last or len(group) < self._accumulate:
            self.trainer.finish()
        self._call("on_optimizer_step")
        self.state.global_step += 1
        self.state.epoch = epoch
        self._call("on_step_end")
        self._log_evaluate_save()

    def _log_evaluate_save(self) -> None:
        """Do what callbacks have decided on after a step or an epoch."""
        if self.control.should_log and (logs := self._losses.read(self.trainer)):
            self.log(logs)
        if self.control.should_evaluate:
            is_best = self._is_best(self.evaluate())
            if self.args.save_strategy == trainer_utils.SaveStrategy.BEST:
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint()
            self._call("on_save")

    def evaluate(
        self, eval_dataset: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the loss and the metrics of the model as it is now, by name.

        Args:
            eval_dataset: Samples, or several sets by name; the trainer's if not given.
            metric_key_prefix: Beginning of the names.

        Raises:
            OptionError: There is nothing to evaluate on.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise OptionError("there is nothing to evaluate on; give an eval_dataset")
        if isinstance(dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in dataset.items():
                metrics |= self.evaluate(part, f"{metric_key_prefix}_{name}")
            return metrics
        loader = self.callback_handler.eval_dataloader = self._batches.load(dataset)
        metrics = self._measure(self._shown(loader), metric_key_prefix)
        self.log(metrics)
        self._call("on_evaluate", metrics=metrics)
        return metrics

    def predict(
        self, test_dataset: Any, metric_key_prefix: str = "test"
    ) -> trainer_utils.PredictionOutput:
        """Return predictions, labels and metrics in every process, as their `Trainer` does.

        Args:
            test_dataset: Samples of the form that the model was trained on, or cut with; labels
                among them may be zeros.
            metric_key_prefix: Beginning of the names of the metrics.
        """
        # All processes read the same batches, also where the collator draws random numbers.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.args.seed)
            batches = list(self._shown(self._batches.load(test_dataset)))
        labelled = all(self._batches.split(batch)[1] is not None for batch in batches)
        metrics = self._measure(batches, metric_key_prefix) if labelled else {}
        self._predictions.reset()
        for batch, output in zip(batches, self.trainer.predict(batches), strict=True):
            self._predictions.update(output, self._batches.split(batch)[1])
        self._call("on_predict", metrics=metrics)
        return trainer_utils.PredictionOutput(*self._predictions.arrays(), metrics)

    def _measure(self, batches: Iterable[Any], prefix: str) -> dict[str, float]:
        """Return loss, metrics and speed of an evaluation, by names with a prefix."""
        started_s = time.perf_counter()
        result = self.trainer.evaluate(batches)
        metrics = {f"{prefix}_loss": result.loss}
        for name, value in result.metrics.items():
            own_name = name.removeprefix(f"{METRICS}.").removeprefix(f"{prefix}_")
            metrics[f"{prefix}_{own_name}"] = value
        return metrics | _speeds(prefix, started_s, samples=result.samples)

    def log(self, logs: dict[str, float]) -> None:
        """Give values by name to the callbacks, and keep them in ``state.log_history``."""
        logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._call("on_log", logs=logs)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model as ``from_pretrained`` reads it; all processes must call it.

        Args:
            output_dir: Folder; the one of the arguments if not given.
        """
        folder = Path(output_dir or self.args.output_dir)
        self.trainer.collect()
        if self.trainer.is_main_process:
            self.model.save_pretrained(folder)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
            torch.save(self.args, folder / "training_args.bin")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to push.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            "StageTrainer does not push to a hub; call save_model(folder), and push_to_hub of "
            "the model that from_pretrained(folder) reads"
        )

    def add_callback(self, callback: Any) -> None:
        """Add a callback of theirs, or one of its class."""
        _check_callbacks([callback])
        self.callback_handler.add_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback of theirs, or the first one of a class."""
        self.callback_handler.remove_callback(callback)

    def is_world_process_zero(self) -> bool:
        """Return True in the one process that prints and writes files."""
        return self.trainer.is_main_process

    def _call(self, event: str, **values: Any) -> None:
        """Call an event of all callbacks."""
        tell = getattr(self.callback_handler, event)
        self.control = tell(self.args, self.state, self.control, **values)

    def _shown(self, loader: DataLoader[Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the batches of an evaluation, and tell the callbacks of each."""
        for (batch,) in self._batches.groups(loader, 1):
            yield batch
            self._call("on_prediction_step")

    def _count_steps(self) -> int:
        """Return the number of steps of the training; 1 if there is none.

        Raises:
            OptionError: The data have no length, and the arguments no number of steps.
        """
        args, length = self.args, length_of(self._train_loader)
        if args.max_steps > 0:
            return int(args.max_steps)
        if self._train_loader is None:
            return 1
        if length is None:
            raise OptionError("train_dataset has no length; give max_steps")
        steps: int = ceil(args.num_train_epochs * ceil(length / self._accumulate))
        return steps

    def _start_state(self, file: Path | None = None) -> transformers.TrainerState:
        """Return the state of a new training, or of the one that wrote a file."""
        kind, max_steps = transformers.TrainerState, self._count_steps()
        state = kind() if file is None else kind.load_from_json(str(file))
        state.compute_steps(self.args, max_steps)
        state.max_steps, state.num_train_epochs = max_steps, ceil(self.args.num_train_epochs)
        state.is_world_process_zero = self.trainer.is_main_process
        state.is_local_process_zero = self.args.local_process_index == 0
        return state

    def _resume(self, checkpoint: str | bool) -> int:
        """Continue from a checkpoint; return the batches of the epoch that have entered.

        Raises:
            OptionError: There is none in the folder of the arguments.
        """
        folder: Any = checkpoint
        if checkpoint is True:
            folder = trainer_utils.get_last_checkpoint(self.args.output_dir)
        if folder is None:
            raise OptionError(f"there is no checkpoint to resume in {self.args.output_dir!r}")
        point = self.trainer.resume(Path(folder) / STAGES)
        self.state = self._start_state(Path(folder) / "trainer_state.json")
        self._epoch_start = point.notes[0]
        return point.batch

    def _save_checkpoint(self) -> None:
        """Write the model, the states of the stages and the state of the training."""
        args, state, is_main = self.args, self.state, self.trainer.is_main_process
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = str(folder)
        self.save_model(folder)
        if is_main:
            shutil.rmtree(folder / STAGES, ignore_errors=True)  # of an earlier training
        if not args.save_only_model:
            note = self._epoch_start or loader_state(None)
            self.trainer.save(folder / STAGES, keep=1, note=note)
        if is_main:
            state.save_to_json(str(folder / "trainer_state.json"))
            trainer_utils.rotate_checkpoints(
                args.output_dir, args.save_total_limit, state.best_model_checkpoint, True
            )

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        """Return True if an evaluation is the best so far, and remember it then.

        Raises:
            OptionError: It has no such metric.
        """
        args, state = self.args, self.state
        if args.metric_for_best_model is None:
            return False
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        if name not in metrics:
            raise OptionError(f"metric_for_best_model: {unknown_name('metric', name, metrics)}")
        value, best = metrics[name], state.best_metric
        if best is not None and not (value > best if args.greater_is_better else value < best):
            return False
        state.best_metric, state.best_global_step = value, state.global_step
        return True

    def _load_weights(self, folder: str) -> None:
        """Load the weights of a checkpoint into the model."""
        if trainer_utils.unwrap_peft_model(self.model) is not self.model:
            self.model.load_adapter(folder, self.model.active_adapter, is_trainable=True)
        else:
            saved = type(self.model).from_pretrained(folder)
            self.model.load_state_dict(saved.state_dict())


def _speeds(prefix: str, started_s: float, **counts: int) -> dict[str, float]:
    """Return the seconds since a moment, and counts per second, by the names of theirs.

    Args:
        prefix: Beginning of the names.
        started_s: The moment, by `time.perf_counter`.
        **counts: Numbers of what was done, by the names of their units.
    """
    seconds = time.perf_counter() - started_s
    speeds = {f"{prefix}_{unit}_per_second": n / seconds for unit, n in counts.items()}
    return {f"{prefix}_runtime": seconds, **speeds}


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks for an event that never comes.

    Raises:
        OptionError: There is one.
    """
    for callback in callbacks:
        kind: Any = callback if isinstance(callback, type) else type(callback)
        if kind.on_pre_optimizer_step is not transformers.TrainerCallback.on_pre_optimizer_step:
            raise OptionError(
                f"{kind.__name__} acts at on_pre_optimizer_step, which never comes, as stages "
                "update within their ticks; use on_optimizer_step"
            )


def _choose_cuts(model: transformers.PreTrainedModel, stages: int | Plan) -> int | Plan:
    """Return cuts between equal numbers of the layers that ``_pp_plan`` names, if it does."""
    base = trainer_utils.unwrap_peft_model(model)
    modules = dict(base.named_modules())
    named = [modules.get(name) for name in getattr(base, "_pp_plan", None) or ()]
    layers = max((m for m in named if isinstance(m, nn.ModuleList)), key=len, default=())
    if isinstance(stages, Plan) or not 1 < stages <= len(layers):
        return stages
    names = {module: name for name, module in model.named_modules()}
    starts = [layers[stage * len(layers) // stages] for stage in range(1, stages)]
    return Plan(tuple(names[layer] for layer in starts))
