"""Signals: their refusals, their networks, and their backward roots."""

import math

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer, cross_entropy
from hocket.errors import DataError, OptionError
from hocket.methods import DGL, DNI, FDG, build_method
from hocket.signals import Delayed, Local, Objective, Similarity, Synthetic
from hocket.signals.signal import SignalInput

SIGNALS = [
    Delayed(),
    Delayed(0.5),
    Local(),
    Local("mlp", 0.5, 2),
    Similarity(),
    Similarity(0.5, Local("cnn")),
    Objective(),
    Synthetic(),
    Synthetic(labels=True),
]


@pytest.mark.parametrize("shrink", [0, -0.5, 1.5, math.nan, math.inf, True, "0.5"])
def test_shrink_outside_its_range_is_refused(shrink):
    said = r"shrink is .*; (use a number in \(0, 1\]|wanted a finite number)"
    with pytest.raises(OptionError, match=said):
        Delayed(shrink)
    with pytest.raises(OptionError, match=said):
        build_method("fdg", shrink=shrink)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"width": 0.0}, "width is 0.0; use a number above 0"),
        ({"width": -1.0}, "width is -1.0; use a number above 0"),
        ({"width": math.inf}, "width is inf; wanted a finite number"),
        ({"width": math.nan}, "width is nan; wanted a finite number"),
        ({"depth": -1}, "depth is -1; use a number of at least 0"),
        ({"depth": 1.5}, "depth is 1.5; wanted a whole number"),
        ({"head": "cnn", "depth": 2}, "'cnn' has no hidden layers that width=1.0 and depth=2"),
        ({"head": "cnn", "width": 2.0}, "could change; leave them out, or use 'mlp'"),
        ({"depth": 0, "width": 2.0}, "depth=0 leaves no hidden layers that width=2.0"),
    ],
)
def test_impossible_sizes_of_heads_are_refused(choices, said):
    with pytest.raises(OptionError, match=f"(?s)a local loss cannot be built:.*{said}"):
        Local(**choices)


def test_all_problems_of_a_head_are_reported_at_once():
    with pytest.raises(OptionError, match=r"(?s)width is 0; .*depth is -2; "):
        DGL(width=0, depth=-2)


def test_sizes_of_heads_reach_them_by_name():
    signal = build_method("dgl", head="mlp", width=0.5, depth=1).signal
    assert signal == Local("mlp", 0.5, 1)
    assert signal.build_network((8,), (3,)).readout[0].out_features == 4


@pytest.mark.parametrize("weight", [-0.1, 1, 1.5, math.nan, math.inf, True])
def test_similarity_outside_its_range_is_refused(weight):
    said = r"similarity is .*; use a number in \(0, 1\), or 0 to leave it off"
    with pytest.raises(OptionError, match=said):
        DGL(similarity=weight)
    with pytest.raises(OptionError, match=said):
        Similarity(weight)


def test_labels_are_seen_or_not():
    with pytest.raises(OptionError, match="labels is 1; wanted true or false"):
        DNI(labels=1)


def test_without_similarity_there_is_only_the_head():
    assert build_method("dgl", similarity=0).signal == Local()
    assert build_method("dgl", similarity=0.5, depth=1).signal == Similarity(
        0.5, Local(depth=1)
    )


def test_a_head_with_similarity_matching_starts_as_it_would_alone():
    states = []
    for signal in (Local(), Similarity()):
        torch.manual_seed(0)
        states.append(signal.build_network((4, 6, 6), (3,)).state_dict())
    alone, with_matching = states
    assert all(
        torch.equal(value, with_matching[f"head.{name}"]) for name, value in alone.items()
    )
    assert with_matching.keys() - {f"head.{name}" for name in alone} == {
        "matching.layer.weight"
    }


def test_a_local_loss_is_weighted_with_that_of_similarities():
    signal = Similarity(0.75)
    network = signal.build_network((6,), (3,)).eval()
    output, targets = torch.randn(4, 6), torch.tensor([0, 1, 1, 2])
    inputs = SignalInput(output, targets, (), cross_entropy)
    roots = signal.backward_roots(network, inputs)
    head_loss = cross_entropy(network["head"](output), targets)
    matching_loss = network["matching"](output, targets)
    torch.testing.assert_close(roots.roots[0], 0.25 * head_loss + 0.75 * matching_loss)
    assert (roots.gradients, roots.loss.requires_grad) == ((None,), False)


@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_are_values(signal):
    assert signal == type(signal)(**vars(signal))
    assert hash(signal) == hash(type(signal)(**vars(signal)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_needs_the_gradient_or_learns_from_it_or_neither(signal):
    assert not (signal.needs_gradient and signal.learns_from_gradient)
    assert signal.needs_gradient == isinstance(signal, Delayed)
    assert signal.learns_from_gradient == isinstance(signal, Synthetic)


@pytest.mark.parametrize("signal", [Delayed(), Objective()])
def test_signals_without_a_network_have_no_parameters(signal):
    assert not list(signal.build_network((4,), (3,)).parameters())


def test_a_delayed_gradient_is_shrunk_and_only_used_roots_are_returned():
    a = torch.ones(2, requires_grad=True)
    output = (a * 2, {"mask": torch.ones(2), "unused": a * 3})
    gradients = (torch.tensor([2.0, 4.0]), None, None)
    inputs = SignalInput(output, None, gradients, cross_entropy)
    roots = Delayed(0.5).backward_roots(nn.Identity(), inputs)
    assert [root is output[0] for root in roots.roots] == [True]
    assert [g.tolist() for g in roots.gradients] == [[1.0, 2.0]]
    assert roots.loss is None
    assert gradients[0].tolist() == [2.0, 4.0]


def test_a_gradient_that_is_not_shrunk_is_passed_on_as_it_is():
    root, gradient = torch.ones(2, requires_grad=True) * 2, torch.ones(2)
    inputs = SignalInput(root, None, (gradient,), cross_entropy)
    roots = Delayed().backward_roots(nn.Identity(), inputs)
    assert roots.gradients[0] is gradient


@pytest.mark.parametrize("signal", [Objective(), Local()])
def test_a_label_out_of_range_is_an_error_of_the_data(signal):
    network = signal.build_network((3,), (3,))
    output = torch.randn(4, 3, requires_grad=True)
    inputs = SignalInput(output, torch.tensor([0, 1, 2, 3]), (), cross_entropy)
    with pytest.raises(
        DataError, match=r"do not fit the outputs of shape \(4, 3\): .*labels must lie between"
    ):
        signal.backward_roots(network, inputs)


def test_the_objective_of_a_structure_is_computed_by_its_loss():
    def loss(output, targets):
        return (output["mean"] - targets).square().mean()

    output = {"mean": torch.tensor([1.0, 3.0], requires_grad=True)}
    inputs = SignalInput(output, torch.zeros(2), (), loss)
    roots = Objective().backward_roots(nn.Identity(), inputs)
    assert (roots.loss.item(), roots.loss.requires_grad) == (5.0, False)
    assert roots.gradients == (None,)


def test_a_synthetic_gradient_starts_at_zero_and_learns_from_its_target():
    signal = Synthetic()
    network = signal.build_network((3,), (3,))
    output = torch.randn(4, 3, requires_grad=True)
    inputs = SignalInput(output, None, (), cross_entropy)
    roots = signal.backward_roots(network, inputs)
    assert [g.tolist() for g in roots.gradients] == [[[0.0] * 3] * 4]
    assert roots.deferred((torch.ones(4, 3),)).item() == 3.0  # squares summed over features


class Pair(nn.Module):
    def forward(self, values):
        return values, values


class First(nn.Module):
    def forward(self, values):
        return values[0]


@pytest.mark.parametrize("method", [DGL(), DNI()], ids=["dgl", "dni"])
def test_signals_with_a_network_need_an_output_of_one_tensor(method):
    first, last = mlp(2)
    modules = [nn.Sequential(first, Pair()), nn.Sequential(First(), last)]
    with pytest.raises(
        OptionError, match=f"method '{method.name}': the output of stage 0 is not one tensor"
    ):
        Trainer(modules, method=method, optimizer=sgd).prepare(data(mlp, 1)[0][0])
    Trainer(modules, method=FDG(), optimizer=sgd).prepare(data(mlp, 1)[0][0])


def test_heads_have_the_dtype_of_their_stage():
    trainer = Trainer(mlp(3), method=DGL(), optimizer=sgd)
    trainer.prepare(data(mlp, 1)[0][0])
    for stage in trainer.stages[:-1]:
        dtypes = {p.dtype for p in stage.signal_network.parameters()}
        assert dtypes == {torch.double}
        assert stage.signal_network(torch.zeros(4, 5, dtype=torch.double)).shape == (4, 3)
    assert not list(trainer.stages[-1].signal_network.parameters())


@pytest.mark.parametrize("signal", [Local(), Local("mlp", depth=0)])
@pytest.mark.parametrize(
    ("shape", "output_shape"),
    [
        ((6,), ()),
        ((6,), (3,)),
        ((4, 6, 6), ()),
        ((4, 6, 6), (3,)),
        ((7, 6), ()),
        ((7, 6), (3,)),
        ((7, 6), (7, 3)),
    ],
)
def test_a_head_predicts_in_the_shape_of_the_networks_output(signal, shape, output_shape):
    head = signal.build_network(shape, output_shape)
    assert signal.predict(head, torch.randn(5, *shape)).shape == (5, *output_shape)


def test_a_network_with_one_number_a_sample_trains_its_heads_towards_each_target():
    """A head of shape (B, 1) would broadcast against (B,), and learn the mean of the batch."""
    modules = [mlp(2)[0], nn.Sequential(nn.Linear(5, 1).double(), nn.Flatten(0))]
    shapes = []

    def loss(output, targets):
        shapes.append(output.shape)
        return (output - targets).square().mean()

    trainer = Trainer(modules, method=DGL(), optimizer=sgd, loss=loss)
    trainer.step(data(mlp, 1)[0][0], torch.zeros(4, dtype=torch.double))
    trainer.finish()
    assert shapes == [(4,)] * 2


@pytest.mark.parametrize(
    ("shape", "output_shape", "said"),
    [
        ((6,), None, "heads call the loss with one tensor of predictions as the network's"),
        ((4, 8, 8), (3, 8, 8), r"shape \(4, 8, 8\) predict \(B, O\).*shape \(B, 3, 8, 8\)"),
        ((7, 6), (5, 3), r"shape \(7, 6\) predict \(B, O\).*shape \(B, 5, 3\); cut"),
    ],
)
def test_heads_that_cannot_predict_the_networks_output_are_refused(shape, output_shape, said):
    for signal in (Local(), Similarity()):
        with pytest.raises(OptionError, match=said):
            signal.build_network(shape, output_shape)


@pytest.mark.parametrize("output_shape", [None, ()])
def test_labels_for_a_synthesizer_need_a_network_that_predicts_classes(output_shape):
    with pytest.raises(OptionError, match="output is not one tensor of class scores; leave"):
        Synthetic(labels=True).build_network((6,), output_shape)
    Synthetic().build_network((6,), output_shape)
