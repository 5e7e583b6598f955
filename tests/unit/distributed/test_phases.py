"""The end of a chain of waits, the limits of phases, and the clock of a process that runs."""

import itertools
import time

import pytest

from hocket.distributed.failures.phases import Phase, RunningClock, Status, TimeLimits, judge

LIMITS = TimeLimits(timeout_s=60, slow_timeout_s=1800)
WAITING = Status("waiting for gradient 3 from stage 1", (1,), seconds=60)
ALL = "gathering"


def executing(seconds):
    return Status("executing F1.4 in tick 5", seconds=seconds)


def waiting(*ranks, seconds=60, activity="waiting"):
    return Status(activity, ranks, seconds=seconds)


def end_of_chain(statuses, status=WAITING):
    """Return the rank, the status and the seconds left as process 0 judges."""
    verdict = judge(0, status, statuses, LIMITS)
    return verdict.rank, verdict.status, verdict.left_s


CHAINS = {
    "an action that took too long": ({1: executing(61)}, (1, executing(61), -1)),
    "an action": ({1: executing(1)}, (1, executing(1), 59)),
    "a chain": ({1: waiting(2, seconds=1), 2: executing(70)}, (2, executing(70), -10)),
    "no answer": ({1: waiting(2)}, (2, None, 0)),
    "a chain that comes back": ({1: waiting(2), 2: waiting(0)}, (2, waiting(0), 0)),
    "a loop among others": ({1: waiting(2), 2: waiting(1)}, (2, waiting(1), 0)),
    "a loop with progress": (
        {1: waiting(2), 2: waiting(0, seconds=5)},
        (2, waiting(0, seconds=5), 55),
    ),
}


@pytest.mark.parametrize(("statuses", "end"), CHAINS.values(), ids=CHAINS)
def test_a_chain_of_waits_is_followed_to_its_end(statuses, end):
    assert end_of_chain(statuses) == end


@pytest.mark.parametrize("phase", Phase)
def test_every_other_phase_has_the_slow_limit(phase):
    slow = Status(phase, limit="slow_timeout_s", seconds=600)
    assert end_of_chain({1: slow}) == (1, slow, 1200)


def test_the_process_that_takes_no_part_in_a_collective_is_named():
    part = waiting(0, 2, activity=ALL)
    own = waiting(1, 2, activity=ALL)
    assert end_of_chain({1: part, 2: executing(1)}, own) == (2, executing(1), 59)
    assert end_of_chain({1: part}, own) == (2, None, 0)
    other = waiting(0, 1, activity=ALL)
    assert end_of_chain({1: part, 2: other}, own) == (1, part, 0)
    # A replica waits for the replicas of its stage only.
    statuses = {
        1: waiting(2, seconds=1, activity="waiting for activation 7"),
        2: executing(3),
        3: waiting(2, activity="something else"),
    }
    assert end_of_chain(statuses, waiting(1, activity="summing gradients"))[0] == 2


def test_the_clock_stands_still_while_the_process_is_suspended(monkeypatch):
    times = itertools.chain([0.0, 1.0, 2.0, 3600.0], itertools.count(3601.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = RunningClock(most_s=2.0)
    assert [clock.seconds for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
