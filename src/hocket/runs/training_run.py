"""Fit of a trainer with its run folder: checkpoints, weights, timeline and summary."""

import dataclasses
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from hocket.callbacks.averaged_weights import AveragedWeights
from hocket.callbacks.best_epoch import BestWeights, EarlyStopping
from hocket.checkpoint import Checkpoints
from hocket.data import Data
from hocket.errors import NonFiniteError, OptionError, warn
from hocket.runs.config import write_json
from hocket.runs.environment import peak_mib
from hocket.runs.metrics_log import MetricsLog
from hocket.runs.resolve import ResolvedRun
from hocket.runs.run_dir import TIMELINE, cannot_write, checkpoint_dir
from hocket.runs.summary import SUMMARY, StageSummary, Summary, parse_stage_summary
from hocket.timeline import Timeline
from hocket.timeline.recorder import Fractions, SpanKind
from hocket.training.fit.interrupt import Interrupt, heard, stop_signals
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.session.session import refuse_exit
from hocket.training.trainer import Trainer
from hocket.training.weights_file import remove_other_formats, save_weights


@dataclasses.dataclass(eq=False)
class TrainingRun:
    """Fit of a trainer, with checkpoints, weights, timeline and summary in the run folder.

    The history and the first timeline are those before it was resumed.
    """

    run: ResolvedRun
    trainer: Trainer
    run_dir: Path
    log: MetricsLog
    history: dataclasses.InitVar[Sequence[EpochResult]]
    timeline_before: Timeline

    def __post_init__(self, history: Sequence[EpochResult]) -> None:
        self._config = config = self.run.config
        self._epochs, self._start_s = list(history), time.perf_counter()
        # Callbacks that the configuration asks for.
        self._best_file = self.run_dir / f"network-best.{config.weights_format}"
        self._best_weights = self._averaged_weights = self._early_stopping = None
        if config.keep_best != "none":
            self._best_weights = BestWeights(self._best_file, config.keep_best)
        if config.average_weights:
            self._averaged_weights = AveragedWeights(config.average_weights)
        if config.early_stopping:
            patience = config.early_stopping
            self._early_stopping = EarlyStopping("test_loss", patience=patience)

    def train(self, data: Data) -> Summary:
        """Train, and write network, timeline and summary.

        Raises:
            Exception: The error that ends the training; network and summary are written.
            SystemExit: The same, with a code other than 0.
        """
        budget = self.run.budget
        callbacks = (self._best_weights, self._averaged_weights, self._early_stopping)
        # Train, and write what was reached after Ctrl-C or an error.
        try:
            self.trainer.fit(
                data.train,
                data.test,
                epochs=budget.epochs,
                updates=budget.updates,
                evaluate_every=budget.evaluate_every,
                on_evaluation=self._on_evaluation if budget.evaluate_every else None,
                on_epoch=self._on_epoch,
                callbacks=[each for each in callbacks if each is not None],
                checkpoints=self._checkpoints(),
            )
        except KeyboardInterrupt as stop:
            number = int(stop.args[0]) if stop.args else int(signal.SIGINT)
            return self._end("interrupted", self._stopped(), number)
        except SystemExit as end:
            failure = end if end.code else refuse_exit(end)
            self._fail(failure)
            raise failure from None
        except Exception as error:
            self._fail(error)
            raise
        # Evaluate averaged weights, unless a signal asks one of the processes to stop.
        with Interrupt(heard(stop_signals())) as interrupt:  # that all processes end alike

            def served() -> Iterator[Any]:
                iterator = iter(data.test)
                yield from islice(iterator, 1)  # an evaluation of no batch is an error
                yield from interrupt.until_asked(iterator)

            def evaluate() -> tuple[EvaluationResult | None, int]:
                result = self.trainer.evaluate(served())
                asked = max(self.trainer.gather(interrupt.asked))
                return (None if asked else result), asked

            return self._end("finished", evaluate=evaluate)

    def _stopped(self) -> str:
        """Describe how far an interrupted training has come."""
        if not self.trainer.has_common_epochs:  # each stage counts its own
            return "stopped"
        goal = f" of {self._config.epochs}" if not self._config.updates else ""
        if goal and len(self._epochs) >= self._config.epochs:
            return "stopped after the last epoch"
        return f"stopped in epoch {len(self._epochs) + 1}{goal}"

    def _on_epoch(self, epoch: EpochResult) -> None:
        self._epochs.append(epoch)
        if self.trainer.is_main_process:
            self.log.log_epoch(epoch)

    def _on_evaluation(self, updates: int, result: EvaluationResult) -> None:
        if self.trainer.is_main_process:
            self.log.log_evaluation(self.trainer.engine.tick_count, updates, result)

    def _checkpoints(self) -> Checkpoints | None:
        """Build the settings of the run's checkpoints; None if it writes none."""
        config = self._config
        if not config.checkpoint_every:
            return None
        return Checkpoints(
            checkpoint_dir(self.run_dir),
            every=config.checkpoint_every,
            keep=config.checkpoint_keep,
            on_error=config.on_checkpoint_error,
            note=self.log.written,
        )

    def _end(
        self,
        state: str,
        message: str = "",
        signal_number: int = 0,
        evaluate: Callable[[], tuple[EvaluationResult | None, int]] | None = None,
    ) -> Summary:
        """Collect what all processes have, write it, and return the summary.

        A function evaluates the averaged weights, if they are to be evaluated; it returns the
        number of the signal that has ended the evaluation, too, or 0.
        """
        # Save the weights, also the averaged ones, which are evaluated.
        trainer = self.trainer
        trainer.collect()
        evaluation = None
        unsaved = [self._save_in_main_process("network")]
        if self._best_weights is not None and trainer.is_main_process:
            remove_other_formats(self._best_file)
        if self._averaged_weights is not None:
            with self._averaged_weights.in_place(trainer):
                unsaved.append(self._save_in_main_process("network-averaged"))
                if evaluate is not None:
                    evaluation, signal_number = evaluate()
        if state == "finished" and signal_number:
            state = "interrupted"
            message = "stopped after the last epoch, in its last evaluation"
        failures = [failure for failure in unsaved if failure]
        saved = ["the weights reached are saved"] if state == "interrupted" else []
        message = "; ".join(filter(None, [message, *(failures or saved)]))
        # Write the timeline, and the summary with the stages of all processes.
        if self._config.record_timeline:
            timeline = trainer.timeline()
            if trainer.is_main_process:
                try:
                    self.timeline_before.concatenate(timeline).write(self.run_dir / TIMELINE)
                except OptionError as error:  # the results are worth more
                    warn(str(error))
        rows = [dataclasses.asdict(stage) for stage in self._summarize_stages()]
        gathered = trainer.gather(rows)[:: self._config.replicas]
        stages = [parse_stage_summary(row) for rows in gathered for row in rows]
        return self._write_summary(state, message, stages, signal_number, evaluation)

    def _fail(self, error: Exception | SystemExit) -> None:
        """Write what this process has, without the others."""
        trainer, name = self.trainer, "network"
        network: nn.Module
        if trainer.process_name is None:
            network = trainer.network
        else:  # which has the present weights of one stage only
            name, network = f"{name}.{trainer.process_name}", trainer.stages[0].module
        try:
            unsaved = self._save_weights(network, name)
        except Exception as broken:  # a GPU that has failed does not give them back
            unsaved = f"the weights reached could not be read: {broken}"
        error.add_note(unsaved or f"the weights reached are in {self.run_dir}")
        message = "\n".join([str(error), *error.__notes__])
        state = "diverged" if isinstance(error, NonFiniteError) else "failed"
        self._write_summary(state, message, self._summarize_stages())

    def _save_in_main_process(self, name: str) -> str:
        """Write the weights of the network once, as ``_save_weights`` does."""
        trainer = self.trainer
        return self._save_weights(trainer.network, name) if trainer.is_main_process else ""

    def _save_weights(self, network: nn.Module, name: str) -> str:
        """Write the weights; return a message if they could not be written, else nothing.

        On a full disk they are written to the folder for temporary files, if that is another.
        """
        file = self.run_dir / f"{name}.{self._config.weights_format}"
        try:
            save_weights(network, file)
        except OSError as error:
            message = cannot_write(file, error)
            with suppress(OSError):
                rescue = Path(tempfile.mkdtemp(prefix=f"hocket-{self.run_dir.name[:64]}-"))
                try:
                    save_weights(network, rescue / file.name)
                    message += f"; the weights are in {str(rescue / file.name)!r} instead"
                except OSError:
                    rescue.rmdir()
            warn(message)
            return message
        remove_other_formats(file)
        return ""

    def _summarize_stages(self) -> list[StageSummary]:
        """Summarize the stages of this process."""
        trainer, method, count = self.trainer, self.run.method, self.trainer.stage_count
        # Epochs before a resume with another number of stages have other counts.
        comparable = [epoch for epoch in self._epochs if len(epoch.skipped) == count]
        return [
            StageSummary(
                layers=len(stage.module if isinstance(stage.module, Sized) else [stage.module]),
                parameters=_count_parameters(stage.module),
                extra_parameters=_count_parameters(stage.signal_network),
                delay=method.delay(stage.index, count),
                staleness=comparable[-1].staleness[stage.index] if comparable else None,
                skipped=sum(epoch.skipped[stage.index] for epoch in comparable),
                **_fractions(stage.recorder.seconds, trainer.trained_s),
                sent_mib=trainer.sent_bytes / 2**20,
                peak_mib=peak_mib(),
                compression=stage.send_stats.compression,
                lost=stage.send_stats.error,
                perplexity=stage.send_stats.perplexity,
                unsent=stage.send_stats.unsent,
                receive_stats=stage.receive_stats,
            )
            for stage in trainer.stages
        ]

    def _write_summary(
        self,
        state: str,
        message: str,
        stages: Sequence[StageSummary],
        signal_number: int = 0,
        averaged: EvaluationResult | None = None,
    ) -> Summary:
        """Build the summary, and write it in the main process."""
        # Count the time of the epochs; without one, all time since the start.
        trainer, epochs = self.trainer, self._epochs
        seconds = sum(epoch.seconds for epoch in epochs)
        seconds = seconds or time.perf_counter() - self._start_s
        # Tell why it ended before its last epoch, if it did.
        budget, early_stop = self.run.budget, ""
        is_spent = epochs and budget.is_spent(len(epochs), epochs[-1].updates or 0)
        if not is_spent and self._early_stopping is not None:
            early_stop = self._early_stopping.reason
        summary = Summary(
            state=state,
            message=message,
            folder=self.run_dir,
            epochs=tuple(epochs),
            seconds=seconds,
            samples_per_s=sum(epoch.samples for epoch in epochs) / seconds,
            stages=tuple(stages),
            cuts=trainer.plan.cuts if trainer.plan else (),
            signal=signal_number,
            averaged=averaged,
            best_epoch=None if self._best_weights is None else self._best_weights.best_epoch,
            early_stop=early_stop,
        )
        # Write it, unless the disk is full.
        if trainer.is_main_process:
            try:
                write_json(self.run_dir / SUMMARY, dataclasses.asdict(summary))
            except OSError as error:  # without it the run counts as unfinished
                unsaved = cannot_write(self.run_dir / SUMMARY, error)
                warn(unsaved)
                message = "; ".join(filter(None, [message, unsaved]))
                return dataclasses.replace(summary, message=message)
        return summary


def _fractions(seconds: Mapping[SpanKind, float], trained_s: float) -> dict[str, float | None]:
    """Return the fractions of the time that a stage has trained; None without such a time."""
    fractions = dataclasses.asdict(Fractions.of(seconds, trained_s))
    return fractions if trained_s else dict.fromkeys(fractions)


def _count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
