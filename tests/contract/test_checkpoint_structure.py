"""The format of checkpoints rises with what is in them."""

from checkpoint_structure import FILE, structure
from hocket.checkpoint.directory import FORMAT

WRITE = "python tests/checkpoint_structure.py"


def test_the_format_of_checkpoints_rises_with_the_structure_of_their_parts():
    first, *kept = FILE.read_text().splitlines()
    found = structure()
    changed = sorted(set(kept) ^ set(found))
    if changed and first == f"format {FORMAT}":
        raise AssertionError(
            f"checkpoints have changed: {changed}; write FORMAT = {FORMAT + 1} in "
            f"src/hocket/checkpoint/directory.py, and call `{WRITE}`"
        )
    assert (first, changed) == (f"format {FORMAT}", []), f"call `{WRITE}`"
