"""What is kept of a forward for it to be done again: enough, and nothing twice."""

import torch
from torch import nn

from contract.small import conv, data, different
from hocket.stage.forward_state import mismatches, named_tensors, repeat_forward, set_tensors
from hocket.stage.linearize import SavedTensorHooks

(X, _), (OTHER, _) = data(conv, 2)


def module():
    (own,) = conv(1)
    return own


def changed(own):
    """As an update and a forward of another batch change it."""
    own(OTHER)
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.1)


def storages(past):
    return {value.untyped_storage().data_ptr() for value in past.weights.values()}


def test_nothing_is_kept_unless_it_is_asked_for():
    assert SavedTensorHooks(stash=True).forward_state(module()) is None


def test_a_forward_done_again_is_the_first_one_and_leaves_statistics_alone():
    own, linearizer = module(), SavedTensorHooks(stash=True, keep_states=True)
    past = linearizer.forward_state(own)
    first = own(X)
    changed(own)
    statistics = [buffer.clone() for buffer in own.buffers()]
    assert torch.equal(repeat_forward(own, X, past), first)
    assert not different(own.buffers(), statistics)


def test_gradients_are_those_of_the_graph_that_was_lost():
    """At the weights of then for stash, at those of now for live."""
    for stash in (True, False):
        own, found = module(), []
        linearizer = SavedTensorHooks(stash=stash, keep_states=True)
        past = linearizer.forward_state(own)
        _, graph = linearizer.forward(own, X)
        changed(own)
        now = {name: value.clone() for name, value in named_tensors(own).items()}
        linearizer.after_update()
        again = SavedTensorHooks(stash=stash, keep_states=True).rebuild_output(own, X, past)
        set_tensors(own, now)
        for each in (graph, again):
            own.zero_grad()
            each().sum().backward()
            found.append([p.grad.clone() for p in own.parameters()])
        assert not different(*found)


def test_stash_shares_what_is_kept_with_what_it_copies():
    own, linearizer = module(), SavedTensorHooks(stash=True, keep_states=True)
    past = linearizer.forward_state(own)
    kept = storages(past)
    linearizer.forward(own, X)
    assert {copy.data_ptr() for copy in linearizer._copies.values()} == kept
    assert storages(linearizer.forward_state(own)) == kept
    changed(own)
    linearizer.after_update()
    assert not storages(linearizer.forward_state(own)) & kept


def test_buffers_that_stay_the_same_are_kept_once():
    own, linearizer = module(), SavedTensorHooks(stash=False, keep_states=True)
    first, second = linearizer.forward_state(own), linearizer.forward_state(own)
    own(X)
    third = linearizer.forward_state(own)
    assert all(first.buffers[name] is second.buffers[name] for name in first.buffers)
    assert all(first.buffers[name] is not third.buffers[name] for name in first.buffers)


def test_equal_values_are_not_put_again():
    """A write would end the validity of what autograd has saved."""
    own = module()
    before = [p._version for p in own.parameters()]
    set_tensors(own, {name: value.clone() for name, value in named_tensors(own).items()})
    assert [p._version for p in own.parameters()] == before


def test_buffers_outside_of_a_state_dict_count_too():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("hidden", torch.zeros(2), persistent=False)

    assert named_tensors(Hidden()).keys() == {"hidden"}
    assert mismatches(Hidden(), {}, "here") == ["here: 'hidden' is missing"]
    assert mismatches(nn.ReLU(), {"a": torch.ones(1)}, "here") == ["here: there is no 'a'"]
