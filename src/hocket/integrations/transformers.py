"""A trainer for programs that are written for the `Trainer` of transformers."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hocket.data.loader_state import loader_state, restore_loader
from hocket.engine.event import Event
from hocket.errors import DataError, HocketError, OptionError, Problems, missing_extra
from hocket.methods import as_method
from hocket.methods.method import Method
from hocket.optim.factory import NamedParameters
from hocket.options.require import require_list, wrong_functions
from hocket.partition import Plan
from hocket.restore import preserve_rng
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage
from hocket.training.trainer import Trainer

try:
    import transformers
    from transformers import trainer_utils

    from hocket.integrations.lone_trainer import compose_lone_trainer
    from hocket.integrations.training_arguments import check_arguments, refuse_callbacks
except ImportError as error:
    raise missing_extra("transformers", "transformers", "StageTrainer") from error

STAGES = "stages"
"""Folder with the states of the stages, in a checkpoint of theirs."""
SHARED = (
    "evaluate", "predict", "log", "log_metrics", "save_metrics", "save_state", "add_callback",
    "remove_callback", "is_world_process_zero", "model", "args", "state", "control",
)  # fmt: skip
"""What `StageTrainer` has from their `Trainer`."""


class StageTrainer:
    """Trains a model of transformers in stages, by the arguments of transformers' `Trainer`.

    Steps, epochs, the order of the data and the loss are as in their `Trainer`, which does all
    but the training. Three things differ: each stage draws its own dropout; ``max_grad_norm``
    limits the gradient of each stage; and with delays a log has the losses of the batches that
    have left the last stage. Batches in flight are completed after the last step, and after a
    step of fewer batches at the end of an epoch.

    Like theirs, it has ``evaluate``, ``predict``, ``log``, ``log_metrics``, ``save_metrics``,
    ``save_state``, ``add_callback``, ``remove_callback``, ``is_world_process_zero``, ``model``,
    ``args``, ``state`` and ``control``.

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

    Raises:
        OptionError: With every field of the arguments that is refused, by name; or another
            argument is of a wrong type.
    """

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
        self._accumulate = method.accumulate
        check_arguments(args, method)
        problems = wrong_functions(data_collator=data_collator, compute_metrics=compute_metrics)
        Problems(problems).raise_together("these are no functions")
        # Let their Trainer evaluate with the stages, and save them.
        self._theirs = theirs = compose_lone_trainer(
            model,
            args,
            accumulate=self._accumulate,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=require_list("callbacks", callbacks or []),
        )
        theirs._wrap_model = lambda *_, **__: lambda **batch: self.trainer.predict([batch])[0]
        theirs.evaluation_loop = self._evaluate_batches
        theirs.save_model = lambda folder, **_: self.save_model(folder)
        theirs._save_optimizer_and_scheduler = self._save_stages
        theirs._save_scaler = theirs._save_rng_state = lambda folder: None  # stages have them
        # Count the steps; a single one if there is nothing to train on.
        self._loader: Any = None
        self._lengths: Any = [0] * 6 + [1]  # as set_initial_training_values returns them
        if train_dataset is not None:
            self._loader = theirs.get_train_dataloader()
            self._lengths = theirs.set_initial_training_values(theirs.args, self._loader)
        max_steps = self._lengths[-1]
        # Build the trainer of the stages.
        self._has_shares = theirs.model_accepts_loss_kwargs and "labels" in theirs.label_names
        if self._has_shares:
            method = replace(method, reduce="sum")  # of the batches' shares in a step's loss
        self._losses: list[list[ActionReport]] = [[]]  # of each step that left the last stage
        self._total_loss, self._lr, self._resumed = 0.0, 0.0, False
        self._epoch_start: dict[str, Any] | None = None  # random state where an epoch began
        self.trainer: Trainer = Trainer(
            model,
            stages=_choose_cuts(model, stages),
            method=method,
            optimizer=self._build_optimizer,
            scheduler=partial(
                transformers.get_scheduler,
                args.lr_scheduler_type,
                num_warmup_steps=args.get_warmup_steps(max_steps),
                num_training_steps=max_steps,
                scheduler_specific_kwargs=args.lr_scheduler_kwargs,
            ),
            scheduler_unit="update",
            device=args.device.type,
            watchers=[self._keep_loss],
            split_batch=lambda batch: (batch, batch.get("labels")),
            clip=args.max_grad_norm or None,
            seed=args.seed,
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            compile=args.torch_compile and args.torch_compile_backend,
            slow_timeout_s=float(args.ddp_timeout),
            resumable=args.save_strategy != "no" and not args.save_only_model,
        )

    def __getattr__(self, name: str) -> Any:
        """Return what their `Trainer` has, if it holds for stages as well.

        Raises:
            AttributeError: It does not.
        """
        if name in SHARED:
            return getattr(self._theirs, name)
        raise AttributeError(
            f"StageTrainer has no {name!r}; it has train, {', '.join(SHARED)}, and save_model, "
            "which writes what can be pushed to a hub"
        )

    __reduce_ex__ = Trainer.__reduce_ex__  # its batches in flight cannot be copied

    def train(
        self, resume_from_checkpoint: str | bool | None = None
    ) -> trainer_utils.TrainOutput:
        """Train for all steps; return the number of steps, the mean loss and metrics.

        Args:
            resume_from_checkpoint: Folder of a checkpoint to continue from, to the bits of a
                training that never stopped; True for the newest in ``output_dir``.

        Raises:
            HocketError: It has trained already.
            OptionError: There is nothing to train on, or a callback for what never comes.
            CheckpointError: There is no checkpoint.
            DataError: The training data have no batches.
        """
        # Refuse what cannot be trained.
        theirs, folder = self._theirs, resume_from_checkpoint or None
        if self._loader is None:
            raise OptionError("there is nothing to train on; give StageTrainer a train_dataset")
        if theirs.state.global_step:
            raise HocketError("this StageTrainer has trained already; build a new one")
        refuse_callbacks(theirs.callback_handler.callbacks)
        # Begin, or continue where a checkpoint was written.
        started_s, skipped = time.time(), 0
        if folder is True:
            newest = trainer_utils.get_last_checkpoint(theirs.args.output_dir)
            folder = newest or theirs.args.output_dir  # in which there is none
        if folder is not None:
            point = self.trainer.resume(Path(folder) / STAGES)
            self._epoch_start, skipped, self._resumed = point.notes[0], point.batch, True
        epochs, updates, _, samples, _, _, max_steps = self._lengths
        theirs._init_training_state(max_steps, updates, epochs, folder, None)
        theirs._initial_global_step = theirs.state.global_step
        theirs.model.train()
        self._call("on_train_begin")
        if theirs.args.eval_on_start:
            theirs.evaluate()
        # Train for all steps, unless a callback stops.
        while theirs.state.global_step < max_steps and not theirs.control.should_training_stop:
            self._train_epoch(skipped)
            skipped = 0
        self.trainer.finish()
        self.trainer.collect()
        # Report on the training, and leave the best weights in the model.
        self._read_losses()
        theirs._total_loss_scalar, theirs._tr_loss = self._total_loss, torch.zeros(())
        return theirs._finalize_training(None, samples, started_s)

    def _train_epoch(self, skipped: int) -> None:
        """Train for the steps of an epoch.

        Args:
            skipped: Batches that entered before the checkpoint from which this continues.

        Raises:
            DataError: The training data have no batches.
        """
        # Begin with the random state and the order of the epoch.
        *_, length, max_steps = self._lengths
        epoch, entered, size = self.trainer.epoch, skipped, self._accumulate
        self._call("on_epoch_begin")
        self._epoch_start = self._epoch_start or loader_state(None)
        restore_loader(self._epoch_start, None)
        self._loader.set_epoch(epoch)
        for group in self._groups(islice(self._loader, skipped, None), size):
            # Let the batches of a step enter.
            self._call("on_step_begin")
            for number, batch in enumerate(group, 1):
                self.trainer.step(batch, batch.get("labels"))
                self._theirs.current_flos += float(self._theirs.floating_point_ops(batch))
                if number < len(group):
                    self._call("on_substep_end")
            # Complete the last step, and one of fewer batches.
            if self.state.global_step + 1 == max_steps or len(group) < size:
                self.trainer.finish()
            self._call("on_optimizer_step")
            # Count the step, and do what callbacks decide on.
            entered += len(group)
            self.state.global_step += 1
            self.state.epoch = epoch + entered / length
            self._call("on_step_end")
            self._log_evaluate_save()
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        if not entered:
            raise DataError("the training data have no batches; give samples as train_dataset")
        # End it.
        self.trainer.end_epoch()
        self._epoch_start = None
        self._call("on_epoch_end")
        self._log_evaluate_save()

    def _groups(self, batches: Iterable[Any], size: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches of each step, with the number of the step's labels in each."""
        iterator, device = iter(batches), self.args.device
        while (step := self._theirs.get_batch_samples(iterator, size, device))[0]:
            more = {} if step[1] is None else {"num_items_in_batch": step[1]}
            yield [{**batch, **more} for batch in step[0]]

    def _log_evaluate_save(self) -> None:
        """Do what callbacks have decided on after a step or an epoch."""
        theirs, control = self._theirs, self._theirs.control
        if control.should_log and (logs := self._read_losses()):
            theirs.log(logs)
        if control.should_evaluate:
            is_best = theirs._determine_best_metric(theirs.evaluate(), None)
            if theirs.args.save_strategy == trainer_utils.SaveStrategy.BEST:
                control.should_save = is_best
        if control.should_save:
            theirs._save_checkpoint(theirs.model, None)
            self._call("on_save")

    def _call(self, event: str) -> None:
        """Call an event of all callbacks."""
        tell = getattr(self._theirs.callback_handler, event)
        self._theirs.control = tell(self.args, self.state, self.control)

    def _keep_loss(self, event: Event, stage: Stage) -> None:
        """Keep the loss of a batch of the last stage, whose update ends a step."""
        if stage.is_last and event.action.kind == "B" and event.report.has_loss:
            self._losses[-1].append(event.report)
        elif stage.is_last and event.action.kind == "U" and self._losses[-1]:
            # A step that began before the checkpoint lacks losses, and is not counted.
            if self._resumed and len(self._losses[-1]) < self._accumulate:
                self._losses[-1].clear()
            else:
                self._losses.append([])
            self._resumed = False
            self._lr = event.report.lr or 0.0

    def _read_losses(self) -> dict[str, float]:
        """Return mean loss and learning rate of the steps that left since the last call.

        All processes must call it. There is nothing in it if no step has left.
        """
        *steps, rest = self._losses
        self._losses = [rest]
        means = [
            sum(report.loss or 0.0 for report in step) / (1 if self._has_shares else len(step))
            for step in steps
        ]
        total, count, lr = self.trainer.gather([sum(means), len(means), self._lr])[-1]
        self._total_loss += total
        return {"loss": total / count, "learning_rate": lr} if count else {}

    def _evaluate_batches(self, loader: Any, **options: Any) -> trainer_utils.EvalLoopOutput:
        """Do what ``evaluation_loop`` of theirs does, with the stages."""
        theirs = self._theirs
        if options.get("prediction_loss_only") or theirs.args.prediction_loss_only:
            # For a loss alone all stages work at the same time, and no outputs travel.
            theirs.callback_handler.eval_dataloader = loader
            result = self.trainer.evaluate(self._shown(loader))
            metrics = {f"{options['metric_key_prefix']}_loss": result.loss}
            return trainer_utils.EvalLoopOutput(None, None, metrics, result.samples)
        with preserve_rng():
            # All processes read the same batches, also where the collator draws numbers.
            torch.default_generator.manual_seed(theirs.args.seed)
            return transformers.Trainer.evaluation_loop(theirs, loader, **options)

    def _shown(self, loader: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yield the batches of an evaluation, and tell the callbacks of each."""
        for (batch,) in self._groups(loader, 1):
            yield batch
            self._call("on_prediction_step")

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model as ``from_pretrained`` reads it; all processes must call it.

        Args:
            output_dir: Folder; the one of the arguments if not given.
        """
        self.trainer.collect()
        self._theirs._save(output_dir)
        self.trainer.gather(None)  # it is there for all

    def _save_stages(self, folder: str) -> None:
        """Write the states of the stages into a checkpoint of theirs."""
        if self.trainer.is_main_process:
            shutil.rmtree(Path(folder) / STAGES, ignore_errors=True)  # of an earlier training
        note = self._epoch_start or loader_state(None)
        self.trainer.save(Path(folder) / STAGES, keep=1, note=note)

    def _build_optimizer(self, named_parameters: NamedParameters) -> Optimizer:
        """Build the optimizer of a stage, with decay for the weights that decay in theirs."""
        theirs, args = self._theirs, self._theirs.args
        decayed = theirs.get_decay_parameter_names(theirs.model)
        kind, options = theirs.get_optimizer_cls_and_kwargs(args, theirs.model)
        split: tuple[list[nn.Parameter], ...] = [], []
        for name, weight in named_parameters:
            split[name not in decayed].append(weight)
        decays = (args.weight_decay, 0.0)
        groups = [{"params": p, "weight_decay": d} for p, d in zip(split, decays, strict=True)]
        optimizer: Optimizer = kind(groups, **options)
        return optimizer


def _choose_cuts(model: transformers.PreTrainedModel, stages: int | Plan) -> int | Plan:
    """Return cuts between equal numbers of the layers that ``_pp_plan`` names, if it does."""
    base = trainer_utils.unwrap_peft_model(model)
    modules = dict(base.named_modules())
    named = [modules.get(name) for name in getattr(base, "_pp_plan", None) or ()]
    layers = max((m for m in named if isinstance(m, nn.ModuleList)), key=len, default=())
    if not isinstance(stages, int) or not 1 < stages <= len(layers):
        return stages  # which hocket.Trainer checks
    names = {module: name for name, module in model.named_modules()}
    starts = [layers[stage * len(layers) // stages] for stage in range(1, stages)]
    return Plan(tuple(names[layer] for layer in starts))
