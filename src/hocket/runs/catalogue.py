"""Tables of the networks and of the data sets that have names."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.table import Table

from hocket import data, zoo
from hocket.data.registry import DATA


def network_table(names: Sequence[str]) -> Table:
    """Build the table of some networks: parameters, layers, summary and options."""
    table = _described_table("networks (network:option=value,...)", "parameters", "layers")
    for name in names:
        builder = zoo.NETWORKS[name]
        with torch.device("meta"):  # counts without memory
            network = builder()
        count = sum(weight.numel() for weight in network.parameters())
        options = {p.name: p.default for p in inspect.signature(builder).parameters.values()}
        sizes = (f"{count:,}", f"{len(network)}")
        table.add_row(name, *sizes, _summary(builder), _listed(options))
    return table


def data_table() -> Table:
    """Build the table of the data sets: whether they read files, summary and options."""
    table = _described_table("data sets (data:option=value,...)", "--data-dir")
    for name, loader in DATA.items():
        reads_files = "data_dir" in inspect.signature(loader).parameters
        known = data.options(name)
        table.add_row(name, "needed" if reads_files else "", _summary(loader), _listed(known))
    return table


def _described_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("name", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("summary", overflow="fold")
    table.add_column("options", overflow="fold")
    return table


def _summary(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring without its verb."""
    line = (function.__doc__ or "").partition("\n")[0].removesuffix(".")
    return line.partition("; see")[0].split(" ", 1)[1]


def _listed(defaults: dict[str, Any]) -> str:
    """Return options with their defaults; those that must be given have none."""
    return ", ".join(
        name if default is inspect.Parameter.empty else f"{name}={default}"
        for name, default in defaults.items()
    )
