"""Callbacks: actions after steps, epochs and checkpoints, and the trainer as they see it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from hocket.engine.engine import Engine
from hocket.engine.event import Event
from hocket.errors import OptionError
from hocket.partition import Plan
from hocket.stage.stage import Stage
from hocket.stage.weight_copies.forward_state import named_tensors
from hocket.training.results.metrics import EpochResult, EvaluationResult

StageTensors: TypeAlias = Mapping[str, dict[str, Tensor]]
"""Tensors that callbacks keep for a stage, by the names of the callbacks and of the tensors."""


class TrainerView(Protocol):
    """A trainer during a ``fit``, as its callbacks see it; ``hocket.Trainer`` documents it.

    Callbacks depend on this protocol, and the trainer on them. ``Callback`` has an example.
    """

    @property
    def network(self) -> nn.Module:
        """The network, with its own names."""

    @property
    def plan(self) -> Plan | None:
        """Cuts of the network; None for stages given as modules."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Stages at work in this process."""

    @property
    def stage_count(self) -> int:
        """Number of stages."""

    @property
    def engine(self) -> Engine:
        """Engine that executes the program."""

    @property
    def epoch(self) -> int:
        """Number of epochs done."""

    @property
    def updates(self) -> int:
        """Updates that the batches so far lead to, in all fits."""

    @property
    def has_common_epochs(self) -> bool:
        """True unless stages run freely in separate processes."""

    @property
    def is_main_process(self) -> bool:
        """True in the one process that should print and write files."""

    @property
    def process_name(self) -> str | None:
        """Name of this process among several; None if it is alone."""

    def request_stop(self) -> None:
        """Let the current ``fit`` end after this epoch, in all processes."""

    def evaluate(self, batches: Iterable[Any]) -> EvaluationResult:
        """Measure the network as it is now; all processes must call it."""

    def predict(self, batches: Iterable[Any]) -> list[Any]:
        """Return the outputs of the network as it is now; all processes must call it."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of stages."""

    def collect(self) -> None:
        """Bring the weights of all stages into the network; all processes must call it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of all stages, by the network's names; all must call it."""


class Callback:
    """Base class of actions during a training; each of its methods does nothing.

    Every process has the same callbacks and calls them at the same epochs with the same
    results, so that ``on_start``, ``on_epoch`` and ``on_evaluation`` may call what all
    processes have to call, such as ``trainer.evaluate`` or ``trainer.collect``. The process
    that should print or write is the one with ``trainer.is_main_process``.

    A callback ends the training by ``trainer.request_stop()``: all processes stop at the end
    of the epoch. That is a call and not a returned value, as the request may come from
    any method and from a single process.

    >>> import hocket, torch
    >>> class Counts(Callback):
    ...     def on_epoch(self, trainer, result):
    ...         weights = trainer.state_dict()  # in every process
    ...         if trainer.is_main_process:
    ...             print(f"{result.samples} samples, weights {', '.join(weights)}")
    >>> trainer = hocket.Trainer(torch.nn.Linear(8, 2), stages=1, optimizer=torch.optim.SGD)
    >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))]
    >>> _ = trainer.fit(batches, epochs=1, progress=False, callbacks=[Counts()])
    4 samples, weights weight, bias
    """

    def on_start(self, trainer: TrainerView, state: dict[str, Any] | None) -> None:
        """Prepare for a ``fit``, from the beginning or from where a checkpoint was written.

        The trainer may have no stages yet. ``state`` is what ``state_dict`` returned for the
        checkpoint; None if the ``fit`` is new.
        """

    def on_step(self, trainer: TrainerView, events: Sequence[Event]) -> None:
        """Act after a tick at which a batch entered; processes are not at the same one.

        The events are what the stages of this process did in the tick.
        """

    def on_update(self, trainer: TrainerView, stage: Stage) -> None:
        """Act after an update of the weights of a stage of this process, in its tick.

        Ticks at which batches in flight are completed count as well. Save no checkpoint here:
        other stages have not done the tick yet.
        """

    def on_epoch(self, trainer: TrainerView, result: EpochResult) -> None:
        """Act after an epoch, before its checkpoint.

        Where stages run freely in separate processes, this comes for all epochs at the end.
        """

    def on_evaluation(
        self, trainer: TrainerView, updates: int, result: EvaluationResult
    ) -> None:
        """Act after an evaluation within an epoch; `on_epoch` has the one after an epoch.

        Args:
            trainer: The trainer.
            updates: Updates that the batches lead to that have entered.
            result: Result of the evaluation.
        """

    def on_checkpoint(self, trainer: TrainerView, folder: Path) -> None:
        """Act once a checkpoint is complete on the disk; processes are not at the same tick.

        It is written while the training goes on, and this comes some ticks after its own, at
        the latest before the next one is begun; for the last checkpoint before ``fit`` ends.
        ``trainer.resume`` takes its folder.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: plain JSON values, the same in all processes."""
        return {}

    def stage_tensors(self, stage: Stage) -> dict[str, Tensor]:
        """Return what a checkpoint keeps for a stage, by names of its weights and buffers."""
        return {}

    def load_stage_tensors(self, stage: Stage, tensors: dict[str, Tensor]) -> None:
        """Continue from what ``stage_tensors`` returned for a checkpoint, after ``on_start``.

        The stage may be cut elsewhere than before the checkpoint.
        """


class CallbackList:
    """Callbacks of a ``fit`` in their order, and their states.

    States are kept under the names of the callbacks' classes, numbered if a class comes more
    than once. States of callbacks that are not there are kept as well.

    Args:
        callbacks: The callbacks.
        states: States to continue from, as ``state_dict`` returns them.
        tensors: Tensors to continue from, as ``stage_tensors`` returns them, by the numbers of
            the stages.

    Raises:
        OptionError: An object is not a callback.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] = (),
        states: Mapping[str, dict[str, Any]] | None = None,
        tensors: Mapping[int, StageTensors] | None = None,
    ) -> None:
        self._states = dict(states or {})
        self._tensors = dict(tensors or {})
        self._callbacks: dict[str, Callback] = {}
        counts: Counter[str] = Counter()
        for callback in callbacks:
            kind = type(callback).__name__
            if not isinstance(callback, Callback):
                raise OptionError(
                    f"a callback is {callback!r}; give an object of a class that is derived "
                    "from hocket.callbacks.Callback"
                )
            self._callbacks[f"{kind}.{counts[kind]}" if counts[kind] else kind] = callback
            counts[kind] += 1

    def started(self, trainer: TrainerView, callbacks: Sequence[Callback]) -> "CallbackList":
        """Return other callbacks, started with the states of these."""
        new = CallbackList(callbacks, self.state_dict(), self._tensors)
        for name, callback in new._callbacks.items():
            callback.on_start(trainer, new._states.get(name))
            for index, kept in self._tensors.items():
                stage = next(stage for stage in trainer.stages if stage.index == index)
                if kept.get(name):
                    callback.load_stage_tensors(stage, kept[name])
        return new

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks.values())

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the states of all callbacks, also of those that are not there.

        Raises:
            OptionError: One is not of JSON values.
        """
        states = dict(self._states)
        for name, callback in self._callbacks.items():
            # Copied, as the checkpoint is written later.
            state = callback.state_dict()
            try:
                states[name] = json.loads(json.dumps(state, sort_keys=True))
            except (TypeError, ValueError) as error:
                raise OptionError(
                    f"the callback {name} has a state that a checkpoint cannot keep: {error}; "
                    "let its state_dict return JSON values: dicts with text as keys, lists, "
                    "text, numbers of Python, True, False and None"
                ) from error
        return states

    def stage_tensors(self, stage: Stage) -> StageTensors:
        """Return the tensors of all callbacks for a stage, also of those that are not there.

        Raises:
            OptionError: One has another name than the weights and buffers of the stage, by
                which another cut of the network would find it.
        """
        kept = {name: each.stage_tensors(stage) for name, each in self._callbacks.items()}
        known = named_tensors(stage.module).keys()
        for name, tensors in kept.items():
            if unknown := tensors.keys() - known:
                raise OptionError(
                    f"{name} keeps tensors for stage {stage.index} under the names "
                    f"{', '.join(sorted(unknown))}, and its layers have no weight or buffer of "
                    "these names; keep what belongs to none in state_dict"
                )
        return dict(self._tensors.get(stage.index, {})) | kept
