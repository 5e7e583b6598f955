"""Copies in the place of known layers' weights give the gradients of hooks, bit for bit."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmarks.harness.allocations import trace_allocations
from contract.small import conv, data, different
from hocket.methods import DDG
from hocket.stage.late_gradients.build import build_linearizer
from hocket.stage.late_gradients.linearizer import KeptOutput, StageLayers
from hocket.stage.late_gradients.saved_weights import CopiedWeights, SavedTensorHooks
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.weight_copies.forward_state import mismatches, named_tensors, set_tensors

IMAGES = torch.randn(4, 6, 8, 8, generator=torch.Generator().manual_seed(1))
VECTORS = IMAGES[:, :, 0, 0].contiguous()
WORDS = torch.arange(12).reshape(4, 3) % 5


def in_larger_memory() -> nn.Module:
    layer = nn.Linear(6, 5)
    layer.weight = nn.Parameter(torch.randn(9, 6)[2:7])
    return layer


MODULES = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), VECTORS),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)), IMAGES),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)), VECTORS),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 6), nn.PReLU(6)), IMAGES),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(6), nn.GELU()), VECTORS),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(6, 4, 3, bias=False)), IMAGES),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 2)), WORDS),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(6, 4, 3)).to(memory_format=torch.channels_last),
        IMAGES.to(memory_format=torch.channels_last),
    ),
    "part of larger memory": (lambda: nn.Sequential(in_larger_memory()), VECTORS),
    "frozen": (
        lambda: nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)),
        VECTORS,
    ),
}


def build(name: str = "linear") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build_module, inputs = MODULES[name]
    return build_module(), inputs


def copied(module: nn.Module) -> CopiedWeights:
    linearizer = build_linearizer(DDG(), 1, StageLayers(known=KnownLayers(module)))
    assert isinstance(linearizer, CopiedWeights)
    return linearizer


def hooks(module: nn.Module, *, stash: bool, keep_states: bool = False) -> SavedTensorHooks:
    layers = StageLayers(known=KnownLayers(module), keep_states=keep_states)
    return SavedTensorHooks(layers, stash=stash)


def back_propagate(kept: KeptOutput) -> None:
    kept.get().square().sum().backward()
    kept.after_backward()


def late_gradients(
    linearizer_of: Callable[[nn.Module], SavedTensorHooks], name: str
) -> list[Tensor]:
    """Gradients of two batches, the weights having changed after their forwards."""
    module, inputs = build(name)
    linearizer = linearizer_of(module)
    linearizer.forward(inputs)
    linearizer.after_update()
    kept = [linearizer.forward(inputs + n)[1] for n in (0, 0)]
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(1)
    linearizer.after_update()
    gradients = []
    for batch in kept:
        module.zero_grad()
        back_propagate(batch)
        gradients += [torch.zeros(0) if p.grad is None else p.grad for p in module.parameters()]
    return gradients


@pytest.mark.parametrize("name", MODULES)
def test_late_gradients_are_those_of_hooks(name):
    wanted = late_gradients(partial(hooks, stash=True), name)
    found = late_gradients(copied, name)
    assert any(gradient.any() for gradient in wanted)
    assert not different(wanted, found)


ADD_HOOK = {
    "of weight": lambda layer, see: layer.weight.register_hook(see),
    "after accumulation": lambda layer, see: layer.weight.register_post_accumulate_grad_hook(
        lambda p: see(p.grad)
    ),
    "of layer": lambda layer, see: layer.register_forward_hook(lambda *_: see(layer.weight)),
}


@pytest.mark.parametrize("add_hook", ADD_HOOK.values(), ids=ADD_HOOK)
def test_hooks_that_come_later_see_the_weight_itself(add_hook):
    module, inputs = build()
    linearizer, seen = copied(module), []
    linearizer.forward(inputs)
    add_hook(module[0], seen.append)
    _, kept = linearizer.forward(inputs)
    back_propagate(kept)
    weight = module[0].weight
    assert len(seen) == 1
    assert seen[0] is weight or torch.equal(seen[0], weight.grad)


def test_weights_are_in_place_after_a_forward_that_fails():
    module, inputs = build()
    weights, linearizer = list(module.parameters()), copied(module)
    linearizer.forward(inputs)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        linearizer.forward(inputs[:, :2])
    assert all(a is b for a, b in zip(weights, module.parameters(), strict=True))


@pytest.mark.parametrize("stash", [True, False])
def test_a_graph_without_a_backward_is_freed(stash):
    """As of a batch that is skipped, or in flight when a trainer is closed."""
    module, inputs = nn.Sequential(nn.Linear(8, 2**12), nn.ReLU()), torch.ones(8, 8)
    linearizer = hooks(module, stash=stash)
    traced = trace_allocations(linearizer.forward(inputs) is None for _ in range(6))
    held = [each.held for each in traced]
    assert held[2:] == held[1:-1]


# The state of a forward is enough to repeat it, and holds nothing twice.


def storages(state):
    return {value.untyped_storage().data_ptr() for value in state.weights.values()}


def test_stash_shares_what_is_kept_with_what_it_copies():
    (module,), ((inputs, _), (other, _)) = conv(1), data(conv, 2)
    linearizer = hooks(module, stash=True, keep_states=True)
    assert hooks(module, stash=True).forward_state() is None
    state = linearizer.forward_state()
    stashed = storages(state)
    linearizer.forward(inputs)
    assert {copy.data_ptr() for copy in linearizer.copies._copies.values()} == stashed
    assert storages(linearizer.forward_state()) == stashed
    # An update and a forward of another batch.
    module(other)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1)
    linearizer.after_update()
    assert not storages(linearizer.forward_state()) & stashed


def test_equal_values_are_not_written_again():
    """A write would end the validity of what autograd has saved."""
    (module,) = conv(1)
    before = [p._version for p in module.parameters()]
    set_tensors(module, {name: value.clone() for name, value in named_tensors(module).items()})
    assert [p._version for p in module.parameters()] == before


def test_buffers_outside_of_a_state_dict_count_too():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("hidden", torch.zeros(2), persistent=False)

    assert named_tensors(Hidden()).keys() == {"hidden"}
    assert mismatches(Hidden(), {}, "here") == ["here: 'hidden' is missing"]
    assert mismatches(nn.ReLU(), {"a": torch.ones(1)}, "here") == ["here: there is no 'a'"]
