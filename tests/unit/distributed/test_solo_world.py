"""The world of a process that trains alone has nothing that others lack."""

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World


def test_everything_in_a_solo_world_is_in_a_world_too():
    names = {name for name in [*dir(SoloWorld), *vars(SoloWorld())] if name[0] != "_"}
    set_when_built = {"rank", "size", "stage", "replica", "replicas", "rejoined", "flags"}
    set_when_built.add("names")
    assert names - set_when_built <= set(dir(World))
