"""One training from a run: data, network, trainer, run folder, and the end in good order."""

import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from hocket import data as datasets
from hocket.engine.compare import Comparison
from hocket.engine.trace import Event
from hocket.environment import environment
from hocket.errors import HocketError, OptionError, RunFolderError
from hocket.history import Epoch
from hocket.logs import Logs, tensorboard_writer
from hocket.method import Method
from hocket.named import Named
from hocket.parts import method_of, network_of, optimizer_of, plan_of, scheduler_of
from hocket.run import Run, publish
from hocket.stage.stage import Stage
from hocket.trainer import Trainer


@dataclass(frozen=True)
class StageSummary:
    """What the final table says of one stage.

    Attributes:
        layers: How many layers it has.
        parameters: Numbers that it trains, without auxiliary networks.
        extra_parameters: Numbers in its head or synthesizer.
        delay: Ticks between forward and backward of a batch.
        staleness: Updates in between, mean of the last epoch, measured; None without one.
    """

    layers: int
    parameters: int
    extra_parameters: int
    delay: int
    staleness: float | None


@dataclass(frozen=True)
class Summary:
    """What a training came to.

    Attributes:
        state: ``finished``, ``interrupted`` or ``failed``.
        message: Why, unless it finished.
        folder: The run folder.
        epochs: What each epoch came to.
        seconds: Time of training, without evaluations.
        samples_per_s: Inputs trained on per second.
        stages: One line for each stage.
        cuts: The layers at which stages 1, 2, ... begin.
    """

    state: str
    message: str
    folder: Path
    epochs: tuple[Epoch, ...]
    seconds: float
    samples_per_s: float
    stages: tuple[StageSummary, ...]
    cuts: tuple[str, ...]


def train(run: Run) -> Summary:
    """Train as the run says, in a new run folder.

    Whatever ends the training, the network as it was reached is saved: Ctrl-C gives the state
    ``interrupted``; an error gives ``failed``, and is raised after that.

    Raises:
        HocketError: The run is impossible, or a loss or gradient became NaN or infinite.
    """
    method = method_of(run.method)
    stages = plan_of(run)
    optimizer, scheduler = optimizer_of(run), scheduler_of(run)
    _require_device(run.device)
    if run.tensorboard:
        tensorboard_writer()
    _require_new(run.out)
    if run.threads:
        torch.set_num_threads(run.threads)
    chosen = Named.parse(run.data)
    data = datasets.load(
        chosen.name,
        data_dir=run.data_dir,
        batch_size=run.batch_size,
        seed=run.seed,
        **chosen.options,
    )
    late = _Late()
    trainer = Trainer(
        network_of(run, data),
        stages=stages,
        method=method,
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_per=run.scheduler_per,
        seed=run.seed,
        device=run.device,
        precision=run.precision,
        channels_last=run.channels_last,
        watchers=[late.watch],
        compare_every=run.compare_every,
        on_comparison=late.comparison if run.compare_every else None,
    )
    _try(trainer, data, run)
    folder = _new_folder(run)
    run = dataclasses.replace(run, out=folder)
    run.write(folder / "run.json")
    publish(folder / "environment.json", environment())
    with Logs(folder, run.log_every, tensorboard=run.tensorboard) as late.logs:
        return _fit(run, trainer, data, method, folder, late.logs)


def _try(trainer: Trainer, data: datasets.Data, run: Run) -> None:
    """Build the stages and evaluate a batch, so that misfits show before anything is written.

    Raises:
        OptionError: The network does not take the data.
    """
    batch = next(data.test.serve(0))
    try:
        trainer.evaluate([batch])
    except (RuntimeError, IndexError, TypeError) as error:
        if isinstance(error, HocketError):
            raise
        raise OptionError(
            f"the network {run.network!r} does not take the data {run.data!r}, whose inputs "
            f"have the shape {data.shape} and whose classes number {data.classes}: {error}"
        ) from error


class _Late:
    """Passes on to the logs, which exist only once the run folder does."""

    logs: Logs

    def watch(self, event: Event, stage: Stage) -> None:
        self.logs.watch(event, stage)

    def comparison(self, comparison: Comparison) -> None:
        self.logs.comparison(comparison)


def _fit(
    run: Run, trainer: Trainer, data: datasets.Data, method: Method, folder: Path, logs: Logs
) -> Summary:
    epochs: list[Epoch] = []
    start = time.perf_counter()

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        logs.epoch(epoch)

    def end(state: str, message: str = "") -> Summary:
        summary = _summary(trainer, method, folder, epochs, state, message, start)
        _save(folder, trainer.network, summary)
        return summary

    try:
        trainer.fit(data.train, data.test, epochs=run.epochs, on_epoch=on_epoch)
    except KeyboardInterrupt:
        return end("interrupted", f"stopped in epoch {len(epochs) + 1} of {run.epochs}")
    except Exception as error:
        end("failed", "\n".join([str(error), *getattr(error, "__notes__", [])]))
        error.add_note(f"what was reached is in {folder}")
        raise
    return end("finished")


def _summary(
    trainer: Trainer,
    method: Method,
    folder: Path,
    epochs: list[Epoch],
    state: str,
    message: str,
    start: float,
) -> Summary:
    count = len(trainer.stages)
    seconds = sum(epoch.seconds for epoch in epochs) or time.perf_counter() - start
    staleness = epochs[-1].staleness if epochs else (None,) * count
    return Summary(
        state=state,
        message=message,
        folder=folder,
        epochs=tuple(epochs),
        seconds=seconds,
        samples_per_s=sum(epoch.samples for epoch in epochs) / seconds,
        stages=tuple(
            StageSummary(
                layers=len(list(stage.module.children())),
                parameters=_numbers(stage.module),
                extra_parameters=_numbers(stage.signal_network),
                delay=method.delay(stage.index, count),
                staleness=staleness[stage.index],
            )
            for stage in trainer.stages
        ),
        cuts=trainer.plan.cuts if trainer.plan else (),
    )


def _save(folder: Path, network: nn.Module, summary: Summary) -> None:
    """The weights under the network's own names, and the summary beside them."""
    part = folder / "network.pt.part"
    torch.save({k: v.cpu() for k, v in network.state_dict().items()}, part)
    part.replace(folder / "network.pt")
    publish(folder / "summary.json", dataclasses.asdict(summary))


def _numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _require_device(device: str) -> None:
    available: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    kind, _, index = device.partition(":")
    if kind not in available or not (index.isdecimal() or device == kind):
        raise OptionError(f"device is {device!r}; use one of {', '.join(available)}, or cuda:1")
    if not available[kind]():
        raise OptionError(f"device is {device!r}, but PyTorch finds none here; use cpu")


def _require_new(folder: Path | None) -> None:
    if folder is not None and folder.exists():
        raise RunFolderError(
            f"the run folder {str(folder)!r} exists already; name another with --out, or move "
            "that one away"
        )


def _new_folder(run: Run) -> Path:
    """The run's folder, just made."""
    if run.out is not None:
        _require_new(run.out)
        return _made(run.out)
    method, network, data = (Named.parse(w).name for w in (run.method, run.network, run.data))
    title = f"{method}{run.stages}-{network}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"
    for n in itertools.count():
        folder = Path("runs") / (f"{title}-{n}" if n else title)
        if not folder.exists():
            break
    return _made(folder)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = f"cannot make the run folder {str(folder)!r}: {error.strerror}"
        raise RunFolderError(f"{why}; name another with --out") from error
    return folder
