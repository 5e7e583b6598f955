"""Law: every option, when it is set, changes what it says it changes, or is refused.

Each option has two values and an observation that has to differ between them. An option that
nobody has written a row for fails the last test of its table.
"""

import dataclasses
import inspect
import json
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from contract.small import Trained, bits, conv, coupled, data, mlp, sgd
from contract.small import train as train_stages
from hocket import Trainer, cross_entropy
from hocket.data import InMemory
from hocket.errors import HocketError, NonFiniteError, OptionError
from hocket.methods import METHODS, DGLAsync, build_method, method_options
from hocket.methods.method import Method
from hocket.runs import resolve
from hocket.runs import train as runs_train
from hocket.runs.config import RunConfig
from hocket.runs.train import train
from unit.callbacks.test_tracking import Notes

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """Two values of an option, what differs between them, and what it has no effect without.

    Attributes:
        refused: Whether the other value is refused here.
    """

    values: tuple[Any, Any]
    observe: Callable[..., object]
    beside: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False


# Options of a trainer.


def fitted(batches: Any = None, net: Any = mlp, **options: Any) -> Trained:
    """Train for two epochs."""
    events: list[Any] = []
    options = {"method": "fdg", "optimizer": sgd, "stages": 2, **options}
    network = nn.Sequential(*net(2, dropout=0.3))
    options.setdefault("watchers", [lambda event, _: events.append(str(event))])
    if net is conv:
        network.float()
    trainer = Trainer(network, **options)
    batches = batches or data(net, 4)
    if net is conv:
        batches = [(x.float(), y) for x, y in batches]
    trainer.fit(batches, epochs=2, progress=False)
    return Trained(trainer, events)


def weights(**options: Any) -> object:
    return bits(dict(fitted(**options).trainer.network.state_dict()))


def events(**options: Any) -> object:
    return fitted(**options).events


def evaluated(**options: Any) -> object:
    return fitted(**options).trainer.evaluate(data(mlp, 2))


def strides(**options: Any) -> object:
    return [p.stride() for p in fitted(net=conv, **options).trainer.network.parameters()]


def graphs(**options: Any) -> object:
    built = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    fitted(**options)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"] - built


def half(**options: Any) -> object:
    network = nn.Sequential(*(stage.float() for stage in mlp(2)))
    trainer = Trainer(network, optimizer=sgd, **options)
    trainer.fit([(x.float(), y) for x, y in data(mlp, 4)], epochs=1, progress=False)
    return bits(dict(network.state_dict()))


def compared(**options: Any) -> object:
    seen: list[int] = []
    fitted(on_gradient_error=lambda error: seen.append(error.batch), **options)
    return seen


def told(**options: Any) -> object:
    TOLD.clear()
    fitted(**options)
    return list(TOLD)


TOLD: list[str] = []


def spans(**options: Any) -> object:
    return len(fitted(**options).trainer.timeline().spans)


def saved(tmp_path: Path, **options: Any) -> object:
    fitted(**options).trainer.save(tmp_path)
    return "a checkpoint"


def with_nan(**options: Any) -> object:
    """Events of a training with NaN in a batch, or those before it ended."""
    batches, seen = data(mlp, 4), []
    batches[1][0][0, 0] = float("nan")
    with suppress(NonFiniteError):
        fitted(batches, watchers=[lambda event, _: seen.append(str(event))], **options)
    return seen


def plateau_rates(**options: Any) -> object:
    """Learning rates at the end, by a metric that stays the same or one that rises."""
    scheduler = partial(ReduceLROnPlateau, mode="max", patience=0)
    metrics = {"same": lambda *_: 1.0, "rising": lambda *_: float(len(seen))}
    seen: list[str] = []
    options |= {"scheduler": scheduler, "metrics": metrics, "method": "fdg", "stages": 2}
    trainer = Trainer(nn.Sequential(*mlp(2)), optimizer=sgd, **options)
    batches = data(mlp, 3)
    trainer.fit(
        batches, batches, epochs=4, progress=False, on_epoch=lambda epoch: seen.append("")
    )
    return [stage.updater.optimizer.param_groups[0]["lr"] for stage in trainer.stages]


FREE = {"method": DGLAsync(buffer=2)}
SCHEDULED = {"scheduler": partial(StepLR, step_size=1)}
TRAINER = {
    "optimizer": Row((sgd, partial(sgd, lr=0.01)), weights),
    "stages": Row((2, 3), events),
    "method": Row(("fdg", "adl"), weights),
    "scheduler": Row((None, partial(StepLR, step_size=1)), weights),
    "scheduler_unit": Row(("epoch", "update"), weights, SCHEDULED),
    "plateau_metric": Row(("same", "rising"), plateau_rates),
    "warmup_updates": Row((0, 3), weights),
    "clip": Row((None, 0.1), weights),
    "loss": Row((cross_entropy, lambda o, t: 2 * cross_entropy(o, t)), weights),
    "evaluation_loss": Row((None, lambda o, t: 2 * cross_entropy(o, t)), evaluated),
    "seed": Row((0, 1), weights),
    "precision": Row(("fp32", "bf16"), half),
    "channels_last": Row((False, True), strides),
    "compile": Row((False, "aot_eager"), graphs),
    "streams": Row((False, True), weights, refused=True),
    "cuda_graphs": Row((False, True), weights, refused=True),
    "watchers": Row(
        ([lambda event, _: TOLD.append(str(event))], [lambda *_: TOLD.append("other")]), told
    ),
    "gradient_error_every": Row((1, 2), compared),
    "on_gradient_error": Row(
        (lambda error: TOLD.append("one"), lambda error: TOLD.append("two")),
        told,
        {"gradient_error_every": 1},
    ),
    "replicas": Row((1, 2), weights),
    "record_timeline": Row((False, True), spans),
    "codec": Row((None, "int8"), weights),
    "resumable": Row((True, False), saved, refused=True),
    "stage_speeds": Row(((1.0, 1.0), (1.0, 0.5)), weights, FREE),
    "on_nan": Row(("skip", "stop"), with_nan),
    "check_every": Row((1, 2), with_nan),
    "skip_batches": Row(((), (1,)), weights),
    "split_batch": Row((None, lambda batch: (2 * batch[0], batch[1])), weights),
    "metrics": Row(({}, {"mean": lambda output, targets: output.mean()}), evaluated),
}
# What shows among several processes, or on a GPU, only.
ELSEWHERE = {
    "device": "contract/test_distributed.py::test_on_gpus_processes_have_what_one_process_has",
    "timeout_s": "unit/distributed/test_failures.py::test_an_action_has_a_limit",
    "slow_timeout_s": "unit/distributed/test_failures.py::test_a_slow_phase_has_a_limit",
    "checksum": "contract/test_ports.py::test_without_checksums_damaged_tensors_are_accepted",
    "batchnorm": "contract/test_distributed.py::test_replicas_are_the_larger_batch",
    "replica_delay": "contract/test_replicas_apart.py::"
    "test_processes_have_what_the_naive_twin_has",
    "meet": "contract/test_replicas_apart.py::test_processes_have_what_the_naive_twin_has",
    "broadcast": "contract/test_same_training.py::"
    "test_processes_that_were_given_the_same_train_and_may_take_the_weights_of_the_first",
}


def assert_an_effect(name: str, row: Row, *place: Path) -> None:
    first, other = (
        partial(row.observe, *place, **{**row.beside, name: value}) for value in row.values
    )
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        seen = first()
        if row.refused:
            with pytest.raises(HocketError):
                other()
        else:
            assert seen != other()


@pytest.mark.parametrize("name", TRAINER)
def test_every_option_of_a_trainer_has_an_effect(name, tmp_path):
    row = TRAINER[name]
    place = [tmp_path] if "tmp_path" in inspect.signature(row.observe).parameters else []
    assert_an_effect(name, row, *place)


def test_every_option_of_a_trainer_has_a_row():
    given = set(inspect.signature(Trainer).parameters) - {"network", "options"}
    assert given == TRAINER.keys() | ELSEWHERE.keys()
    assert not TRAINER.keys() & ELSEWHERE.keys()
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE)


# Options of methods.

OTHER_VALUES = {
    "anneal": 3,
    "accumulate": 3,
    "backward_delay": 2,
    "buffer": 1,
    "depth": 1,
    "first_stage_rate": 0.5,
    "forward_delay": 2,
    "head": "cnn",
    "hold": "vertical",
    "infopro": (1, 1, 1, 1),
    "linearize": "recompute",
    "reach": 1,
    "reuse": 2,
    "shrink": 0.5,
    "similarity": 0.5,
    "width": 0.5,
}
EITHER = {
    "epoch_end": ("carry", "drain"),
    "labels": (False, True),
    "recompute": (False, True),
    "order": ("forward-first", "backward-first"),
    "reduce": ("mean", "sum"),
    "statistics": ("forward", "both"),
}
NEEDED = {
    "buffer": {"reuse": 2},  # else the freshest packet is always among the least used
    "reduce": {"accumulate": 2},
    "reuse": {"buffer": 3},
    ("adl-official", "hold"): {"linearize": "stash"},
    ("pipedream-2bw", "forward_delay"): {"accumulate": 6},
    ("dgl", "backward_delay"): {"reach": 1},
    ("bp", "epoch_end"): {"accumulate": 2},  # else nothing is in flight between two epochs
    ("dni", "epoch_end"): {"forward_delay": 1},
    ("cdni", "epoch_end"): {"forward_delay": 1},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_a_method_has_an_effect(method):
    """On weights and statistics of the layers, the order of actions, or what a stage keeps."""
    for name, default in method_options(method).items():
        other = next(v for v in EITHER.get(name, (OTHER_VALUES.get(name),)) if v != default)
        beside = NEEDED.get(name, {}) | NEEDED.get((method, name), {})
        net = conv if name in ("statistics", "head", "infopro") else mlp
        net = coupled if method == "petra" else net
        seen = [
            left_by(build_method(method, **beside, **{name: value}), net)
            for value in (default, other)
        ]
        assert seen[0] != seen[1], name


@cache
def left_by(method: Method, net: Callable[..., list[nn.Module]]) -> object:
    """What may differ after a training; that of the defaults serves many options."""
    modules, speeds = net(3, dropout=0.1), (0.4, 1.0, 1.7) if method.free_running else None
    # Small steps, as synthesizers on networks as small as these need them.
    done = train_stages(method, modules, data(net, 7), epochs=2, lr=1e-3, stage_speeds=speeds)
    order = [str(event.action) for event in done.events]
    keeps = [stage.core.linearizer.recomputes for stage in done.trainer.stages]
    return bits([dict(m.state_dict()) for m in modules]), order, keeps


# Options of a run.


class Reached(Exception):
    """The trainer was built."""


def given_to_trainer(**choices: Any) -> dict[str, Any]:
    """What a run gives to its trainer."""
    building = patch.object(runs_train, "Trainer", side_effect=Reached)
    with building as built, pytest.raises(Reached):
        train(small(**choices))
    given: dict[str, Any] = built.call_args.kwargs
    return vars(given["options"]) | given


DATA = "synthetic:shape=[5],classes=3,examples=32,test_examples=8"


def small(**choices: Any) -> RunConfig:
    settings = {
        "network": "mlp:hidden=[6,6]",
        "data": DATA,
        "batch_size": 8,
        "epochs": 1,
        "log_every": 1,
    }
    return RunConfig(**{**settings, **choices})


def ran(tmp_path: Path, **choices: Any) -> Path:
    """Train in a new folder; return it."""
    choices.setdefault("run_dir", tmp_path / str(len(list(tmp_path.iterdir()))))
    return train(small(**choices)).folder


def network_file(tmp_path: Path, **choices: Any) -> object:
    return bits(dict(torch.load(ran(tmp_path, **choices) / "network.pt")))


def row_count(tmp_path: Path, **choices: Any) -> object:
    return len((ran(tmp_path, **choices) / "metrics.jsonl").read_text().splitlines())


def metric_names(tmp_path: Path, **choices: Any) -> object:
    return set(
        re.findall(r'"(\w+)":', (ran(tmp_path, **choices) / "metrics.jsonl").read_text())
    )


def file_names(tmp_path: Path, **choices: Any) -> object:
    folder = ran(tmp_path, **choices)
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted(re.sub(r"\d{6,}.*", "", name) for name in names)


def tracked(tmp_path: Path, **choices: Any) -> object:
    notes = Notes()
    kind = Mock(return_value=notes)
    with patch.dict(resolve.TRACKERS, mlflow=kind), patch.object(resolve, "import_extra"):
        ran(tmp_path, **choices)
    return notes.rows, notes.closed


def other_weights(tmp_path: Path, told: str, name: str, **choices: Any) -> object:
    folder = ran(tmp_path, **choices)
    found = json.loads((folder / "summary.json").read_text())[told]
    assert (folder / f"network-{name}.pt").exists() == (found is not None)
    return found


best_epoch = partial(other_weights, told="best_epoch", name="best")
averaged_weights = partial(other_weights, told="averaged", name="averaged")


def threads(tmp_path: Path, **choices: Any) -> object:
    before = torch.get_num_threads()
    try:
        ran(tmp_path, **choices)
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def preparing_threads(tmp_path: Path, **choices: Any) -> object:
    """Names of the threads that take examples."""
    names = set()

    def note(*_: Any) -> Any:
        names.add(threading.current_thread().name.split("_")[0])
        return take(*_)

    take = InMemory.take
    with patch.object(InMemory, "take", note):
        ran(tmp_path, **choices)
    return names


def folder_name(tmp_path: Path, **choices: Any) -> object:
    return ran(tmp_path, **{**choices, "run_dir": tmp_path / choices["run_dir"]}).name


def on_full_disk(tmp_path: Path, **choices: Any) -> object:
    with patch("hocket.checkpoint.writer.write_file", side_effect=OSError(28, "No space")):
        return file_names(tmp_path, **choices)


SAVING = {"checkpoint_every": 1}
IMAGES = {"data": "synthetic:shape=[2,4,4],classes=3,examples=32,test_examples=8"}
RUN = {
    "method": Row(("fdg", "dgl"), network_file),
    "stages": Row((1, 2), network_file),
    "plan": Row(("balanced", "head"), network_file),
    "network": Row(("mlp:hidden=[6,6]", "mlp:hidden=[5]"), network_file),
    "data": Row((DATA, f"{DATA},noise=2.0"), network_file),
    "data_dir": Row((None, Path("none")), network_file, refused=True),
    "workers": Row((0, 1), preparing_threads),
    "hold_out": Row((0.0, 0.25), network_file),
    "epochs": Row((1, 2), network_file),
    "updates": Row((3, 5), network_file, {"epochs": RunConfig.epochs}),
    "evaluate_every": Row((2, 3), row_count),
    "keep_best": Row(("none", "test_error"), best_epoch),
    "average_weights": Row((0.0, 0.5), averaged_weights),
    "early_stopping": Row((0, 1), row_count, {"epochs": 4, "optimizer": "SGD:lr=1e-30"}),
    "batch_size": Row((8, 4), network_file),
    "optimizer": Row(("SGD:lr=0.1", "SGD:lr=0.2"), network_file),
    "weight_decay_on": Row(("all", "matrices"), network_file),
    "mixup": Row((0.0, 0.5), network_file),
    "cutmix": Row((0.0, 0.5), network_file, IMAGES),
    "label_smoothing": Row((0.0, 0.1), network_file),
    "scheduler": Row(("none", "StepLR:step_size=1"), network_file, {"epochs": 2}),
    "extra_delay": Row((0, "1"), network_file),
    "staleness": Row(("none", "3,0"), network_file),
    "codec": Row(("none", "int8"), network_file),
    "stage_speeds": Row(("equal", "1,0.5"), network_file, {"method": "dgl-async"}),
    "threads": Row((1, 2), threads),
    "log_every": Row((1, 2), row_count),
    "gradient_error_every": Row((0, 1), metric_names),
    "checkpoint_every": Row((0, 1), file_names),
    "checkpoint_keep": Row((1, 3), file_names, SAVING),
    "on_checkpoint_error": Row(("warn", "stop"), on_full_disk, SAVING, refused=True),
    "record_timeline": Row((False, True), file_names),
    "tensorboard": Row((False, True), file_names),
    "log_to": Row(("none", "mlflow"), tracked),
    "weights_format": Row(("pt", "safetensors"), file_names),
    "run_dir": Row(("here", "there"), folder_name),
}
SAME = {
    "scheduler_unit": ("update", {"scheduler": "StepLR:step_size=1"}),
    "plateau_metric": ("train_loss", {"scheduler": "ReduceLROnPlateau:patience=3"}),
    "warmup_updates": (2, {}),
    "clip": ("batch:0.5", {}),
    "seed": (7, {}),
    "device": ("cpu", {}),
    "precision": ("bf16", {}),
    "channels_last": (True, {}),
    "compile": (True, {}),
    "streams": (True, {}),
    "cuda_graphs": (True, {}),
    "replicas": (2, {}),
    "batchnorm": ("shared", {"replicas": 2}),
    "replica_delay": (1, {"replicas": 2}),
    "meet": ("local-sgd:every=8", {"replicas": 2}),
    "timeout_s": (5.0, {}),
    "slow_timeout_s": (900.0, {}),
    "checksum": (False, {}),
    "on_nan": ("skip", {}),
    "check_every": (4, {}),
}


@pytest.mark.parametrize("name", RUN)
def test_every_option_of_a_run_has_an_effect(name, tmp_path):
    assert_an_effect(name, RUN[name], tmp_path)


@pytest.mark.parametrize("name", SAME)
def test_an_option_that_a_trainer_has_too_reaches_it(name):
    value, beside = SAME[name]
    assert given_to_trainer(**{**beside, name: value})[name] == value


def test_every_option_of_a_run_has_a_row():
    names = {each.name for each in dataclasses.fields(RunConfig)}
    assert names == RUN.keys() | SAME.keys()


ALONE = {
    "scheduler_unit": ("update", "scheduler"),
    "plateau_metric": ("test_error", "scheduler"),
    "checkpoint_keep": (2, "checkpoint_every"),
    "on_checkpoint_error": ("stop", "checkpoint_every"),
    "batchnorm": ("shared", "replicas"),
    "replica_delay": (1, "replicas"),
    "meet": ("diloco:every=8", "replicas"),
}


@pytest.mark.parametrize("name", ALONE)
def test_an_option_that_needs_another_is_refused_alone(name):
    value, needed = ALONE[name]
    said = f"{name} is {value!r}, which has no effect without {needed}; give both"
    with pytest.raises(OptionError, match=re.escape(said)):
        RunConfig(**{name: value})
    if name in inspect.signature(Trainer).parameters:
        with pytest.raises(OptionError, match=re.escape(said)):
            Trainer(mlp(2), optimizer=sgd, **{name: value})
