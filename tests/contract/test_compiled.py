"""Law: compiled stages learn what others learn, to round-off, and resumed ones to the bit.

``aot_eager`` builds the same graphs as ``inductor``, and no code of its own.
"""

import copy
import os
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.resumed import all_of, differences, resumable
from contract.small import CLASSES, LINEARIZE, LOCKSTEP, data, different, far, mlp, sgd
from contract.worlds import Case, trained, trained_apart
from hocket import Trainer
from hocket.errors import LinearizeError, OptionError
from hocket.methods import FDG, METHODS
from hocket.methods.method import Method
from hocket.remedies import CompensateAdaptively, Predict
from unit.stage.test_linearize import Checkpointed, Hidden, Replacing

AOT = "aot_eager"
SHORT = {"batches": 4, "last": 4, "epochs": 1}
LINEARIZED = [Case("fdg", "conv", (("linearize", kind),)) for kind in LINEARIZE]


def kind_of(method: Method) -> object:
    """What the compiled stages of methods may differ in."""
    late = method.delay(0, 2) > 0
    groups = method.flushes, method.accumulate > 1
    return type(method.signal), method.linearize, method.hold, late, *groups


# The first method of each kind.
KINDS = {kind_of(METHODS[name]()): name for name in reversed(LOCKSTEP)}
CASES = [
    *(Case(name, **SHORT) for name in KINDS.values()),
    *LINEARIZED,
    Case("fr", "conv", (("statistics", "both"),), **SHORT),
    Case("pipedream", options=(("hold", "vertical"),), **SHORT),
    Case("fdg", options=(("linearize", "live"),), remedies=(Predict(),), **SHORT),
    Case("fdg", remedies=(CompensateAdaptively(),), **SHORT),
    Case("dgl-async", options=(("buffer", 2),), **SHORT),
    Case("fdg", "conv", trainer=(("channels_last", True),), **SHORT),
]


def compiled(case: Case, compiler: str | bool = AOT) -> Case:
    """The case with compiled stages."""
    return replace(case, trainer=(*case.trainer, ("compile", compiler)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_stages_learn_what_others_learn(case):
    """Close in float64, with the same random numbers: compiled layers may round differently."""
    plain, ours = trained(case, 2), trained(compiled(case), 2)
    assert far(ours.weights, plain.weights, tolerance=1e-8) == []
    assert ours.events == plain.events


@pytest.mark.parametrize("case", LINEARIZED, ids=str)
def test_a_resumed_training_is_the_uninterrupted_one(case, tmp_path):
    again = resumable(compiled(case))
    whole, checkpoints = all_of(again, 2, tmp_path)
    resumed = trained(again, 2, resume=checkpoints[len(checkpoints) // 2])
    assert differences(whole, resumed) == []


def test_processes_learn_what_one_process_learns():
    cases = [compiled(replace(case, **SHORT)) for case in LINEARIZED]
    for case, parts in trained_apart(cases, 2).items():
        alone = trained(case, 2)
        assert [different(part.weights, alone.weights) for part in parts] == [[], []]


@pytest.mark.skipif(
    "ATEN_CPU_CAPABILITY" in os.environ,
    reason="PyTorch's compiler crashes under a forced instruction set",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, about PyTorch
@pytest.mark.parametrize("kind", ["stash", "live"])
def test_generated_code_learns_the_same_with_the_same_random_numbers(kind):
    case = Case("fdg", options=(("linearize", kind),), **SHORT)
    plain, ours = trained(case, 2), trained(compiled(case, compiler=True), 2)
    assert far(ours.weights, plain.weights, tolerance=1e-8) == []


class Tied(nn.Module):
    """Layers that use one weight twice, and leave another one unused or frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.second(torch.tanh(self.first(x))))


class Listed(nn.Module):
    """Layers that keep a list of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(5, dtype=torch.double))
        self.listed = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.listed[0]


class Breaking(nn.Module):
    """Layers that print."""

    def forward(self, x: Tensor) -> Tensor:
        print("forward")
        return x


def learned(first: nn.Module, *, linearize: str = "stash", **options: Any) -> list[Tensor]:
    """Weights after a training of some layers, with a last stage behind them."""
    torch.manual_seed(0)
    stages = [nn.Sequential(first.double()), nn.Linear(5, CLASSES).double()]
    with Trainer(
        stages, method=FDG(linearize=linearize), **{"optimizer": sgd, **options}
    ) as trainer:
        trainer.fit(data(mlp, 4), epochs=1, progress=False)
    return [value for stage in stages for value in stage.state_dict().values()]


@pytest.mark.parametrize("kind", LINEARIZE)
def test_tied_frozen_and_unused_weights_are_treated_alike(kind):
    torch.manual_seed(1)
    first = Tied()
    again = copy.deepcopy(first)
    plain = learned(first, linearize=kind)
    assert far(learned(again, linearize=kind, compile=AOT), plain) == []


def test_stash_may_recompute_inside_its_backward():
    """Not so without compilation: what is forwarded again there has other weights."""
    torch.manual_seed(1)
    first = Hidden()
    plain = learned(copy.deepcopy(first))
    assert far(learned(Checkpointed(first, reentrant=False), compile=AOT), plain) == []


def test_evaluation_is_not_compiled():
    built = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with Trainer(mlp(2), method="fdg", optimizer=sgd, compile=AOT) as trainer:
        result = trainer.evaluate(data(mlp, 2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == built
    assert result.samples == 8


def hooked(method: str) -> nn.Module:
    layer = nn.Linear(5, 5)
    getattr(layer, method)(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (Breaking, {}, "stage 0 cannot be compiled as one graph: .*print.*leave compile out"),
        (Listed, {}, "use the weight '0.0.weight' not as a parameter of theirs but from"),
        (
            lambda: Checkpointed(Hidden(), reentrant=False),
            {"linearize": "live"},
            "forwarded again inside the backward",
        ),
        (partial(hooked, "register_forward_hook"), {}, "stage 0 cannot be compiled; leave"),
        (partial(hooked, "register_full_backward_hook"), {}, "it has layers with hooks"),
        (partial(nn.Linear, 5, 5), {"compile": "turbo"}, "compile is 'turbo'; wanted"),
        (
            partial(nn.Linear, 5, 5),
            {"batchnorm": "shared", "replicas": 2},
            "batchnorm is 'shared', whose sums over the replicas cannot be compiled",
        ),
    ],
    ids=["break", "list", "checkpoint", "hook", "back hook", "backend", "batchnorm"],
)
def test_what_cannot_be_compiled_is_refused(build, options, said):
    with pytest.raises(OptionError, match=said):
        learned(build(), **{"compile": AOT, **options})


def test_a_part_of_a_networks_own_forward_is_refused():
    with pytest.raises(OptionError, match="it is a part of the network's own forward"):
        trained(compiled(Case("fdg", "skips")), 2)


def test_a_hook_that_comes_later_is_refused():
    stages = mlp(2)
    with Trainer(stages, method="fdg", optimizer=sgd, compile=AOT) as trainer:
        batches = data(mlp, 2)
        trainer.step(*batches[0])
        stages[0][0].register_forward_hook(lambda *_: None)
        with pytest.raises(OptionError, match="it has layers with hooks"):
            trainer.step(*batches[1])


def test_too_many_shapes_are_refused():
    with (
        torch._dynamo.config.patch(recompile_limit=1),
        Trainer(mlp(1), method="bp", optimizer=sgd, compile=AOT) as trainer,
    ):
        trainer.step(*data(mlp, 1, 2)[0])
        with pytest.raises(OptionError, match="stage 0 met inputs of more shapes than graphs"):
            trainer.step(*data(mlp, 1, 3)[0])


def test_live_refuses_a_weight_that_is_replaced():
    optimizer = partial(Replacing, lr=0.1)
    with pytest.raises(LinearizeError, match=r"the weight '0\.weight' was replaced by one in"):
        learned(nn.Linear(5, 5), linearize="live", optimizer=optimizer, compile=AOT)


class Counts(nn.Module):
    """A layer with a buffer that each forward changes, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("seen", torch.tensor(0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_place:
            self.seen.add_(1)
        else:
            self.seen = self.seen + 1
        return inputs * self.seen.detach().tanh()


def test_a_buffer_may_be_replaced_and_not_changed_in_place():
    first = nn.Sequential(nn.Linear(5, 5), Counts(in_place=False))
    plain = learned(copy.deepcopy(first))
    assert far(learned(first, compile=AOT), plain) == []
    first[1].in_place = True
    with pytest.raises(LinearizeError, match=r"stage 0: .* buffer 0\.1\.seen in place"):
        learned(first, compile=AOT)
