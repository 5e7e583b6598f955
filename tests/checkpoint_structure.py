"""Structure of all parts of checkpoints, which may change only with their format.

``python tests/checkpoint_structure.py`` writes the list of keys and types that a test compares;
raise `FORMAT` in ``src/hocket/checkpoint/directory.py`` before.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from contract import resumed
from contract.worlds import trained
from hocket import Checkpoints
from hocket.checkpoint.directory import FORMAT, newest_first, read_manifest, read_part

FILE = Path(__file__).with_suffix(".txt")
OPAQUE = {
    "optimizer", "scheduler", "given_groups", "python", "numpy", "random", "layers", "names",
    "setup",
}  # fmt: skip
"""Entries whose content is that of a library, the network or the user."""


def entries(value: Any, path: str) -> Iterator[str]:
    """Yield the keys and types of nested containers; keys that are no words are alike."""
    yield f"{path}: {type(value).__name__}"
    if path.rpartition(".")[2] in OPAQUE:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            word = isinstance(key, str) and key.isidentifier()
            yield from entries(inner, f"{path}.{key if word else '*'}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from entries(inner, f"{path}[]")


def structure() -> list[str]:
    """Return the sorted entries of checkpoints of all methods and options with a state."""
    found: set[str] = set()
    for case in [*resumed.CASES, *resumed.FREE]:
        with tempfile.TemporaryDirectory() as folder:
            short = replace(case, epochs=1, batches=3)
            trained(short, 3 if case in resumed.FREE else 2, Checkpoints(Path(folder), every=3))
            for place in newest_first(Path(folder)):
                manifest = read_manifest(place)
                found |= set(entries(asdict(manifest), "manifest"))
                for name in manifest.parts:
                    found |= set(entries(read_part(place, name, manifest), "part"))
    return sorted(found)


if __name__ == "__main__":
    FILE.write_text("\n".join([f"format {FORMAT}", *structure()]) + "\n")
