"""Pipelines are cut where a step should be shortest."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.balance import Balancer, balance_pipeline
from benchmarks.peers.pipeline import one_per_process, round_robin, v_shape
from hocket.partition import Plan
from unit.benchmarks.small_workloads import exact

COSTS = st.lists(st.integers(0, 20).map(float), min_size=6, max_size=8)


def step(costs, cuts, homes, microbatches):
    ends = [0, *cuts, len(costs)]
    stages = [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]
    busy = [sum(s for s, home in zip(stages, homes, strict=True) if home == k) for k in homes]
    return microbatches * max(busy) + max(homes) * max(stages)


@pytest.mark.parametrize(
    "homes", [one_per_process(2), one_per_process(3), round_robin(2), v_shape(2), v_shape(3)]
)
@given(costs=COSTS, microbatches=st.integers(1, 8))
def test_no_other_cut_has_a_shorter_step(homes, costs, microbatches):
    found = tuple(balance_pipeline(costs, homes, microbatches))
    others = list(itertools.combinations(range(1, len(costs)), len(homes) - 1))
    shortest = min(step(costs, cuts, homes, microbatches) for cuts in others)
    assert found in others
    assert step(costs, found, homes, microbatches) == shortest


def test_layers_are_timed_once_for_each_size_of_micro_batch_and_their_times_decide():
    balance = Balancer(exact())
    plan = balance.plan(one_per_process(2), microbatches=2)
    assert balance.plan(one_per_process(2), microbatches=2) == plan
    balance.plan(v_shape(2), microbatches=4)
    assert list(balance.times_s) == [6, 3]
    assert list(balance.times_s[6]) == [f"conv{n}" for n in range(5)] + ["head"]
    times_s = {f"conv{n}": 1.0 for n in range(5)} | {"head": 3.0}
    balance = Balancer(exact(), times_s={6: times_s, 3: times_s | {"head": 1.0}})
    assert balance.plan(one_per_process(2), microbatches=2) == Plan(("conv4",))
    assert balance.plan(one_per_process(2), microbatches=4) == Plan(("conv3",))
