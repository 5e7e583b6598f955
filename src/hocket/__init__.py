"""Hocket trains a network cut into stages that all work at the same time."""

from hocket import data as data
from hocket import zoo as zoo
from hocket.checkpoint import Checkpoints as Checkpoints
from hocket.errors import HocketError as HocketError
from hocket.losses import cross_entropy as cross_entropy
from hocket.methods import ADL as ADL
from hocket.methods import BP as BP
from hocket.methods import DDG as DDG
from hocket.methods import DGL as DGL
from hocket.methods import DNI as DNI
from hocket.methods import DSP as DSP
from hocket.methods import FDG as FDG
from hocket.methods import FR as FR
from hocket.methods.method import Method as Method
from hocket.partition import Plan as Plan
from hocket.partition import cut as cut
from hocket.program import unroll as unroll
from hocket.training.metrics import EvaluationResult as EvaluationResult
from hocket.training.trainer import Trainer as Trainer
