"""The state of a forward is enough to repeat it, and holds nothing twice."""

from functools import partial

import torch
from torch import nn

from contract.small import conv, data
from hocket.stage.late_gradients.linearizer import StageLayers
from hocket.stage.late_gradients.saved_weights import SavedTensorHooks
from hocket.stage.weight_copies.forward_state import mismatches, named_tensors, set_tensors

(X, _), (OTHER, _) = data(conv, 2)


hooks = partial(SavedTensorHooks, StageLayers(keep_states=True))


def build_module():
    (module,) = conv(1)
    return module


def change(module):
    """Change a module as an update and a forward of another batch do."""
    module(OTHER)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1)


def storages(state):
    return {value.untyped_storage().data_ptr() for value in state.weights.values()}


def test_stash_shares_what_is_kept_with_what_it_copies():
    module, linearizer = build_module(), hooks(stash=True)
    assert SavedTensorHooks(StageLayers(), stash=True).forward_state(module) is None
    state = linearizer.forward_state(module)
    stashed = storages(state)
    linearizer.forward(module, X)
    assert {copy.data_ptr() for copy in linearizer.copies._copies.values()} == stashed
    assert storages(linearizer.forward_state(module)) == stashed
    change(module)
    linearizer.after_update()
    assert not storages(linearizer.forward_state(module)) & stashed


def test_equal_values_are_not_written_again():
    """A write would end the validity of what autograd has saved."""
    module = build_module()
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
