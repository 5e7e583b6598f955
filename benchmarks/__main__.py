"""``python -m benchmarks NAME`` measures; ``python -m benchmarks render FOLDER`` renders.

A measurement is the command named like its file; its module is imported when it is called.
"""

import sys
from collections.abc import Sequence

from cyclopts import App

from hocket.cli.main import run_app

MEASUREMENTS = {
    "checkpoint": "Compare the step time of a training with and without checkpoints.",
    "fault-injection": "Inject random faults into small trainings, checkpoints and packets.",
    "gpu": "Compare the serial engine with plain and compiled loops on one GPU.",
    "gpu-graphs": "Compare stages with and without CUDA graphs with plain loops on one GPU.",
    "idle-link": "Time messages over TCP after pauses, with and without slow start.",
    "integrations": "Run the tests of each integration under the installed versions.",
    "kill-recovery": "Measure what it costs when a stage is killed.",
    "link": "Time methods and baselines on two nodes over links of several rates.",
    "newcomer": "Time a new environment, from pip to a model in two processes.",
    "memory": "Predict and measure the memory of stages over the delay.",
    "overhead": "Compare the serial engine with a plain PyTorch loop.",
    "speed": "Compare the samples per second of methods and baselines.",
    "target": "Measure the time to a loss on two nodes over links, of methods and baselines.",
    "versions": "Run tests under another version of Python or PyTorch.",
}

app = App(
    name="benchmarks",
    help="Measure, and render records of measurements.",
    result_action="return_value",
)
for _name, _help in MEASUREMENTS.items():
    _module = _name.replace("-", "_")
    app.command(f"benchmarks.{_module}:measure_{_module}", name=_name, help=_help)
app.command(
    "benchmarks.report.render:render",
    name="render",
    help="Write README.md and the picture of a record next to it.",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run a measurement and return its exit code."""
    return run_app(app, list(sys.argv[1:] if words is None else words))


if __name__ == "__main__":
    sys.exit(main())
