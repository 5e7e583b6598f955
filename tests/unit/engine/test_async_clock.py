"""Turns fall to stages by their rates, the same ones at every run."""

from collections import Counter

import pytest

from hocket.engine.async_simulated import EventClock
from hocket.errors import OptionError
from hocket.methods.simulated.stage_speeds import StageSpeeds


def turns(pace, count):
    clock = EventClock(pace)
    return [clock.next() for _ in range(count)]


@pytest.mark.parametrize("kind", ["regular", "random"])
def test_turns_are_in_proportion_to_rates_however_long(kind):
    count = Counter(turns(StageSpeeds((1.0, 0.5, 2.0), kind), 7000))
    for stage, share in enumerate([2000, 1000, 4000]):
        assert count[stage] == pytest.approx(share, rel=0.06)
    for rate in (1.0, 0.1, 3.0):
        assert turns(StageSpeeds((rate,) * 3), 3000) == [0, 1, 2] * 1000
    assert turns(StageSpeeds((10.0, 1.0)), 1100) == [*[0] * 10, 1] * 100


def test_chance_begins_with_the_seed():
    first, again, other = (turns(StageSpeeds((1, 1), "random", seed), 50) for seed in (1, 1, 2))
    assert first == again != other


def test_a_stage_must_have_a_pace_and_its_turns_a_known_kind():
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(OptionError, match=f"the speed of stage 1 is {rate}; use a number"):
            StageSpeeds((1.0, rate))
    with pytest.raises(OptionError, match="stage_timing is 'wild'; use 'regular' or 'random'"):
        StageSpeeds((1.0,), "wild")
