"""Stages that compute something else are told from those that only round differently."""

import math

import pytest
import torch
from torch import nn

from hocket import Plan, cut
from hocket.errors import CutError
from hocket.partition.verify import _equal_but_for_rounding, _nearly_equal, verify_stages

VALUES = torch.randn(1000, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([0.0, -math.inf, 0.0])


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (VALUES, VALUES.flip(0).cumsum(0).diff(prepend=torch.zeros(1)).flip(0), True),
        (VALUES, VALUES.bfloat16().float(), True),
        (VALUES.bfloat16(), (VALUES * 1.004).bfloat16(), True),
        (VALUES * 1e-7, torch.zeros(1000), True),
        (VALUES + 1j, VALUES * 1.0001 + 1j, True),
        (MASK, MASK.clone(), True),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (VALUES, VALUES * 1.1, False),
        (VALUES, VALUES.roll(1), False),
        (VALUES, torch.full((1000,), math.nan), False),
        (MASK, torch.zeros(3), False),
        (torch.zeros(3), MASK, False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (VALUES, VALUES.double(), False),
    ],
)
def test_other_roundings_are_told_from_other_values(one, other, wanted):
    assert _nearly_equal(one, other) is wanted


def test_large_numbers_hide_no_differences_of_others():
    least = torch.finfo(torch.float32).min
    masked = torch.tensor([least, 1.0, 2.0, -math.inf])
    assert _equal_but_for_rounding(masked, masked.clone())
    assert _equal_but_for_rounding(masked, torch.tensor([least, 1.0, 2.0 + 2e-7, -math.inf]))
    assert not _equal_but_for_rounding(masked, torch.tensor([least, 7.0, -5.0, -math.inf]))
    assert not _equal_but_for_rounding(masked, torch.tensor([least, 1.0, 2.0, math.inf]))
    assert not _equal_but_for_rounding(masked, masked.double())


def test_stages_that_compute_something_else_are_refused():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    others = [nn.Sequential(network[0], nn.ReLU()), nn.Sequential(network[1], network[2])]
    with pytest.raises(CutError) as caught:
        verify_stages(network, others, torch.randn(5, 4))
    text = str(caught.value)
    assert "cut into 2 stages, this network computes something else" in text
    assert "in training mode the outputs differ" in text
    assert "in training mode the gradient of '0.weight' and '0.bias'" in text
    assert "the buffer of '1.running_mean'" in text
    assert "in evaluation the outputs differ" in text
    assert "cut elsewhere, or give the stages as a list of modules" in text


def test_a_network_in_evaluation_mode_is_compared_in_training_mode_too():
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    stages = [network[0], nn.Identity().eval()]
    with pytest.raises(CutError, match="in training mode the outputs differ") as caught:
        verify_stages(network, stages, torch.randn(5, 4))
    assert "in evaluation" not in str(caught.value)
    assert not any(module.training for module in (*network.modules(), *stages))
    network.train()[1].eval()  # frozen, as it is in a training
    with torch.device("meta"):  # whatever the default
        verify_stages(network, stages, torch.randn(5, 4, device="cpu"))


class StridedGradient(nn.Module):
    """A network whose gradient reaches ``scale`` with other strides if it is cut after it."""

    def __init__(self, size=24):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.scale = nn.Parameter(torch.ones(size))
        self.token = nn.Linear(size, size)
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        scaled = self.norm(x).transpose(1, 2).contiguous().transpose(1, 2) * self.scale
        token = self.token(x.new_ones(len(x), 1, x.shape[2]))
        return self.head(torch.cat((token, scaled), 1))


def test_stages_that_differ_only_in_the_order_of_a_sum_are_warned_of():
    network = StridedGradient()
    sample = torch.randn(4, 16, 24)
    expected = r"cut into 2 .* the same but for rounding, .*: the gradient of 'scale' diff"
    with pytest.warns(UserWarning, match=expected) as told:
        cut(network, stages=Plan(("token",)), sample=sample)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("dtype", "difference"), [(torch.float32, 1e-4), (torch.bfloat16, 2**-7)]
)
def test_stages_that_differ_by_more_than_the_order_of_a_sum_are_refused(dtype, difference):
    class Off(nn.Module):
        def forward(self, x):
            return x * (1 + difference)

    network = nn.Sequential(nn.Linear(4, 4)).to(dtype)
    with pytest.raises(CutError, match="in evaluation the outputs differ"):
        verify_stages(network, [network[0], Off()], torch.randn(5, 4, dtype=dtype))


def test_stages_that_fail_or_give_something_else_are_refused():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(CutError, match="in evaluation the stages fail: mat1 and mat2"):
        verify_stages(network, [network[0], nn.Linear(3, 3)], torch.randn(5, 4))

    class Twice(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(CutError, match="there are 2 outputs instead of 1"):
        verify_stages(network, [network[0], Twice()], torch.randn(5, 4))


class Recurrent(nn.Linear):
    """Layer whose backward fails in evaluation, as that of cuDNN's recurrent layers."""

    def forward(self, x):
        return FailingBackward.apply(super().forward(x), not self.training)


class FailingBackward(torch.autograd.Function):
    """Function that changes nothing, and whose backward may fail."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.fails:
            raise RuntimeError("backward can only be called in training mode")
        return grad, None


class Branching(nn.Module):
    """Network of such a layer, which may do something else in evaluation."""

    def __init__(self, *, branches=False):
        super().__init__()
        self.first, self.second, self.last = Recurrent(2, 2), Recurrent(2, 2), nn.Linear(2, 2)
        self.branches = branches

    def forward(self, x):
        x = self.second(self.first(x).tanh())
        return self.last(x) + (0 if self.training or not self.branches else 1)


def test_a_layer_without_a_backward_in_evaluation_is_cut_and_its_outputs_are_compared():
    network, x = Branching(), torch.randn(3, 2)
    for stages in (2, 3):
        assert len(cut(network, stages=stages, sample=x)) == stages
    assert all(weight.grad is None for weight in network.parameters())
    branching = Branching(branches=True)
    branching.load_state_dict(network.state_dict())
    with pytest.raises(CutError, match=r"- in evaluation the outputs differ\n"):
        verify_stages(branching, [network], x)


def test_a_network_that_fails_in_evaluation_only_is_refused():
    class Failing(Branching):
        def forward(self, x):
            if not self.training:
                raise ValueError("there is no evaluation")
            return super().forward(x)

    network = Failing()
    told = r"does not take the sample, .* there is no evaluation"
    with pytest.raises(CutError, match=told):
        verify_stages(network, [network], torch.randn(3, 2))
    with pytest.raises(CutError, match=told):
        cut(network, stages=2, sample=torch.randn(3, 2))


def test_a_network_is_cut_at_a_sample_with_nan():
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    sample = torch.tensor([[1.0, math.nan], [1.0, 2.0]])
    assert len(cut(network, stages=Plan("2"), sample=sample)) == 2


class Leaning(nn.Sequential):
    """A layer whose bias has a larger gradient in training mode."""

    def forward(self, x):
        bias = self[0].bias * (0.01 if self.training else 0.0)
        return super().forward(x) + (bias - bias.detach())


def test_a_gradient_that_is_0_but_for_rounding_is_only_warned_of():
    first, norm, last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    stages, sample = [Leaning(first), nn.Sequential(norm, last)], torch.randn(50, 4)
    with pytest.warns(match=r"but for rounding.*the gradient of '0\.bias' differs"):
        verify_stages(nn.Sequential(first, norm, last), stages, sample)
    with pytest.raises(CutError, match=r"the gradient of '0\.bias' differs"):
        verify_stages(nn.Sequential(first, last), [stages[0], last], sample)
