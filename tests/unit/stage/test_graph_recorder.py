"""The recorder of CUDA graphs, with a CUDA that only writes down what is asked of it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hocket.errors import OptionError
from hocket.stage.graphs.recorder import CudaRecorder, build_recorder, fill
from hocket.stage.graphs.step import ReplayedStep


@pytest.fixture
def calls(monkeypatch):
    """What is asked of CUDA, in order."""
    asked, pools = [], iter("ABC")

    class Graph:
        def replay(self):
            asked.append("replay")

    @contextmanager
    def capture(graph, *, pool, stream, capture_error_mode):
        asked.append(f"capture on {stream} into {pool}, {capture_error_mode}")
        yield
        asked.append("end of capture")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "own stream")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return asked


@pytest.mark.parametrize("shares", [True, False])
def test_a_capture_computes_nothing_and_so_is_replayed_at_once(shares, calls):
    recorder = build_recorder(torch.device("cuda"))
    assert isinstance(recorder, CudaRecorder)
    memory = None if shares else recorder.new_memory()
    replay = recorder.record(lambda: calls.append("function"), memory)
    first = f"capture on own stream into {'A' if shares else 'B'}, thread_local"
    assert calls == [first, "function", "end of capture", "replay"]
    replay()
    assert calls[4:] == ["replay"]


def test_a_device_without_graphs_is_refused():
    with pytest.raises(OptionError, match=r"cuda_graphs.* 'cpu'"):
        build_recorder(torch.device("cpu"))


def test_inputs_are_filled_without_a_new_version():
    own, other = torch.zeros(3), torch.arange(3.0)
    same = torch.ones(2)
    fill([own, same], [other, same])
    assert (own.tolist(), own._version, same._version) == ([0.0, 1.0, 2.0], 0, 0)


def test_a_step_is_replayed_only_with_the_rate_that_was_recorded():
    """Not with one that looks like it when printed, nor in memory that may be free by now."""
    replayed = []
    recorder = SimpleNamespace(record=lambda do, memory: do() or (lambda: replayed.append(do)))
    weight, step = torch.ones(1, requires_grad=True), ReplayedStep(recorder)
    optimizer = torch.optim.SGD([weight])
    first, other = torch.tensor(0.001), torch.tensor(0.001)
    for rate, factor in [(first, 1)] * 3 + [(other, 1)] * 3 + [(other, 1.001)]:
        optimizer.param_groups[0]["lr"], weight.grad = rate.mul_(factor), torch.ones(1)
        step(optimizer)
    assert len(replayed) == 2
