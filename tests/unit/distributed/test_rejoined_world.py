"""A process that was started again alone has no process groups until the others reunite."""

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.world.world import World
from hocket.errors import WorldError


@pytest.fixture
def world():
    store = HashStore()
    joined = World(2, 1, 20.0, store, ProcessIdentity(1, 2, store, incarnation=1))
    yield joined
    joined.close()


def test_its_collectives_are_its_own_until_it_reunites(world):
    assert world.rejoined
    assert world.gather("mine") == ["mine"]
    assert world.broadcast("mine") == "mine"
    assert world.clock_offset() == 0.0
    layer = nn.Linear(1, 1)
    before = layer.weight.clone()
    world.copy_weights(layer, source=0)
    assert torch.equal(layer.weight, before)


def test_it_has_no_process_groups(world):
    with pytest.raises(WorldError, match=r"stage 1 has no process groups .* started again"):
        _ = world.groups


def test_it_does_not_begin_a_training_anew(world):
    with pytest.raises(WorldError, match=r"stage 1 was started again alone.*call resume"):
        world.membership.detach(again=False)
