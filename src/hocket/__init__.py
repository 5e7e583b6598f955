"""Hocket trains a network cut into stages that all work at the same time.

Public names are imported when they are first used (PEP 562): ``hocket --help`` does without
PyTorch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hocket.version import __version__ as __version__

if "torch" not in sys.modules:
    # Threads that spin while they wait take the cores of others. OpenMP reads the variable when
    # PyTorch loads it, and offers no later way to choose.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from hocket import callbacks as callbacks
    from hocket import codecs as codecs
    from hocket import data as data
    from hocket import errors as errors
    from hocket import methods as methods
    from hocket import optim as optim
    from hocket import remedies as remedies
    from hocket import signals as signals
    from hocket import zoo as zoo
    from hocket.checkpoint import Checkpoints as Checkpoints
    from hocket.errors import HocketError as HocketError
    from hocket.methods import ADL as ADL
    from hocket.methods import BP as BP
    from hocket.methods import DDG as DDG
    from hocket.methods import DGL as DGL
    from hocket.methods import DNI as DNI
    from hocket.methods import DSP as DSP
    from hocket.methods import FDG as FDG
    from hocket.methods import FR as FR
    from hocket.methods import PACI as PACI
    from hocket.methods import PETRA as PETRA
    from hocket.methods import DGLAsync as DGLAsync
    from hocket.methods import GPipe as GPipe
    from hocket.methods import OneFOneB as OneFOneB
    from hocket.methods import PipeDream as PipeDream
    from hocket.methods import PipeDream2BW as PipeDream2BW
    from hocket.methods.method import Method as Method
    from hocket.partition import Plan as Plan
    from hocket.partition import cut as cut
    from hocket.partition import untie as untie
    from hocket.program.program import unroll as unroll
    from hocket.program.text import format_program as format_program
    from hocket.runs.plot import draw_program as draw_program
    from hocket.runs.results import results as results
    from hocket.signals.losses import cross_entropy as cross_entropy
    from hocket.stage.training_options import TrainingOptions as TrainingOptions
    from hocket.training.results.metrics import EpochResult as EpochResult
    from hocket.training.results.metrics import EvaluationResult as EvaluationResult
    from hocket.training.trainer import Trainer as Trainer

_METHODS = (
    "ADL", "BP", "DDG", "DGL", "DGLAsync", "DNI", "DSP", "FDG", "FR", "GPipe", "OneFOneB",
    "PACI", "PETRA", "PipeDream", "PipeDream2BW",
)  # fmt: skip
_MODULES = {
    **dict.fromkeys(_METHODS, "hocket.methods"),
    "Checkpoints": "hocket.checkpoint",
    "EpochResult": "hocket.training.results.metrics",
    "EvaluationResult": "hocket.training.results.metrics",
    "HocketError": "hocket.errors",
    "Method": "hocket.methods.method",
    "Plan": "hocket.partition",
    "Trainer": "hocket.training.trainer",
    "TrainingOptions": "hocket.stage.training_options",
    "cross_entropy": "hocket.signals.losses",
    "cut": "hocket.partition",
    "draw_program": "hocket.runs.plot",
    "format_program": "hocket.program",
    "results": "hocket.runs.results",
    "unroll": "hocket.program",
    "untie": "hocket.partition",
}
_PACKAGES = (
    "callbacks", "codecs", "data", "errors", "methods", "optim", "remedies", "signals", "zoo",
)  # fmt: skip

__all__ = [
    "ADL", "BP", "DDG", "DGL", "DNI", "DSP", "FDG", "FR", "PACI", "PETRA", "Checkpoints",
    "DGLAsync", "EpochResult", "EvaluationResult", "GPipe", "HocketError", "Method", "OneFOneB",
    "PipeDream", "PipeDream2BW", "Plan", "Trainer", "TrainingOptions", "callbacks", "codecs",
    "cross_entropy", "cut", "data", "draw_program", "errors", "format_program", "methods",
    "optim", "remedies", "results", "signals", "unroll", "untie", "zoo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: Hocket has no such name.
    """
    if name in _PACKAGES:
        return import_module(f"hocket.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return [*__all__, "__version__"]
