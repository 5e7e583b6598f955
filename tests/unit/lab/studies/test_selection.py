"""The published rule by which a row gets its learning rate."""

import math

import pytest

from hocket_lab.studies.selection import best_rate, is_at_edge, is_chosen


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ({0.1: [2.0, 1.0], 0.2: [1.4, 1.5], 0.4: [1.0, 3.0]}, (0.2,)),
        ({0.2: [1.5], 0.1: [1.5], 0.4: [1.5]}, (0.1,)),
        ({0.1: [9.0, 9.0], 0.2: [0.0, math.inf]}, (0.1,)),
        ({0.1: [math.inf], 0.2: [math.inf]}, None),
        ({None: [1.0]}, (None,)),
    ],
    ids=["least mean", "smaller of equal ones", "one diverged", "all diverged", "no rates"],
)
def test_the_rule(values, best):
    assert best_rate(values) == best


def test_a_rate_at_the_edge_is_known_and_an_older_record_has_the_runs_at_the_best_rate():
    at_edge = [rate for rate in (0.1, 0.2, 0.4) if is_at_edge(rate, [0.2, 0.1, 0.4])]
    assert at_edge == [0.1, 0.4]
    assert not is_at_edge(0.1, [0.1])
    assert not is_at_edge(None, [None])
    row = {"learning_rate": 0.1}
    assert is_chosen(row, {"learning_rate": 0.1})
    assert not is_chosen(row, {"learning_rate": 0.2})
    assert not is_chosen(row, {"learning_rate": 0.1, "chosen": False})
