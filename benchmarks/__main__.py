"""``python -m benchmarks NAME`` measures; ``python -m benchmarks render FOLDER`` renders."""

import sys
from collections.abc import Sequence

from cyclopts import App

from benchmarks.accuracy import accuracy
from benchmarks.checkpoint import checkpoint
from benchmarks.compression import compression
from benchmarks.curves import curves
from benchmarks.fault_injection import faults
from benchmarks.kill_recovery import kill_recovery
from benchmarks.link import link
from benchmarks.overhead import overhead
from benchmarks.plan import plan
from benchmarks.report.render import render
from benchmarks.slowdown import slowdown
from benchmarks.speed import speed
from benchmarks.stages import stages
from benchmarks.straggler import straggler_throughput
from hocket.cli.main import run_app

MEASUREMENTS = (
    accuracy, checkpoint, compression, curves, faults, link, overhead, straggler_throughput, plan, kill_recovery,
    slowdown, speed, stages,
)  # fmt: skip

app = App(
    name="benchmarks",
    help="Measure, and render what was measured.",
    result_action="return_value",
)
for command in (*MEASUREMENTS, render):
    app.command(command)


def main(words: Sequence[str] | None = None) -> int:
    """Run a measurement; give its exit code."""
    return run_app(app, list(sys.argv[1:] if words is None else words))


if __name__ == "__main__":
    sys.exit(main())
