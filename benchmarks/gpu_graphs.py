"""Comparison of stages with and without CUDA graphs with plain loops on one GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from benchmarks.gpu import GRAPH_ROWS, GpuSettings, compare_rows


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GraphSettings(GpuSettings):
    """Settings of the comparison of CUDA graphs; on the device ``cpu`` there are none."""

    out: Path = Path("records/gpu-graphs")
    networks: Sequence[str] = ("perceptron", "resnet20", "gpt")
    rows: Sequence[str] = tuple(GRAPH_ROWS)
    pairs: int = 3


DEFAULTS = GraphSettings()


def measure_gpu_graphs(settings: GraphSettings = DEFAULTS) -> None:
    """Time every row and a plain loop alternately, and write the record after each row.

    Raises:
        OptionError: There is no such device.
    """
    compare_rows("gpu-graphs", settings)
