"""Tables of forecasts, for the command line."""

from collections.abc import Sequence
from dataclasses import astuple

from rich.table import Table

from hocket_lab.planner.forecast import Forecast


def forecast_table(forecasts: Sequence[Forecast]) -> Table:
    """Build a table with a row for each forecast; cells with lists are for stages 0, 1, ..."""
    titles = (
        "stages", "method", "cuts", "seconds", "imbalance", "packets, KiB", "memory, MiB",
        "extra delay", "delay", "staleness", "tick, s", "x bp", "x ddp", "x pipeline",
    )  # fmt: skip
    table = Table(
        *titles,
        title="Forecasts",
        caption="Lists are for stages 0, 1, ...: seconds of computation for a batch with an "
        "update, and peak memory. Speed-ups are over back-propagation on the fastest device, "
        "data parallelism (DDP), and a pipeline that is flushed at every update.",
    )
    for forecast in forecasts:
        table.add_row(
            str(len(forecast.times)),
            forecast.method,
            " ".join(forecast.cuts),
            " ".join(f"{stage.total_s:.3g}" for stage in forecast.times),
            f"{forecast.imbalance:.1%}",
            " ".join(f"{size / 1024:.0f}" for size in forecast.packet_bytes),
            " ".join(f"{memory.total:.1f}" for memory in forecast.memory),
            " ".join(map(str, forecast.extra_delay)) or "-",
            " ".join(map(str, forecast.delay)),
            " ".join(f"{staleness:g}" for staleness in forecast.staleness),
            f"{forecast.tick_s:.3g}",
            f"{forecast.speed_up:.2f}",
            f"{forecast.ddp_s / forecast.tick_s:.2f}",
            f"{forecast.pipeline_s / forecast.tick_s:.2f}",
        )
    return table


def forecast_stage_table(forecast: Forecast) -> Table:
    """Build a table with a row for each stage: its device, its times and its memory."""
    titles = (
        "stage", "first module", "speed", "forward, s", "backward, s", "update, s",
        "learning, s", "of the tick", "weights, MiB", "optimizer", "versions", "inputs",
        "graphs", "packets", "total", "limit",
    )  # fmt: skip
    table = Table(*titles, title=f"{forecast.title} by stage, {forecast.tick_s:.3g} s a tick")
    stages = zip(forecast.devices, forecast.times, forecast.memory, strict=True)
    for k, (device, times, memory) in enumerate(stages):
        seconds = (times.forward_s, times.backward_s, times.update_s, times.learn_s)
        table.add_row(
            str(k),
            ("(start)", *forecast.cuts)[k],
            f"{device.speed:g}",
            *(f"{value:.3g}" for value in seconds),
            f"{times.total_s / forecast.tick_s:.0%}",
            *(f"{mib:.1f}" for mib in (*astuple(memory), memory.total)),
            f"{device.memory_limit_mib:.1f}",
        )
    return table
