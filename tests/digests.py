"""Digests of some hundred short trainings, to prove that a change of the code moved no bit.

Run ``python tests/digests.py write FILE`` before the change and ``python tests/digests.py
compare FILE`` after it, on the same machine: another processor or another PyTorch may round
differently. A training is named by its place in a list, so that options may be renamed.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from contract import resumed
from contract.test_distributed import CASES, REPLICATED, with_replicas
from contract.worlds import Left, trained, trained_apart

STAGES = 2


def digest_of(value: Any) -> str:
    """Digest of nested containers by the bytes of their tensors and the texts of the rest."""
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
            digest.update(
                item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
        elif isinstance(item, dict):
            for inner in item.values():  # keys may be renamed
                add(inner)
        elif isinstance(item, list | tuple):
            digest.update(f"[{len(item)}".encode())
            for inner in item:
                add(inner)
        else:
            digest.update(repr(item).encode())

    add(value)
    return digest.hexdigest()[:16]


def digests_of(left: Left) -> dict[str, str]:
    """Digests of what a training leaves in one process."""
    return {
        "weights": digest_of(left.weights),
        "metrics": digest_of(left.history),
        "optimizers": digest_of(left.optimizers),
        "auxiliary": digest_of(left.signals),
    }


def all_digests() -> Iterator[tuple[str, dict[str, str]]]:
    """Names and digests of all trainings."""
    torch.set_num_threads(1)
    for number, case in enumerate(CASES):
        for stages in (1, 2, 3):
            yield f"serial {number} on {stages}", digests_of(trained(case, stages))
    for number, (_, parts) in enumerate(trained_apart(CASES, STAGES).items()):
        for rank, left in enumerate(parts):
            yield f"processes {number}, rank {rank}", digests_of(left)
    replicated = trained_apart([with_replicas(case) for case in REPLICATED], STAGES, replicas=2)
    for number, (_, parts) in enumerate(replicated.items()):
        for rank, left in enumerate(parts):
            yield f"replicas {number}, rank {rank}", digests_of(left)
    for number, case in enumerate(resumed.FREE):
        yield f"free {number}", digests_of(trained(case, 3))
    for number, case in enumerate([*resumed.CASES, *resumed.FREE]):
        with tempfile.TemporaryDirectory() as folder:
            _, checkpoints = resumed.all_of(case, 3, Path(folder))
            left = trained(case, 3, resume=checkpoints[len(checkpoints) // 2])
            yield f"resumed {number}", digests_of(left)


def main(what: str, file: str) -> int:
    """Write the digests to a file, or compare them with those of a file."""
    found = dict(all_digests())
    if what == "write":
        Path(file).write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} trainings written to {file}")
        return 0
    wanted = json.loads(Path(file).read_text())
    wrong = [
        f"{name}: {part}"
        for name in sorted(wanted | found)
        for part in sorted(wanted.get(name, {}) | found.get(name, {}))
        if wanted.get(name, {}).get(part) != found.get(name, {}).get(part)
    ]
    for line in wrong:
        print(f"differs: {line}")
    print(f"{len(wanted)} trainings compared, {len(wrong)} digests differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
