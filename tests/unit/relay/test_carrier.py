"""What a carrier does beside carrying, which the contracts of ports and engines test."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from hocket.relay.carrier import Direct, backend


@pytest.fixture
def direct(monkeypatch):
    """One that looks at its sends as on a GPU."""
    monkeypatch.setattr(distributed, "get_group_rank", lambda group, rank: rank)
    found = Direct(torch.device("cpu"), 1, to=None, back=None)
    found._cuda = True
    return found


def test_a_gpu_that_does_not_send_in_time_is_an_error(direct):
    never = SimpleNamespace(is_completed=lambda: False)
    with pytest.raises(RuntimeError, match="the GPU has not sent in time"):
        direct.finish(never, timeout_s=0.01)


def test_a_send_is_looked_at_until_it_is_finished(direct):
    answers = iter([False, False, True])
    direct.finish(SimpleNamespace(is_completed=lambda: next(answers)), timeout_s=10)
    assert list(answers) == []


def test_cpus_have_no_way_of_their_own():
    assert backend(torch.device("cpu")) is None
