"""Stages on streams of their own, with streams that only write down what is asked of them."""

from contextlib import contextmanager, suppress

import pytest
import torch

from contract.small import data, different, mlp, sgd, train
from hocket import cross_entropy
from hocket.distributed.world.solo_world import SoloWorld
from hocket.engine import build_here
from hocket.engine.build import build_engine
from hocket.engine.engine_parts import EngineParts
from hocket.engine.stage_streams import StageStreams, StreamPort, on_streams
from hocket.errors import OptionError
from hocket.methods import BP, FDG, DGLAsync
from hocket.stage.setup import Setup
from hocket.transport.mailbox import Edge, NoNextStage, Source
from hocket.transport.packet import Activation, Gradient


class Streams:
    """The streams of a GPU that is not there."""

    def __init__(self, monkeypatch):
        self.calls: list[str] = []
        self.current = Stream("outside", self)
        self.made = 0
        monkeypatch.setattr(torch.cuda, "Stream", self.make)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.use)

        def record_stream(tensor, stream):
            self.calls.append(f"{tuple(tensor.shape)} is used by {stream.name}")

        monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
        # As if floating point numbers were on the GPU, and others on the host.
        on_gpu = property(torch.Tensor.is_floating_point)
        monkeypatch.setattr(torch.Tensor, "is_cuda", on_gpu)

    def make(self, device):
        self.made += 1
        return Stream(f"stage {self.made - 1}", self)

    @contextmanager
    def use(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Stream:
    def __init__(self, name, streams):
        self.name, self.streams = name, streams

    def wait_stream(self, other):
        self.streams.calls.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        return f"event of {self.name}"

    def wait_event(self, event):
        self.streams.calls.append(f"{self.name} waits for {event}")


@pytest.mark.parametrize("shared", [False, True])
def test_all_streams_meet_before_and_after_a_tick(shared, monkeypatch):
    """Stages whose kernels are captured share one."""
    streams = Streams(monkeypatch)
    stages = StageStreams(torch.device("cuda", 0), 2, shared=shared)
    with suppress(ValueError), stages.tick():
        for index in range(2):
            with stages.stage(index):
                streams.calls.append(streams.current.name)
        raise ValueError("a fault")
    own = ["stage 0"] if shared else ["stage 0", "stage 1"]
    first, last = (
        [text.format(s) for s in own]
        for text in ("{} waits for outside", "outside waits for {}")
    )
    assert streams.calls == [*first, own[0], own[-1], *last]


def test_a_packet_is_waited_for_and_its_memory_kept(monkeypatch):
    streams, edge = Streams(monkeypatch), Edge("stage 0", "stage 1")
    stages = StageStreams(torch.device("cuda", 0), 2)
    (source, previous), (following, end) = on_streams(
        [Source().port(), edge.to_previous()], [edge.to_next(), NoNextStage()]
    )
    assert not isinstance(source, StreamPort)
    assert not isinstance(end, StreamPort)
    inputs = torch.ones(2, 5), torch.tensor([5, 3])  # lengths stay on the host
    packet = Activation(3, 0, inputs, (True, False), torch.ones(2))
    with stages.stage(0):
        following.send(packet)
    with stages.stage(1):
        assert previous.receive(3) is packet
        previous.send(Gradient(3, (torch.ones(2, 5), None)))
    with stages.stage(0):
        following.receive(3)
    assert streams.calls == [
        "stage 1 waits for event of stage 0",
        "(2, 5) is used by stage 1",
        "(2,) is used by stage 1",
        "stage 0 waits for event of stage 1",
        "(2, 5) is used by stage 0",
    ]


def test_a_packet_of_a_checkpoint_has_no_event(monkeypatch):
    streams, edges = Streams(monkeypatch), [Edge("stage 0", "stage 1") for _ in range(2)]
    ports = [
        on_streams([Source().port(), edge.to_previous()], [edge.to_next(), NoNextStage()])
        for edge in edges
    ]
    ports[0][1][0].send(Activation(3, 0, torch.ones(2), (True,), None))
    ports[1][1][0].load_state_dict(ports[0][1][0].state_dict())
    assert ports[1][0][1].receive(3).batch == 3
    assert streams.calls == []


def test_stages_on_streams_have_the_same_program_and_bits(monkeypatch):
    plain = train(FDG(), mlp(3), data(mlp, 5)).state
    streams, serial = Streams(monkeypatch), build_here.SerialEngine

    def build_with_streams(method, stages, source, watchers, meter, _):
        return serial(method, stages, source, watchers, meter, StageStreams("cuda", 3))

    monkeypatch.setattr(build_here, "SerialEngine", build_with_streams)
    assert not different(train(FDG(), mlp(3), data(mlp, 5)).state, plain)
    assert streams.calls.count("outside waits for stage 2") > 5


@pytest.mark.parametrize(
    ("stages", "options", "said"),
    [
        (2, {"device": "cpu"}, "2 in this process, which wait for each other, on device 'cpu'"),
        (1, {"device": "cuda", "method": BP()}, "1 in this process"),
        (2, {"device": "cuda", "method": DGLAsync()}, "2 in this process, which run freely"),
    ],
    ids=["cpu", "single", "free"],
)
def test_streams_are_refused_where_nothing_overlaps(stages, options, said):
    options = {"method": FDG(), "loss": cross_entropy, "optimizer": sgd, **options}
    setup = Setup(streams=True, **options | {"device": torch.device(options["device"])})
    with pytest.raises(OptionError, match=said):
        build_engine(EngineParts(setup, [mlp(2)] * stages, None, [], SoloWorld()))
