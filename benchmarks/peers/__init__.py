"""Alternatives to Hocket, each in its fastest configuration, as baselines for its speed.

A baseline has a number of processes and prepares a training in each of them.
"""

from benchmarks.peers.baseline import Baseline as Baseline
from benchmarks.peers.baseline import PreparedTraining as PreparedTraining
from benchmarks.peers.rows import build_baseline as build_baseline
