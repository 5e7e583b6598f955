"""Optimizers of hidden matrices: Muon with AdamW, and Adam in rotated bases."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import StepLR

from contract.small import different, far, stepped
from hocket import Trainer, zoo
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.optim.muon import MuonAdamW, hidden_matrices, muon
from hocket.optim.rotated_adam import RotatedAdam, rotated_adam
from hocket.remedies import Predict
from hocket.runs.build import build_optimizer_factory
from hocket.runs.config import RunConfig
from reference import rotated_adam as reference


def gpt():
    """A transformer with few weights."""
    torch.manual_seed(0)
    return zoo.gpt(vocab=7, context=4, width=8, depth=2, heads=2)


def texts(count):
    """Batches of three texts of four characters, each with the next one as its target."""
    make = torch.Generator().manual_seed(1)
    made = [torch.randint(7, (3, 5), generator=make) for _ in range(count)]
    return [(text[:, :-1], text[:, 1:]) for text in made]


def back_propagate(network, batch):
    network.zero_grad()
    nn.functional.cross_entropy(network(batch[0]).flatten(0, 1), batch[1].flatten()).backward()


def test_embeddings_norms_biases_and_the_head_are_left_to_adamw():
    hidden = hidden_matrices(gpt())
    assert len(hidden) == 2 * 4
    assert {name.split(".")[0] for name in hidden} == {"block0", "block1"}
    assert all(name.endswith("weight") and "norm" not in name for name in hidden)
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    tied[2].weight = tied[0].weight
    assert hidden_matrices(tied) == {"1.weight"}


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm, orthogonal])
def test_a_parametrized_layer_has_one_matrix_unless_it_is_the_last_and_keeps_its_buffers(norm):
    network = nn.Sequential(*(norm(nn.Linear(4, 4)) for _ in range(3)))
    before = copy.deepcopy(list(network.buffers()))
    assert sorted(name.split(".")[0] for name in hidden_matrices(network)) == ["0", "1"]
    assert different(before, network.buffers()) == []


def test_steps_are_those_of_muon_and_adamw_alone():
    """Bit-equal, with a scheduler, and after its state was loaded into another one."""
    ours, alone = gpt(), gpt()
    hidden = hidden_matrices(ours)
    build = muon(ours, lr=0.02, weight_decay=0.2, momentum=0.8, betas=(0.8, 0.9))
    optimizer = build(list(ours.named_parameters()))
    named = list(alone.named_parameters())
    both = {"lr": 0.02, "weight_decay": 0.2}
    parts = [
        Muon(
            [p for name, p in named if name in hidden],
            **both,
            momentum=0.8,
            adjust_lr_fn="match_rms_adamw",
        ),
        AdamW([p for name, p in named if name not in hidden], **both, betas=(0.8, 0.9)),
    ]
    schedulers = [StepLR(each, 2, 0.5) for each in (optimizer, *parts)]
    for number, batch in enumerate(texts(6)):
        if number == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = build(list(ours.named_parameters()))
            optimizer.load_state_dict(state)
            schedulers[0].optimizer = optimizer
        back_propagate(ours, batch)
        back_propagate(alone, batch)
        for each in (optimizer, *parts, *schedulers):
            each.step()
    assert different(ours.parameters(), alone.parameters()) == []


@pytest.mark.parametrize("build", [muon, rotated_adam])
def test_a_step_has_the_gradients_of_a_closure_and_returns_its_loss(build):
    """As PyTorch's optimizers do; Lightning steps in this way."""
    (batch,), networks = texts(1), [gpt(), gpt()]
    plain, closing = (build(each)(list(each.named_parameters())) for each in networks)
    back_propagate(networks[0], batch)
    plain.step()
    assert closing.step(lambda: back_propagate(networks[1], batch) or 5.0) == 5.0
    assert different(*(each.parameters() for each in networks)) == []


@pytest.mark.parametrize(
    ("build", "method", "stages"),
    [
        (partial(muon, lr=0.02), "bp", 2),
        (partial(muon, lr=0.02), "bp", 3),
        (partial(rotated_adam, lr=0.01, refresh=2), "fdg", 2),
    ],
    ids=["muon", "muon on other stages", "rotated adam"],
)
@pytest.mark.filterwarnings("ignore:.* are not those of this training")
def test_a_training_on_stages_resumes_also_on_others(tmp_path, build, method, stages):
    def trainer(network, stages):
        options = {"stages": stages, "method": method, "optimizer": build(network)}
        return Trainer(network, resumable=True, **options)

    networks = [gpt(), gpt()]
    whole = trainer(networks[0], 2)
    for number, batch in enumerate(texts(8)):
        if number == 5:
            whole.save(tmp_path)
        whole.step(*batch)
    resumed = trainer(networks[1], stages)
    resumed.resume(tmp_path)
    stepped(resumed, texts(8)[5:])
    assert different(networks[0].parameters(), networks[1].parameters()) == []
    states = [s for stage in whole.stages for s in stage.updater.optimizer.state.values()]
    assert len(states) == len(list(networks[0].parameters()))
    assert sum("left_basis" in state for state in states) in (0, 2 * 4)


def test_a_stage_may_have_only_one_of_the_two():
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    for p, optimizer in (
        (matrix, MuonAdamW([matrix], [])),
        (vector, MuonAdamW([], [vector], lr=0.1)),
    ):
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert not torch.equal(p, torch.ones_like(p))
    with pytest.raises(TypeError, match="'rate'"):
        MuonAdamW([], [vector], rate=1)


@pytest.mark.parametrize(("name", "build"), [("Muon", muon), ("RotatedAdam", rotated_adam)])
def test_shrink_under_it_is_warned_of_and_a_network_without_known_matrices_is_refused(
    name, build
):
    """It would be AdamW under another name, whose options have no effect."""
    network = gpt()
    trainer = Trainer(network, method=FDG(shrink=0.5), optimizer=build(network))
    with pytest.warns(UserWarning, match=f"cancels under {name}"):
        trainer.prepare(texts(1)[0][0])
    with pytest.raises(OptionError, match=f"{name} is for hidden weights of two .* has none"):
        build_optimizer_factory(RunConfig(optimizer=name), zoo.resnet8())
    with pytest.raises(OptionError, match=r"'0.weight' has no shape .* run the network once"):
        build(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("optimizer", "decays", "option", "values"),
    [
        ("Muon:lr=0.02,ns_steps=4", [0.1, 0.1, 0.0], "ns_steps", [4, None, None]),
        ("RotatedAdam:lr=0.02,refresh=3", [0.01, 0.01, 0.0], "rotated", [True, False, False]),
    ],
)
def test_by_name_it_decays_what_it_is_told(optimizer, decays, option, values):
    network = gpt()
    run = RunConfig(optimizer=optimizer, weight_decay_on="matrices")
    built = build_optimizer_factory(run, network)(list(network.named_parameters()))
    groups = built.param_groups
    assert [group["weight_decay"] for group in groups] == decays
    assert [group.get(option) for group in groups] == values
    assert [len(group["params"]) for group in groups[:2]] == [8, 3]
    assert all(p.dim() == 2 for p in groups[1]["params"])


# Adam in rotated bases: its reference, its laws, and its place in a training.

# A first gradient is diagonal in its own bases, but for rounding: eps has to be far above it.
ADAM = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}
OPTIONS = ADAM | {"weight_decay": 0.0, "refresh": 4}


def gradients(shape, count=13, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=make).double() for _ in range(count)]


def walk(build, start, path):
    """Return the weight after each step with the gradients of a path."""
    weight = nn.Parameter(start.clone())
    optimizer, seen = build([weight]), []
    for gradient in path:
        weight.grad = gradient.clone()
        optimizer.step()
        seen.append(weight.detach().clone())
    return seen


@pytest.mark.parametrize("refresh", [1, 4, 50])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 3)])
def test_steps_are_those_of_the_reference(shape, refresh):
    """Close in float64; where more than one dimension has no gradient, bases are not unique."""
    start, *path = gradients(shape)
    options = OPTIONS | {"refresh": refresh}
    seen = walk(lambda params: RotatedAdam(params, **options), start, path)
    assert not far(seen, reference.path(start, path, **ADAM, refresh=refresh))


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 2)])
def test_without_a_rotation_it_is_adamw(shape):
    start, *path = gradients(shape)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.3}
    turned = [{"params": [], "rotated": True}]

    def build(params):
        return RotatedAdam([*turned, {"params": params, "rotated": False}], **options)

    wanted = walk(lambda params: AdamW(params, **options), start, path)
    assert not far(walk(build, start, path), wanted)


def test_a_rotation_of_the_weights_rotates_their_path():
    """Of which Adam's path, coordinate by coordinate, knows nothing."""
    start, *path = gradients((4, 4))
    left, right = (torch.linalg.qr(each).Q for each in gradients((4, 4), 2, seed=1))

    def rotated(tensors):
        return [left @ each @ right for each in tensors]

    for kind, same in ((RotatedAdam, True), (AdamW, False)):
        build = partial(kind, **ADAM)
        turned = walk(build, rotated([start])[0], rotated(path))
        assert (not far(rotated(walk(build, start, path)), turned)) == same


def test_predictions_need_the_last_change():
    network, method = gpt(), FDG().with_remedies(Predict())
    trainer = Trainer(network, stages=2, method=method, optimizer=rotated_adam(network))
    with pytest.raises(OptionError, match=r"is another \(RotatedAdam\).*direction=last"):
        trainer.prepare(texts(1)[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_of_few_digits_can_be_rotated(dtype):
    start, *path = [each.to(dtype) for each in gradients((3, 4))]
    seen = walk(lambda params: RotatedAdam(params, **OPTIONS), start, path)
    assert {each.dtype for each in seen} == {dtype}
    assert all(each.isfinite().all() for each in seen)
    assert not torch.equal(seen[-1], start)


@pytest.mark.parametrize(
    ("weight", "options", "told"),
    [
        (torch.zeros(3), {}, r"a weight of shape \(3,\) is no matrix"),
        (torch.zeros(2, 2, dtype=torch.cfloat), {}, "a weight is complex"),
        (torch.zeros(2, 2), {"refresh": 0}, "refresh is 0"),
        (torch.zeros(2, 2), {"refresh": 2.5}, "refresh is 2.5"),
        (torch.zeros(2, 2), {"betas": (1.0, 0.9)}, r"two betas in \[0, 1\)"),
        (torch.zeros(2, 2), {"betas": (0.9,)}, r"two betas in \[0, 1\)"),
        (torch.zeros(2, 2), {"lr": -1.0}, "lr, eps and weight_decay are at least 0"),
        (torch.zeros(2, 2), {"eps": math.nan}, "lr, eps and weight_decay are at least 0"),
    ],
)
def test_what_cannot_be_rotated_is_refused(weight, options, told):
    with pytest.raises(ValueError, match=told):
        RotatedAdam([nn.Parameter(weight)], **options)
