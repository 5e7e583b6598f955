"""Inner rooms are layered: each imports only those before it, imports for types included."""

import pytest

from architecture.test_import_order import FILES, imported, tree_of

# Inner rooms of a room, each of which may import itself and those before it.
ROOMS = {
    "distributed": ("network", "folder", "failures", "world", "launching", "replicas"),
    "partition": ("recording", "parts", "costs"),
    "transport": ("codecs", "processes"),
}
MODULES = {room: [name for name in FILES if name.split(".")[0] == room] for room in ROOMS}


def inner_room(module):
    """Return the inner room of a module, or the module itself if it is in none."""
    room, _, rest = module.partition(".")
    first = rest.split(".")[0]
    return first if first in ROOMS[room] else module


@pytest.mark.parametrize("room", ROOMS)
def test_an_inner_room_imports_only_those_before_it(room):
    order = ROOMS[room]
    wrong = [
        f"{module} imports {other}"
        for module in MODULES[room]
        for other in imported(tree_of(module)) & set(MODULES[room])
        if (here := inner_room(module)) in order
        and (there := inner_room(other)) in order
        and order.index(there) > order.index(here)
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_an_inner_room_imports_does_not_import_it_back(room):
    def reached(module):
        found, waiting = set(), [module]
        while waiting:
            new = (imported(tree_of(waiting.pop())) & set(MODULES[room])) - found
            found |= new
            waiting += new
        return found

    back = [
        f"{module} imports {other}, which imports {module}'s room"
        for module in MODULES[room]
        if inner_room(module) in ROOMS[room]
        for other in imported(tree_of(module)) & set(MODULES[room])
        if inner_room(other) == other
        and inner_room(module) in {inner_room(each) for each in reached(other)}
    ]
    assert back == []


def test_every_inner_room_is_listed():
    for room, order in ROOMS.items():
        packages = {name.split(".")[1] for name in MODULES[room] if name.count(".") > 1}
        assert packages == set(order)
