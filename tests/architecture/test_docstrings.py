"""The prose rule: docstrings begin with a verb or a noun, and say what types do not.

``python tests/architecture/test_docstrings.py src/hocket/stage`` lists what is missing there.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADLESS = {
    "what", "where", "whether", "how", "of", "who", "whoever", "whatever", "which", "why",
    "when", "inside", "afterwards",
}  # fmt: skip
SHAPE = re.compile(r"\([A-Z0-9.][A-Z0-9a-z_*., ]*\)|\bscalar\b|\bshape\b")
# An override, or the preset of a method, may leave the parameters to what it takes them from.
DESCRIBED = re.compile(
    r"^(Args:|Parameters$)|\b[Ss]ee the (protocol|base)|[Oo]ptions: see `\w+`", re.MULTILINE
)
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files(*places: Path) -> list[Path]:
    return [f for place in places for f in sorted(place.rglob("*.py"))]


def definitions(file: Path) -> Iterator[tuple[Definition, str, int]]:
    """Everything in a file that has a docstring, with that docstring and its line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, Definition) and (text := ast.get_docstring(node)):
            yield node, text, getattr(node, "lineno", 1)


def is_public(node: Definition) -> bool:
    return not getattr(node, "name", "_").startswith("_")


def headless(*places: Path) -> list[str]:
    """First lines that name no subject, and say nothing to do."""
    return [
        f"{file}:{line}: {text.splitlines()[0]}"
        for file in files(*places)
        for _, text, line in definitions(file)
        if text.split()[0].lower().strip(",.:;`*") in HEADLESS
    ]


def parameters(node: ast.FunctionDef) -> list[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [a.arg for a in every if a.arg not in ("self", "cls")]


def functions(*places: Path) -> Iterator[tuple[Path, ast.FunctionDef, str]]:
    """Public functions and methods that are no part of a private class or function."""
    for file in files(*places):
        tree = ast.parse(file.read_text())
        owners = [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and is_public(n))]
        for owner in owners:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and is_public(node):
                    yield file, node, ast.get_docstring(node) or ""


def without_args(*places: Path) -> list[str]:
    """Public functions of three or more parameters that do not describe them.

    An override may refer to the protocol or the class that does.
    """
    return [
        f"{file}:{node.lineno}: {node.name} has {len(parameters(node))} parameters, and no Args"
        for file, node, text in functions(*places)
        if len(parameters(node)) >= 3 and not DESCRIBED.search(text)
    ]


def without_shapes(*places: Path) -> list[str]:
    """Public functions that give a tensor, and do not say of what shape."""
    return [
        f"{file}:{node.lineno}: {node.name} gives a tensor; say its shape, such as (B, D)"
        for file, node, text in functions(*places)
        if node.returns is not None
        and ast.unparse(node.returns) == "Tensor"
        and not SHAPE.search(text)
    ]


def test_first_lines_begin_with_a_verb_or_a_noun():
    assert headless(ROOT / "src", ROOT / "benchmarks") == []


def test_functions_of_three_or_more_parameters_describe_them():
    assert without_args(ROOT / "src") == []


def test_functions_that_give_a_tensor_say_its_shape():
    assert without_shapes(ROOT / "src") == []


def test_headless_lines_and_missing_args_and_shapes_are_found(tmp_path):
    text = '"""Codecs."""\ndef f(a, b, c) -> Tensor:\n    """Whether it is so."""\n'
    text += 'def g(a) -> Tensor:\n    """Add (B, D)."""\n'
    text += 'def h(a, b, c):\n    """Add; see the protocol."""\n'
    (tmp_path / "a.py").write_text(text)
    assert [line.partition(": ")[2] for line in headless(tmp_path)] == ["Whether it is so."]
    assert len(without_args(tmp_path)) == 1
    assert len(without_shapes(tmp_path)) == 1


if __name__ == "__main__":
    asked = [Path(word) for word in sys.argv[1:]]
    print(*headless(*asked), *without_args(*asked), *without_shapes(*asked), sep="\n")
