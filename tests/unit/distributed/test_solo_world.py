"""A process that trains alone is rank 0 of 1, and its collectives do nothing."""

import math

import torch
from torch import nn

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World


def test_everything_in_a_solo_world_is_in_a_world_too():
    names = {name for name in [*dir(SoloWorld), *vars(SoloWorld())] if name[0] != "_"}
    set_when_built = {"rank", "size", "stage", "replica", "replicas", "rejoined", "flags"}
    set_when_built.add("names")
    assert names - set_when_built <= set(dir(World))


def test_a_solo_world_has_all_stages():
    world = SoloWorld()
    assert (world.rank, world.size, world.stage) == (0, 1, 0)
    assert (world.replica, world.replicas) == (0, 1)
    assert world.is_main
    assert world.reads_data
    assert not world.rejoined
    assert world.process_name is None
    assert world.slow_timeout_s == math.inf
    assert list(world.local_stages(3)) == [0, 1, 2]
    assert world.agreement_store() is None


def test_collectives_of_a_solo_world_return_the_values_of_this_process():
    world, network = SoloWorld(), nn.Linear(2, 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert world.gather({"a": 1}) == [{"a": 1}]
    tree = (torch.ones(2), {"b": None})
    assert world.broadcast(tree) is tree
    world.copy_weights(network, source=0)
    assert all(torch.equal(before[name], v) for name, v in network.state_dict().items())
    assert world.clock_offset() == 0
    world.report_failure(ValueError("mine"))  # does nothing


def test_flags_of_a_solo_world_are_set_once_this_process_has_set_them():
    flags = SoloWorld().flags
    name = flags.new_name()
    assert flags.values(name) is None
    flags.set(name, "one")
    assert flags.values(name) == ["one"]
