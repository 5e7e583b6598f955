"""Messages with a valid checksum that are not packets: each is refused, and says why."""

import json
import os
import queue
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.timeline import Recorder
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import ConnectionPort, Lookahead
from unit.transport.lanes import Lanes

TWO = torch.arange(2.0)


class Pipe(Lanes):
    """Backend that keeps what is sent, and receives what is put into it."""

    def __init__(self):
        super().__init__()
        self.parts = []
        self.arriving = queue.Queue()

    def send(self, tensor, lane):
        self.parts.append(wire.tensor_bytes(tensor).clone())

    def take(self, lane):
        data = self.arriving.get()
        assert data is not None, "the test is over"
        return data


def connect(pipe):
    wait = SimpleNamespace(until=lambda attempt: attempt(60.0))
    failures = SimpleNamespace(
        waiting_for=lambda activity, ranks, awaited: nullcontext(wait),
        peer_lost=lambda rank, text: AssertionError(f"the connection is gone: {text}"),
    )
    names = ["stage 0", "stage 1"]
    world = SimpleNamespace(name=names[1], names=names, failures=failures)
    return Connection(world, 0, 4, torch.device("cpu"), pipe)


def forged(parts, change):
    """Return the parts of a message with another header, whose checksum fits."""
    first, *others = parts
    header = change(wire.decode_header(first, lambda _: others.pop(0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_HEADER_BYTES", 2**40)
        if isinstance(header, str):
            patch.setattr(json, "dumps", str)
        written = [part for part in wire.encode_header(header) if part is not None]
    return [*written, *others]


def exchange(packet, change=lambda header: header):
    """Send an activation, change the header on its way, and return what is received."""
    pipes = Pipe(), Pipe()
    ends = (Activation, Gradient), (Gradient, Activation)
    try:
        sender, receiver = (
            ConnectionPort(*types, connect(pipe), Lookahead(), Recorder(0, keep=False), 0)
            for types, pipe in zip(ends, pipes, strict=True)
        )
        sender.send(packet)
        for part in forged(pipes[0].parts, change):
            pipes[1].arriving.put(part)
        return receiver.receive(packet.batch)
    finally:
        for pipe in pipes:
            pipe.arriving.put(None)


ACTIVATION = Activation(0, 0, (TWO, {"a": TWO + 1}), (True, False), [TWO.long(), None])


def replacing(**values):
    return lambda header: header | values


def without(name):
    return lambda header: {key: value for key, value in header.items() if key != name}


def with_tensor(*spec):
    """Replace the description of the first tensor."""
    return lambda header: header | {"tensors": [list(spec), *header["tensors"][1:]]}


def with_tree(name, structure):
    return lambda header: header | {"trees": header["trees"] | {name: structure}}


with_values = partial(with_tree, "values")


def without_tree(name):
    return lambda header: header | {"trees": without(name)(header["trees"])}


LIMIT = wire.MAX_HEADER_BYTES
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MALFORMED = "stage 1, from stage 0, after nothing: a packet arrived with a malformed header ("
CONTENTS = "stage 1, from stage 0: activation 0 is malformed ("
UNREADABLE = {
    "no kind": (without("kind"), f"{MALFORMED}KeyError: 'kind'"),
    "a tensor that is null": (replacing(tensors=[None] * 3), f"{MALFORMED}TypeError: "),
    "a tensor of two values": (with_tensor("float32", [2]), f"{MALFORMED}ValueError: "),
    "a shape that is a number": (with_tensor("float32", 2, [1]), f"{MALFORMED}TypeError: "),
    "an unknown type": (with_tensor("float33", [2], [1]), "of the unknown type 'float33'"),
    "a type that is a number": (with_tensor(7, [2], [1]), f"{MALFORMED}TypeError: "),
    "a size beyond memory": (with_tensor("uint8", [MEMORY], [1]), f"have {MEMORY + 24} bytes"),
    "a long header": (replacing(more="x" * LIMIT), f"and may have {LIMIT}; let the stage"),
    "a deep header": (lambda _: "[" * 100_000, f"{MALFORMED}RecursionError: "),
    "a header that is a list": (lambda _: "[1]", f"{MALFORMED}TypeError: "),
    "many digits": (lambda _: '{"kind": ' + "1" * 9999 + "}", f"{MALFORMED}ValueError: "),
    "no epoch": (without_tree("epoch"), f"{CONTENTS}KeyError: 'epoch'); resume"),
    "no end": (without_tree("end_batch"), f"{CONTENTS}KeyError: 'end_batch')"),
    "an end of text": (with_tree("end_batch", "soon"), f"{CONTENTS}ValueError: "),
    "a tensor that is not there": (with_values({"tensor": 3}), f"{CONTENTS}IndexError: "),
    "two structures": (with_values({"list": [], "dict": []}), f"{CONTENTS}ValueError: "),
    "a tuple of a number": (with_values({"tuple": 7}), f"{CONTENTS}TypeError: "),
    "a key that is a list": (with_values({"dict": [[[], 1]]}), f"{CONTENTS}TypeError: "),
}


def test_the_packet_arrives_if_nothing_is_changed():
    assert exchange(ACTIVATION).values[1]["a"].tolist() == [1, 2]


@pytest.mark.parametrize(("change", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_header_that_is_not_that_of_a_packet_is_refused_in_words(change, words):
    with pytest.raises(TransitError) as caught:
        exchange(ACTIVATION, change)
    text = str(caught.value)
    assert text.startswith("stage 1, from stage 0")
    assert words in text
    assert "resume from the last checkpoint" in text
    assert len(text) < 500


def test_a_structure_that_is_deep_is_refused_in_words(request):
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(1000)  # Python's own; the compiler of PyTorch raises it
    deep = '{"list": [' * 600 + "]}" * 600

    def change(header):
        return json.dumps(with_values("deep")(header)).replace('"deep"', deep)

    with pytest.raises(TransitError, match="RecursionError: "):
        exchange(ACTIVATION, change)


def test_a_header_that_is_too_large_is_not_sent():
    values = ["x" * LIMIT]
    with pytest.raises(PacketError, match=r"the header of a packet has .* let the stage"):
        exchange(Activation(0, 0, values, (), None))
