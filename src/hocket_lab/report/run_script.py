"""The Python script of a run of ``hocket train``, to begin a program of one's own with."""

import json
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

from hocket import zoo
from hocket.methods.simulated.delays import parse_extra_delay, parse_staleness
from hocket.options.named import Named
from hocket.options.own_function import OwnFunction
from hocket.runs.build import split_schedulers
from hocket.runs.config import RunConfig
from hocket.runs.resolve import ResolvedRun
from hocket.stage.training_options import TrainingOptions

LINE = 64
"""Characters of the longest line of a script, if it can be divided."""
OTHERS = (
    "codec", "evaluation_loss", "gradient_error_every", "record_timeline", "scheduler",
)  # fmt: skip
"""Options that are written in another form, or are for files of a run folder."""

SCRIPT = '''"""Train as `hocket train` has trained {title}."""

import torch

import hocket

{lines}
'''
GROUPS = '''
def groups(weights):
    """Let only matrices decay."""
    matrices = [weight for weight in weights if weight.dim() > 1]
    others = [weight for weight in weights if weight.dim() <= 1]
    return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

'''
"""Function of a script whose optimizer lets only matrices decay."""


def write_script(run: ResolvedRun, title: str) -> str:
    """Return a script that trains to the bits of a run, without the run's folder.

    The data are read, as the network has its sizes from them.
    """
    config = run.config
    lines = [GROUPS] if config.weight_decay_on == "matrices" else []
    lines += [f"torch.set_num_threads({config.threads})"] if config.threads else []
    lines += [f"data = {_data(config)}", *_network(run)]
    lines.append(_call("trainer = hocket.Trainer", "network", **dict(_options(run))))
    callbacks = dict(_callbacks(config))
    lines += [f"{name} = {text}" for name, text in callbacks.items()]
    lines.append(_call("trainer.fit", "data.train", "data.test", **_length(run, callbacks)))
    lines.append('torch.save(network.state_dict(), "network.pt")')
    if "average" in callbacks:
        lines.append("with average.in_place(trainer):")
        lines.append('    torch.save(network.state_dict(), "network-averaged.pt")')
    escaped = _literal(title)[1:-1]  # a folder may have any name
    return SCRIPT.format(title=escaped, lines="\n".join(lines))


def _data(config: RunConfig) -> str:
    """Return the expression that loads the data."""
    named = Named.parse(config.data)
    chosen = {
        "data_dir": config.data_dir and str(config.data_dir),
        **{name: getattr(config, name) for name in ("workers", "hold_out", "mixup", "cutmix")},
    }
    options = {"batch_size": config.batch_size, "seed": config.seed}
    options |= {name: value for name, value in chosen.items() if value} | named.options
    return _call("hocket.data.load", _literal(named.name), **_literals(options))


def _network(run: ResolvedRun) -> Iterator[str]:
    """Yield the lines that build the network."""
    named, data = Named.parse(run.config.network), run.data()
    own = OwnFunction.parse(named.name)
    if own is None:
        build, builder = zoo.NETWORKS[named.name], f"hocket.zoo.{named.name}"
    else:
        build, builder = own.load("network", object), own.function
        if own.module.endswith(".py"):
            yield "import runpy"
            yield "import sys"
            yield f"sys.path.insert(0, {str(own.file.parent)!r})"
            yield f"{builder} = runpy.run_path({own.module!r})[{own.function!r}]"
        else:
            yield f"from {own.module} import {own.function}"
    yield f"torch.manual_seed({run.config.seed})"
    options = zoo.fitting(build, data.shape, data.classes) | named.options
    yield f"network = {_call(builder, **_literals(options))}"


def _options(run: ResolvedRun) -> Iterator[tuple[str, str]]:
    """Yield the options of the trainer that are not its defaults."""
    config = run.config
    # The main arguments.
    cuts = None if isinstance(run.stages, int) else run.stages.cuts
    yield "stages", str(run.stages) if cuts is None else f"hocket.Plan({cuts})"
    yield "method", _method(config)
    yield "optimizer", _optimizer(config)
    if config.scheduler != "none":
        yield "scheduler", f"lambda optimizer: {_scheduler(config.scheduler)}"
    if config.label_smoothing:
        smoothing = f"label_smoothing={config.label_smoothing}"
        yield "loss", f"lambda output, y: hocket.cross_entropy(output, y, {smoothing})"
        yield "evaluation_loss", "hocket.cross_entropy"
    # All others, as plain values.
    defaults = vars(TrainingOptions())
    for name, value in vars(run.options).items():
        if name not in OTHERS and value not in (defaults[name], "none"):
            yield name, _literal(value)
    if config.codec != "none":
        yield "codec", _literal(config.codec)
    if config.device != "cpu":
        yield "device", _literal(config.device)


def _method(config: RunConfig) -> str:
    """Return the expression of the method, with extra delay or other staleness."""
    method = _literal(config.method)
    built = f"hocket.methods.parse_method({method})"
    if config.extra_delay:
        ticks = parse_extra_delay(config.extra_delay)
        return f"hocket.methods.with_extra_delay({built}, {ticks})"
    if config.staleness != "none":
        return f"hocket.methods.with_staleness({built}, {parse_staleness(config.staleness)})"
    return method


def _scheduler(text: str) -> str:
    """Return the expression of the scheduler of a stage."""
    module = "torch.optim.lr_scheduler"
    parts = [
        _call(f"{module}.{part.name}", "optimizer", **_literals(part.options))
        for part in split_schedulers(text)
    ]
    if len(parts) == 1:
        return parts[0]
    return _call(f"{module}.ChainedScheduler", f"[{', '.join(parts)}]")


def _optimizer(config: RunConfig) -> str:
    """Return the expression of the function that builds the optimizer of a stage."""
    named, splits = Named.parse(config.optimizer), config.weight_decay_on == "matrices"
    options = _literals(named.options)
    if named.name in ("Muon", "RotatedAdam"):
        build = "muon" if named.name == "Muon" else "rotated_adam"
        more = ["groups"] if splits else []
        return _call(f"hocket.optim.{build}", "network", *more, **options)
    weights = "groups(weights)" if splits else "weights"
    return "lambda weights: " + _call(f"torch.optim.{named.name}", weights, **options)


def _callbacks(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the callbacks of a fit, by the names of their variables."""
    if config.keep_best != "none":
        yield "best", f'hocket.callbacks.BestWeights("network-best.pt", "{config.keep_best}")'
    if config.average_weights:
        yield "average", f"hocket.callbacks.AveragedWeights({config.average_weights})"
    if patience := config.early_stopping:
        yield "stop", f'hocket.callbacks.EarlyStopping("test_loss", patience={patience})'


def _length(run: ResolvedRun, callbacks: Mapping[str, str]) -> dict[str, str]:
    """Return the options of ``fit``."""
    options = {name: repr(n) for name, n in vars(run.budget).items() if n}
    if callbacks:
        options["callbacks"] = f"[{', '.join(callbacks)}]"
    if (config := run.config).checkpoint_every:
        chosen = {
            "every": config.checkpoint_every,
            "keep": config.checkpoint_keep,
            "on_error": config.on_checkpoint_error,
        }
        options["checkpoints"] = _call(
            "hocket.Checkpoints", '"checkpoints"', **_literals(chosen)
        )
    return options


def _literal(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    # In the escapes of Python: JSON has two for a character above U+FFFF.
    return json.dumps(value, ensure_ascii=False).encode("ascii", "backslashreplace").decode()


def _literals(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: _literal(value) for name, value in options.items()}


def _call(function: str, *arguments: str, **options: str) -> str:
    """Return a call, on several lines if it is long."""
    every = [*arguments, *(f"{name}={text}" for name, text in options.items())]
    line = f"{function}({', '.join(every)})"
    if len(line) <= LINE:
        return line
    lines = indent(",\n".join(every), "    ")
    return f"{function}(\n{lines},\n)"
