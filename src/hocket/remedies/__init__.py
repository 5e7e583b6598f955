"""Remedies for the staleness of gradients, one file for each paper, and their registry."""

# First, as the registry imports each file of this folder, which may take them from here.
from hocket.remedies.remedy import Remedy as Remedy
from hocket.remedies.remedy import StageInfo as StageInfo
from hocket.remedies.remedy import StageRemedy as StageRemedy
from hocket.remedies.remedy import Weights as Weights

# isort: split
from hocket.remedies.compensate import Compensate as Compensate
from hocket.remedies.compensate import CompensateAdaptively as CompensateAdaptively
from hocket.remedies.drop_late import DropLate as DropLate
from hocket.remedies.gap_aware import GapAware as GapAware
from hocket.remedies.pipemare import T1 as T1
from hocket.remedies.pipemare import T2 as T2
from hocket.remedies.pipemare import T3 as T3
from hocket.remedies.predict import Predict as Predict
from hocket.remedies.registry import REMEDIES as REMEDIES
from hocket.remedies.registry import parse_remedies as parse_remedies
from hocket.remedies.registry import remedy_options as remedy_options
from hocket.remedies.spike_compensation import SpikeCompensation as SpikeCompensation
from hocket.remedies.staleness_rate import StalenessRate as StalenessRate
