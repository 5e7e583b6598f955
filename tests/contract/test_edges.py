"""Whatever may cross an edge arrives as it left, and gradients come back through it."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from contract.crossing import TENSORS, TREES, numbers
from contract.ports import CONNECTIONS, crossed_in_memory, describe, in_two_processes
from contract.small import (
    CLASSES,
    LINEARIZE,
    Gradients,
    Sending,
    back_propagate,
    data,
    different,
    everything,
    far,
    mlp,
    skips,
    train,
)
from hocket import Trainer
from hocket.codecs import VQ, Cast, Exact, Integers
from hocket.errors import NonFiniteError, OptionError, PacketError
from hocket.methods import BP, FDG, FR, METHODS
from hocket.stage.passes.edges import to_outgoing
from hocket.transport.encoded import EncodedPort
from hocket.transport.mailbox import Edge
from hocket.transport.packet import Activation, Gradient

ALL = TENSORS | TREES


@pytest.fixture(params=["memory", *CONNECTIONS])
def crossed(request):
    """Return what arrived at each of two ends, by direction and name."""
    if request.param == "memory":
        return crossed_in_memory()
    first, second = in_two_processes(request.param)
    return {"activation": second["crossed"], "gradient": first["crossed"]}


@pytest.mark.xdist_group("ports")
@pytest.mark.parametrize("direction", ["activation", "gradient"])
def test_whatever_crosses_an_edge_arrives_as_it_left(crossed, direction):
    """Also with the strides that its copy has, as the bits of a product depend on them."""
    sent = ALL if direction == "activation" else TENSORS
    assert crossed[direction].keys() == sent.keys()
    for name, value in sent.items():
        assert crossed[direction][name] == describe(value), name


# Numbers of at most 1: bounds of the error for each codec.
BOUNDS = {
    Cast(torch.bfloat16): 2.0**-9,
    Cast(torch.float16): 2.0**-12,
    Integers(): 0.5 / 127 + 2.0**-9,
}


def through(codec, value, gradient=False):
    """Return a tensor that a codec's port has sent to another, in a packet between others."""
    edge = Edge("stage 0", "stage 1")
    to_next = EncodedPort(edge.to_next(), codec, codec, 0)
    to_previous = EncodedPort(edge.to_previous(), codec, codec, 0)
    values = to_outgoing((numbers(40, 2), value, None), [])
    if gradient:
        to_previous.send(Gradient(0, values))
        return to_next.receive(0).values[1]
    to_next.send(Activation(0, 0, values, (True, True), None))
    return to_previous.receive(0).values[1]


def vq_refusal(codec, value):
    """Return the words in which vq refuses a tensor that is too small; None if it does not."""
    if not isinstance(codec, VQ):
        return None
    if value.dim() < 2:
        return "vq needs batches of vectors or maps, but got a tensor of shape"
    return "vq needs 16 codes, but the first batch has" if len(value) < 16 else None


@pytest.mark.parametrize("gradient", [False, True], ids=["activation", "gradient"])
@pytest.mark.parametrize("codec", [Exact(), *BOUNDS, VQ(groups=2, codes=16)], ids=str)
def test_codecs_round_finite_numbers_and_change_nothing_else(codec, gradient):
    for name, value in TENSORS.items():
        kept = not (value.is_floating_point() and value.numel() and value.isfinite().all())
        if not kept and (words := vq_refusal(codec, value)) is not None:
            with pytest.raises(OptionError, match=words):
                through(codec, value, gradient)
            continue
        arrived, expected = through(codec, value, gradient), value.detach().clone()
        if isinstance(codec, VQ) and not kept:
            expected.copy_(codec.decoder().decode(codec.encoder(1).encode(expected)))
        assert arrived.stride() == expected.stride(), name
        bound = 0.0 if kept else BOUNDS.get(codec, 0.0)
        torch.testing.assert_close(
            arrived, expected, rtol=0, atol=bound, equal_nan=True, msg=name
        )


def test_a_tensor_that_cannot_be_sent_is_refused_in_words():
    with pytest.raises(PacketError, match=r"layout torch.sparse_coo and type"):
        to_outgoing(torch.eye(2).to_sparse(), [])


BATCHES = data(mlp, 8)


@pytest.mark.parametrize("name", ["bp", "ddg", "fdg", "adl", "dsp", "fr"])
@pytest.mark.parametrize("stages", [2, 3])
def test_outputs_that_are_views_of_weights_train_as_their_clones(name, stages):
    """Bit-equal, though the optimizer writes into these weights before they are received.

    A mask of infinities is among them.
    """
    options = {"linearize": "stash"} if name in ("ddg", "fdg", "adl") else {}
    views, clones = (
        train(METHODS[name](**options), everything(stages, clones=clones), BATCHES, lr=0.01)
        for clones in (False, True)
    )
    assert torch.tensor(views.losses).isfinite().all()
    assert different(views.state, clones.state) == []


class Reshaped(nn.Module):
    """Stage whose input and weight have gradients that are views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 5, dtype=torch.double))

    def forward(self, x):
        return (x.view(-1) + self.weight.view(-1)).view(2, 5)


class Halving(torch.optim.SGD):
    """Optimizer that changes gradients in place, as one that clips them does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return super().step(closure)


def test_a_gradient_is_sent_before_the_optimizer_changes_that_of_the_weight():
    def built():
        torch.manual_seed(0)
        return [nn.Linear(5, 5).double(), Reshaped(), nn.Linear(5, CLASSES).double()]

    found, expected = Gradients(), Gradients()
    pairs = data(mlp, 4, size=2)
    train(BP(), built(), pairs, watch=expected, optimizer=partial(torch.optim.SGD, lr=0.05))
    train(BP(), built(), pairs, watch=found, optimizer=partial(Halving, lr=0.1))
    for batch in range(4):
        assert different(expected.seen[0, batch], found.seen[0, batch]) == []


class Spectrum(nn.Linear):
    """Stage that sends a spectrum, which is complex numbers."""

    def forward(self, x):
        return torch.fft.rfft(super().forward(x))


class Filter(nn.Module):
    """Stage that receives a spectrum, and filters it with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(5, dtype=torch.cdouble))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, spectrum):
        return self.head(torch.fft.irfft(spectrum * self.factor, n=8))


def spectral():
    torch.manual_seed(0)
    return [Spectrum(5, 8).double(), Filter().double()]


def test_back_propagation_trains_through_complex_activations():
    modules = spectral()
    plain = back_propagate(copy.deepcopy(modules), BATCHES)
    assert far(train(BP(), modules, BATCHES).state, plain) == []


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (BP(), 6),
        (FR(backward_delay=0), 6),
        *((FDG(linearize=linearize), 1) for linearize in LINEARIZE),
    ],
)
def test_several_tensors_cross_an_edge(method, count):
    """Bit-equal to back-propagation: no gradient is late, or no weight has moved yet."""
    batches = data(skips, count)
    plain = back_propagate(skips(3), batches)
    assert not different(train(method, skips(3), batches).state, plain)


class Spoiling(Sending):
    """Stage whose mask is not a number where it was infinite."""

    def forward(self, x):
        sent = super().forward(x)
        return sent | {"mask": sent["mask"] * 0}


def test_a_mask_that_is_not_a_number_is_a_fault():
    """Though one of infinities may be sent."""
    modules = [Spoiling(clones=False).double(), *everything(2)[1:]]
    with pytest.raises(NonFiniteError, match="the output 6 became nan"):
        train(BP(), modules, BATCHES)


def words(count=6):
    make = torch.Generator().manual_seed(2)
    return [
        (torch.randint(9, (4, 3), generator=make), torch.randint(CLASSES, (4,), generator=make))
        for _ in range(count)
    ]


def embedding(*, sparse):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Embedding(9, 5, sparse=sparse), nn.Flatten())
    return [first.double(), nn.Sequential(nn.Linear(15, CLASSES)).double()]


@pytest.mark.parametrize("method", [BP(), FDG(), FDG(linearize="recompute")])
def test_a_stage_may_send_integers_alone(method):
    """It has nothing to learn, and no gradient comes back to it."""

    class Shift(nn.Module):
        def forward(self, tokens):
            return (tokens + 1) % 9

    shifted = [((tokens + 1) % 9, targets) for tokens, targets in words()]
    trained = train(method, [Shift(), *embedding(sparse=False)], words())
    assert not different(trained.state, train(method, embedding(sparse=False), shifted).state)


@pytest.mark.parametrize("name", ["bp", "ddg", "fdg", "adl", "dsp", "fr", "dgl", "dni"])
def test_sparse_gradients_of_embeddings_train_as_dense_ones(name):
    optimizer = partial(torch.optim.SGD, lr=1e-3 if name == "dni" else 0.1)
    sparse, dense = (
        train(METHODS[name](), embedding(sparse=sparse), words(), optimizer=optimizer)
        for sparse in (True, False)
    )
    assert far(sparse.state, dense.state, tolerance=1e-8) == []
    norms = [
        [event.report.gradient_norm for event in trained.of("B", 0)]
        for trained in (sparse, dense)
    ]
    assert norms[0] == pytest.approx(norms[1])


def test_the_error_of_sparse_and_complex_gradients_is_measured():
    for modules, batches in ((embedding(sparse=True), words()), (spectral(), BATCHES)):
        seen = []
        trainer = Trainer(
            modules,
            method=BP(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            gradient_error_every=1,
            on_gradient_error=seen.append,
        )
        trainer.fit(batches, epochs=1, progress=False)
        assert len(seen) == 2 * len(batches)
        assert all(each.cosine == pytest.approx(1) for each in seen)
