"""Promises of the source about itself: one-way imports, small pieces, no names in engines."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hocket
from hocket.methods import METHODS

SOURCE = Path(hocket.__file__).parents[1]
# A room is a package or a loose module. It may import itself and rooms of earlier lines only.
# `lab` is the package hocket_lab, which the library never imports.
LEVELS = (
    ("errors", "files", "modes", "standard_stream", "tree", "version"),
    ("options", "restore"),
    ("data", "distributed", "optim", "partition", "remedies", "signals", "timeline", "zoo"),
    ("checkpoint", "codecs", "methods"),
    ("program", "transport"),
    ("stage",),
    ("engine",),
    ("training",),
    ("callbacks", "integrations"),
    ("runs",),
    ("__init__", "cli"),
    ("__main__", "lab.planner", "lab.studies"),
    ("lab.report",),
    ("lab.__init__", "lab.commands"),
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# An inner room may import those to its left, and modules of its room that do not import it.
INNER_ROOMS = {
    "distributed": ("network", "folder", "failures", "world", "launching", "replicas"),
    "methods": ("simulated",),
    "partition": ("recording", "parts", "costs"),
    "stage": (
        "weight_copies",
        "layers",
        "update",
        "finite",
        "late_gradients",
        "weights",
        "passes",
    ),
    "training": ("results", "session", "checkpoints", "fit"),
    "transport": ("processes",),
}
# Names of two public things, and why.
SHARED_NAMES = {"main": "entry point of a process"}


def module_name(file: Path) -> str:
    """Return the dotted name of a file, without `hocket.`; `lab` for hocket_lab."""
    package, *parts = file.relative_to(SOURCE).with_suffix("").parts
    inner = ["lab", *parts] if package == "hocket_lab" else parts
    is_root = parts == ["__init__"]
    return ".".join(inner if is_root or parts[-1] != "__init__" else inner[:-1])


FILES = {module_name(file): file for file in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Leave no half a million nodes to every later search for garbage."""
    yield
    tree_of.cache_clear()


def room_of(module: str) -> str:
    first, *others = module.split(".")
    return f"lab.{others[0]}" if first == "lab" else first


def inner_room_of(module: str) -> str:
    """Return the inner room that a module is in; the module itself where it is in none."""
    room, *others = module.split(".")
    return others[0] if others and others[0] in INNER_ROOMS.get(room, ()) else module


def imported(tree: ast.Module) -> set[str]:
    """The modules of Hocket that a module imports anywhere, for types too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {known_name(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            for alias in node.names:
                inner = known_name(f"{node.module}.{alias.name}")
                names.add(inner if inner in FILES else known_name(str(node.module)))
    return names - {""}


def known_name(dotted: str) -> str:
    """Return a dotted name as in `FILES`; nothing for one that is not Hocket's.

    >>> known_name("hocket.stage.stage"), known_name("hocket_lab"), known_name("torch.nn")
    ('stage.stage', 'lab.__init__', '')
    """
    package, _, inner = dotted.partition(".")
    if package not in ("hocket", "hocket_lab"):
        return ""
    return f"lab.{inner or '__init__'}" if package == "hocket_lab" else inner or "__init__"


def violations(module: str, imports: set[str]) -> list[str]:
    """Imports of rooms on the same or a later line of LEVELS, in words."""
    room = room_of(module)
    if room not in LEVEL:
        return [f"hocket.{module} is in no line of LEVELS; add it where its imports allow"]
    wrong = []
    for other in sorted(imports):
        its = room_of(other)
        if its not in LEVEL or (its != room and LEVEL[its] >= LEVEL[room]):
            wrong.append(
                f"hocket.{module} imports hocket.{other}: {room} is on level {LEVEL[room]} and "
                f"may import what is below it, {its} is on level {LEVEL.get(its)}"
            )
    return wrong


def test_imports_go_one_way():
    found = [text for module in FILES for text in violations(module, imported(tree_of(module)))]
    assert not found, "\n".join(found)


def test_a_wrong_import_is_named():
    (text,) = violations("engine.serial", {"errors", "engine.event", "training.trainer"})
    assert "hocket.engine.serial imports hocket.training.trainer" in text
    (text,) = violations("zoo.mlp", {"data"})
    assert "hocket.zoo.mlp imports hocket.data" in text
    (text,) = violations("surprise", set())
    assert "hocket.surprise is in no line of LEVELS" in text


def test_imports_are_found_wherever_and_however_they_are_written():
    tree = ast.parse(
        "import hocket\nimport hocket.partition.plan\nfrom hocket import data as sets, FDG\n"
        "def late():\n    from hocket.engine.serial import Serial\nimport torch\n"
    )
    assert imported(tree) == {"__init__", "partition.plan", "data", "engine.serial"}


def test_rooms_are_few_and_each_is_on_one_level():
    assert {room_of(module) for module in FILES} == LEVEL.keys()
    assert len([p for p in (SOURCE / "hocket").iterdir() if (p / "__init__.py").exists()]) <= 21
    assert len(list((SOURCE / "hocket").glob("*.py"))) <= 9
    assert len(LEVELS) <= 14


def test_no_folder_has_more_than_20_modules():
    folders = Counter(file.parent for file in FILES.values() if file.name != "__init__.py")
    assert [str(folder) for folder, count in folders.items() if count > 20] == []


def test_inner_rooms_import_those_to_their_left():
    for room, inner_rooms in INNER_ROOMS.items():
        rank = {name: i for i, name in enumerate(inner_rooms)}
        for module in (m for m in FILES if room_of(m) == room and inner_room_of(m) in rank):
            mine = inner_room_of(module)
            others = {inner_room_of(i) for i in imported(tree_of(module)) if room_of(i) == room}
            later = {other for other in others & rank.keys() if rank[other] > rank[mine]}
            assert not later, f"hocket.{module} imports {sorted(later)}"


def test_nothing_imports_the_measurements():
    users = {
        module
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Import | ast.ImportFrom) and "benchmarks" in ast.unparse(node)
    }
    assert not users


def test_inner_rooms_import_each_other_in_no_circle():
    graph: dict[str, set[str]] = {inner_room_of(module): set() for module in FILES}
    for module in FILES:
        within = map(inner_room_of, imported(tree_of(module)) & FILES.keys())
        graph[inner_room_of(module)] |= set(within) - {inner_room_of(module)}
    TopologicalSorter(graph).prepare()  # raises a CycleError that names them


def test_imports_are_at_most_30_deep():
    graph = {module: imported(tree_of(module)) & FILES.keys() - {module} for module in FILES}
    depth: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        depth[module] = 1 + max((depth[other] for other in graph[module]), default=0)
    assert max(depth.values()) <= 30, max(depth, key=depth.__getitem__)


@pytest.mark.parametrize("package", ["zoo", "data"])
def test_networks_and_data_sets_stand_alone(package):
    for module in (m for m in FILES if m.split(".")[0] == package):
        outside = {i for i in imported(tree_of(module)) if i.split(".")[0] != package}
        rooms = {room_of(name) for name in outside}
        assert rooms <= {"errors", "options"}, f"hocket.{module} imports {sorted(outside)}"


def test_only_main_and_other_commands_import_the_command_line():
    users = {
        module
        for module in FILES
        if room_of(module) not in ("cli", "lab.commands")
        and "cli" in map(room_of, imported(tree_of(module)))
    }
    assert users == {"__main__"}


def lines_of_code(module: str) -> int:
    """Return the number of lines without blank ones, comments and docstrings."""
    text = FILES[module].read_text().splitlines()
    lines = {i for i, line in enumerate(text, 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_no_file_over_400_lines_of_code():
    assert [module for module in FILES if lines_of_code(module) > 400] == []


def test_functions_have_at_most_80_lines_and_12_parameters():
    long = set()
    for module in FILES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                given = node.args
                named = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
                few = len(named - {"self", "cls"}) <= 12
                long |= set() if lines <= 80 and few else {f"{module}.{node.name}"}
    assert long == set()


def attributes_of(kind: ast.ClassDef) -> set[str]:
    """The attributes that the methods of a class set."""
    return {
        node.attr
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def test_no_class_sets_more_than_20_attributes():
    large = {
        f"{module}.{node.name}": len(attributes_of(node))
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ClassDef) and len(attributes_of(node)) > 20
    }
    assert large == {}


def test_a_public_name_stands_for_one_thing():
    homes: dict[str, list[str]] = {}
    for module in FILES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(module)
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared


def test_engines_stages_and_trainer_never_ask_for_a_methods_name():
    asked = []
    for module in FILES:
        if module.split(".")[0] in ("engine", "stage", "program", "training"):
            asked += [
                f"hocket.{module}, line {node.lineno}: {node.value!r}"
                for node in ast.walk(tree_of(module))
                if isinstance(node, ast.Constant) and node.value in METHODS
            ]
    assert not asked, "\n".join(asked)


def test_public_names_are_few():
    assert 15 <= len(hocket.__all__) <= 40
