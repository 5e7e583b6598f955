"""A layer that is said to be plain is plain, and of any other nothing is said."""

import random
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from contract.small import different, sgd, train
from hocket import Plan, Trainer, cut
from hocket.errors import LinearizeError
from hocket.stage.layers.known_layers import PLAIN_LAYERS, KnownLayers
from hocket.zoo.layer import Layer
from hocket.zoo.residual import PadShortcut, Residual, basic_body
from hocket.zoo.wide_resnet import PreActivation

WITH_ARGUMENTS = {
    nn.Linear: partial(nn.Linear, 6, 5),
    nn.Embedding: partial(nn.Embedding, 9, 5),
    nn.LayerNorm: partial(nn.LayerNorm, 6),
    nn.RMSNorm: partial(nn.RMSNorm, 6),
    nn.GroupNorm: partial(nn.GroupNorm, 2, 4),
    nn.Softmax: partial(nn.Softmax, 1),
    nn.LogSoftmax: partial(nn.LogSoftmax, 1),
    nn.Unflatten: partial(nn.Unflatten, 1, (2, 2)),
    nn.LocalResponseNorm: partial(nn.LocalResponseNorm, 2),
    nn.ZeroPad2d: partial(nn.ZeroPad2d, 1),
    nn.Upsample: partial(nn.Upsample, scale_factor=2),
    nn.PixelShuffle: partial(nn.PixelShuffle, 2),
    nn.PixelUnshuffle: partial(nn.PixelUnshuffle, 2),
}


def build(kind: type[nn.Module]) -> nn.Module:
    """Build a layer for inputs of 4 channels, or of 6 features."""
    name = kind.__name__
    if kind in WITH_ARGUMENTS:
        return WITH_ARGUMENTS[kind]()
    if name.startswith("Conv"):
        return kind(4, 4, 1)
    if name.startswith(("BatchNorm", "InstanceNorm")):
        return kind(4)
    return kind(2) if "Pool" in name else kind()


def sample(kind: type[nn.Module]) -> Tensor:
    """Return an input of the layer."""
    if kind is nn.Embedding:
        return torch.randint(0, 9, (3, 6))
    name = kind.__name__
    dimensions = int(name[-2]) if name.endswith("d") and name[-2].isdigit() else 2
    return torch.randn(3, 4, *(6,) * dimensions)


class Scaled(nn.Linear):
    """A layer of a user that inherits from PyTorch's."""

    def forward(self, inputs):
        return super().forward(inputs) * torch.rand(())


class Doubled(nn.Module):
    """A module of a user that declares its forward plain."""

    plain_forward = True

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, inputs):
        return torch.relu(inputs) + self.inner(torch.tanh(inputs))


def unknown(kind):
    """Return a subclass with a forward of which nothing is known, as it declares nothing."""
    return type("Unknown", (kind,), {"forward": kind.forward})


class Revoked(Doubled):
    """A subclass that takes the declaration back."""

    plain_forward = False


def around() -> nn.Module:
    """Return a plain forward around a layer of which nothing is known."""
    module = Doubled()
    module.inner = Scaled(6, 6)
    return module


def changed(change) -> nn.Module:
    """Return a layer of PyTorch to which something was done."""
    layer = nn.Linear(6, 5)
    change(layer)
    return layer


CHANGES = {
    "replaced": lambda layer: setattr(layer, "forward", lambda inputs: inputs),
    "compiled": lambda layer: layer.compile(backend="eager"),
    "hooked": lambda layer: layer.register_forward_pre_hook(lambda layer, inputs: None),
    "back hooked": lambda layer: layer.register_full_backward_hook(lambda *_: None),
}
UNKNOWN = {
    **{name: partial(changed, change) for name, change in CHANGES.items()},
    "subclass": partial(Scaled, 6, 5),
    "redoubled": unknown(Doubled),
    "revoked": Revoked,
    "around": around,
}


@pytest.mark.parametrize("build_layer", UNKNOWN.values(), ids=UNKNOWN)
def test_nothing_is_known_of_other_layers(build_layer):
    layers, inputs = KnownLayers(Layer(nn.ReLU(), build_layer())), torch.ones(2, 6)
    assert not layers.plain
    assert layers.draws == "anything"
    assert layers.editable(inputs) is not inputs


def test_a_hook_of_all_modules_is_noticed():
    layers = KnownLayers(nn.Linear(6, 5))
    assert layers.plain
    with register_module_forward_hook(lambda layer, inputs, output: None):
        assert layers.draws == "anything"
    assert layers.plain


def test_dropout_draws_from_torch_only_and_a_layer_that_edits_gets_a_copy():
    layers = KnownLayers(nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5)))
    assert layers.draws == "torch"
    assert not layers.plain
    module, inputs = nn.Sequential(nn.ReLU()), torch.ones(2, 6)
    layers = KnownLayers(module)
    assert layers.editable(inputs) is inputs
    module[0].inplace = True
    assert layers.editable(inputs) is not inputs


PLAIN = {
    **{
        kind.__name__: (partial(build, kind), partial(sample, kind))
        for kind in sorted(PLAIN_LAYERS - {nn.Bilinear}, key=lambda kind: kind.__name__)
    },
    **{
        f"declared {number}": (build_block, partial(torch.randn, 3, 4, 6, 6))
        for number, build_block in enumerate(
            (
                partial(Residual, basic_body(4, 4, 1), nn.Identity()),
                partial(Residual, basic_body(4, 8, 2), PadShortcut(4, 8, 2)),
                partial(PreActivation, 4, 4, 1),
                partial(PreActivation, 4, 8, 2),
                partial(PadShortcut, 4, 8, 2),
            )
        )
    },
    "of a user": (Doubled, partial(torch.randn, 3, 6)),
}


@pytest.mark.parametrize(("build_layer", "build_inputs"), PLAIN.values(), ids=PLAIN)
def test_a_plain_layer_draws_nothing_and_leaves_its_input(build_layer, build_inputs):
    layer, inputs = build_layer().train(), build_inputs()
    layers = KnownLayers(nn.Sequential(layer))
    assert layers.plain
    assert layers.draws == "nothing"
    before, state = inputs.clone(), torch.get_rng_state()
    layer(layers.editable(inputs))
    assert torch.equal(inputs, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_containers_are_plain_and_a_part_around_which_the_network_has_hooks_is_not():
    module = Doubled()  # never calls its containers
    module.more = nn.ModuleList([nn.Linear(6, 6)])
    module.named = nn.ModuleDict({"one": nn.Linear(6, 6)})
    assert KnownLayers(module).plain
    network = Between()
    stages = cut(network, stages=Plan(("second",)), sample=torch.ones(2, 6))
    network.register_forward_hook(lambda module, inputs, output: None)
    assert not any(KnownLayers(stage).plain for stage in stages)


class Between(nn.Module):
    """Network with a scale of its own between two blocks."""

    plain_forward = True

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 0.5))
        self.first, self.second, self.head = Doubled(), Doubled(), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(self.second(self.first(inputs) * self.scale))


class Tied(Between):
    """A network whose scale is sent to the next stage."""

    plain_forward = True

    def forward(self, inputs):
        return self.head(self.second(self.first(inputs) * self.scale) * self.scale)


@pytest.mark.parametrize(
    ("network", "plan", "plain"),
    [
        (Between, ("second.inner", "head"), True),
        (unknown(Between), ("second.inner", "head"), False),
        (Tied, ("second",), False),
    ],
)
def test_parts_are_plain_where_the_forward_is_and_no_weight_is_sent(network, plan, plain):
    stages = cut(network(), stages=Plan(plan), sample=torch.ones(2, 6))
    assert [KnownLayers(stage).plain for stage in stages] == [plain] * len(stages)


# A class that wrongly declares a plain forward is refused with its first batch.


def declared(name, forward):
    """Return a class that declares this forward plain."""
    return type(name, (Doubled,), {"plain_forward": True, "forward": forward})


Draws = declared("Draws", lambda self, inputs: self.inner(inputs) * torch.rand(()))
DrawsOfPython = declared("Draws", lambda self, inputs: self.inner(inputs) * random.random())
Edits = declared("Edits", lambda self, inputs: self.inner(inputs.mul_(2)))
Repeats = declared(
    "Repeats", lambda self, inputs: checkpoint(self.inner, inputs, use_reentrant=False)
)


BATCHES = [(torch.ones(4, 6), torch.arange(4) % 3) for _ in range(4)]


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (Edits, "stage 0: a forward edits its input in place; .* is declared by Edits; take"),
        (Repeats, "stage 0: something was forwarded again inside the backward"),
    ],
)
def test_a_wrong_declaration_is_refused(first, text):
    with pytest.raises(LinearizeError, match=text):
        train("fdg", [first(), nn.Linear(6, 3)], BATCHES)


@pytest.mark.parametrize("first", [Draws, DrawsOfPython])
def test_precautions_are_taken_after_all_if_numbers_were_drawn(first):
    text = f"stage 0: random numbers were drawn in a forward, .* by {first.__name__}; all"
    stages = first(), nn.Linear(6, 3)
    trainer = Trainer(stages, method="fdg", optimizer=sgd)
    with pytest.warns(UserWarning, match=text):
        trainer.fit(BATCHES, epochs=1, progress=False)
    trainer.fit(BATCHES, epochs=1, progress=False)  # without a warning
    assert trainer.stages[0].core.layers.draws == "anything"


class Routed(Doubled):
    """A forward that calls other layers with other batches."""

    plain_forward = True

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.either = nn.ModuleList([nn.Linear(6, 6)])

    def forward(self, inputs):
        layer = self.inner if inputs.sum() > 0 else self.other
        return self.either[0](layer(inputs))


def cut_before(*plan):
    return lambda kind: cut(kind(), stages=Plan(plan), sample=torch.ones(2, 6))


@pytest.mark.parametrize(
    "method", ["fdg", "ddg", "fdg:linearize=live", "ddg:linearize=live", "fr"]
)
@pytest.mark.parametrize(
    ("build_stages", "kind"),
    [
        (cut_before("second"), Between),
        (cut_before("second.inner"), Between),
        (cut_before("second.inner", "head"), Between),
        (lambda kind: [kind(), nn.Linear(6, 3)], Routed),
    ],
    ids=["second", "inner", "both", "routed"],
)
def test_a_declared_forward_is_trained_to_the_same_bits(build_stages, kind, method):
    """Also one that calls other layers with other batches."""
    signs, weights = [1, 1, -1, 1, -1, -1], []
    batches = [(sign * torch.rand(4, 6), torch.arange(4) % 3) for sign in signs]
    for each in (kind, unknown(kind)):
        torch.manual_seed(0)
        stages = build_stages(each)
        assert all(KnownLayers(stage).plain for stage in stages) == (each is kind)
        trainer = Trainer(stages, method=method, optimizer=sgd)
        trainer.fit(batches, epochs=2, progress=False)
        weights.append([weight for stage in stages for weight in stage.parameters()])
    assert not different(*weights)


def test_a_wrong_declaration_beside_layers_that_need_precautions_does_no_harm():
    for first in (Draws, Edits):
        train("fdg", [nn.Sequential(first(), nn.Dropout(0.5)), nn.Linear(6, 3)], BATCHES)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        train("fdg", [nn.Linear(6, 6), nn.Sequential(Edits(), nn.Linear(6, 3))], BATCHES)
