"""Promises of the source about itself: one-way imports, small pieces, no names in engines."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hocket
from hocket.methods import METHODS

SOURCE = Path(hocket.__file__).parent
# A room is a package or a loose module. It may import itself and rooms of earlier lines only.
LEVELS = (
    ("errors", "files", "modes", "standard_stream", "tree"),
    ("own_function",),
    ("options", "restore"),
    ("data", "distributed", "partition", "remedies", "signals", "timeline", "zoo"),
    ("checkpoint", "methods"),
    ("program", "transport"),
    ("stage",),
    ("engine",),
    ("planner", "training"),
    ("runs",),
    ("__init__", "cli"),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Larger than the rule allows, and why.
LARGE_FILES: dict[str, str] = {
    "training.trainer": "one class that forwards; most of it documents the public interface",
}
LONG_FUNCTIONS: dict[str, str] = {}
# Names of two public things, and why.
SHARED_NAMES = {"main": "entry point of a process"}
# Needed by the command line or by one data set; a program of the user's may do without them.
OPTIONAL = (
    "cyclopts",
    "sklearn",
    "pyarrow",
    "matplotlib",
    "tensorboard",
    "wandb",
    "mlflow",
    "datasets",
)


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    package = len(parts) > 1 and parts[-1] == "__init__"
    return ".".join(parts[:-1] if package else parts)


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
    return module.split(".")[0]


def imported(tree: ast.Module) -> set[str]:
    """The modules of Hocket that a module imports anywhere, without the leading `hocket.`."""
    dotted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner.removeprefix("hocket.") in FILES
                dotted.add(inner if is_module else str(node.module))
    own = (name for name in dotted if name.split(".")[0] == "hocket")
    return {name.partition(".")[2] or "__init__" for name in own}


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


def at_run_time(tree: ast.Module) -> ast.Module:
    """The module without what only type checkers see."""
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return ast.Module(body, tree.type_ignores)


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
    packages = {p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()}
    modules = {p.stem for p in SOURCE.glob("*.py")}
    assert packages | modules == LEVEL.keys()
    assert len(packages) <= 18
    assert len(modules) <= 9
    assert len(LEVELS) <= 12


def test_one_run_knows_nothing_of_studies_and_they_know_nothing_of_reports():
    order = ("runs", "runs.sweeps", "runs.report")
    place = {
        m: max(order.index(p) for p in order if m.startswith(p))
        for m in FILES
        if room_of(m) == "runs"
    }
    for module, mine in place.items():
        later = {i for i in imported(tree_of(module)) if place.get(i, 0) > mine}
        assert not later, f"hocket.{module} imports {sorted(later)}"


def test_nothing_imports_the_measurements():
    users = {
        module
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Import | ast.ImportFrom) and "benchmarks" in ast.unparse(node)
    }
    assert not users


def test_no_import_cycle_within_a_package():
    graph = {m: imported(at_run_time(tree_of(m))) & FILES.keys() for m in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", ["zoo", "data"])
def test_networks_and_data_sets_stand_alone(package):
    for module in (m for m in FILES if m.split(".")[0] == package):
        outside = {i for i in imported(tree_of(module)) if i.split(".")[0] != package}
        assert outside <= {"errors", "options", "own_function"}, (
            f"hocket.{module} imports {sorted(outside)}"
        )


def test_only_main_imports_the_command_line():
    users = {
        module
        for module in FILES
        if room_of(module) != "cli" and "cli" in map(room_of, imported(tree_of(module)))
    }
    assert users == {"__main__"}


@pytest.mark.parametrize("module", FILES)
def test_every_module_says_what_it_is_for(module):
    assert ast.get_docstring(tree_of(module)), f"hocket.{module} has no docstring"


def test_no_file_over_400_lines():
    lengths = {m: len(file.read_text().splitlines()) for m, file in FILES.items()}
    large = {module for module, length in lengths.items() if length > 400}
    assert large == LARGE_FILES.keys()


def test_no_function_over_80_lines():
    long = set()
    for module in FILES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                long |= {f"{module}.{node.name}"} if lines > 80 else set()
    assert long == LONG_FUNCTIONS.keys()


def test_a_public_name_stands_for_one_thing():
    homes: dict[str, list[str]] = {}
    for module in FILES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(module)
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared


def test_no_function_has_more_than_12_parameters():
    long = set()
    for module in FILES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                count = sum(each.arg not in ("self", "cls") for each in named)
                long |= {f"{module}.{node.name}"} if count > 12 else set()
    assert long == {"training.trainer.__init__"}


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


def test_the_library_works_without_what_only_the_command_line_needs():
    program = f"""
import sys

# None in the table of modules makes an import fail as if the package were not there.
sys.modules |= dict.fromkeys({OPTIONAL})
import hocket, torch
torch.set_num_threads(1)
trainer = hocket.Trainer(
    hocket.zoo.mlp(in_features=4, hidden=[4], num_classes=2),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
)
trainer.fit([(torch.zeros(2, 4), torch.tensor([0, 1]))] * 3, epochs=1, progress=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def public_names() -> set[str]:
    return set(hocket.__all__)


def test_there_are_about_twenty_public_names():
    assert 15 <= len(public_names()) <= 25


@pytest.mark.parametrize("name", sorted(public_names()))
def test_every_public_name_is_documented(name):
    text = getattr(hocket, name).__doc__ or ""
    first = text.strip().partition("\n")[0]
    # A dataclass without a docstring gets its signature for one.
    assert len(first) > 15
    assert not first.startswith(f"{name}("), f"hocket.{name} has no docstring of its own"
