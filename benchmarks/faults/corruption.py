"""Corruption of checkpoints and packets, and counts of how often it is detected."""

import hashlib
import json
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.faults.job import FaultyJob, train_with_faults
from hocket.checkpoint.directory import FORMAT, MANIFEST, newest_first, read_manifest
from hocket.distributed import wire
from hocket.errors import CheckpointError, TransitError
from hocket.training.checkpoints.find_and_load import open_checkpoint
from hocket.transport.processes.backends import HostBackend
from hocket.transport.processes.message import MessageReader

Row = dict[str, Any]
FLIPPED = "checkpoint with another bit"
TRUNCATED = "checkpoint cut short"
FORGED = "checkpoint of a forger"
PACKET = "packet with another bit"


def corrupt_checkpoints(folder: Path, flips: int, truncations: int, seed: int) -> list[Row]:
    """Corrupt a checkpoint in an empty folder and try to read it; return a row for each kind.

    One bit is flipped, or one file truncated, at a time.
    """
    # Leave a checkpoint.
    train_with_faults(FaultyJob("fdg", 2), folder)
    checkpoint, rng = newest_first(folder / "checkpoints")[0], random.Random(seed)
    files = [file for file in sorted(checkpoint.iterdir()) if file.is_file()]
    contents = {file: file.read_bytes() for file in files}

    def flip_bit(data: bytes) -> bytes:
        damaged = bytearray(data)
        _flip_bit(damaged, rng)
        return bytes(damaged)

    def truncate(data: bytes) -> bytes:
        return data[: rng.randrange(len(data))]

    def is_detected(damage: Callable[[bytes], bytes]) -> bool:
        file = rng.choice(files)
        file.write_bytes(damage(contents[file]))
        detected = _is_refused(checkpoint)
        file.write_bytes(contents[file])
        return detected

    # Damage one file at a time.
    damages = ((FLIPPED, flip_bit, flips), (TRUNCATED, truncate, truncations))
    rows: list[Row] = [
        {"row": name, "tried": n, "refused": sum(is_detected(damage) for _ in range(n))}
        for name, damage, n in damages
    ]

    # Replace files by some that execute code if they are unpickled.
    mark = folder / "executed"
    forged = []
    for forge in _forgeries(checkpoint, mark):
        forge()
        forged.append(_is_refused(checkpoint) and not mark.exists())
        for file, data in contents.items():
            file.write_bytes(data)
    return [*rows, {"row": FORGED, "tried": len(forged), "refused": sum(forged)}]


def _is_refused(checkpoint: Path) -> bool:
    """Return True if reading all of a checkpoint raises a CheckpointError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about protocols of pickle
        try:
            open_checkpoint(checkpoint, lambda manifest: sorted(manifest.parts))
        except CheckpointError:
            return True
    return False


class _Payload:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self._mark,)


def _forgeries(checkpoint: Path, mark: Path) -> Iterator[Callable[[], object]]:
    """Yield functions that write files which execute code if they are unpickled."""
    part, manifest = checkpoint / "stage0.pt", checkpoint / MANIFEST

    def with_manifest(write: Callable[[], object]) -> Callable[[], object]:
        """Add a valid manifest."""

        def forge() -> None:
            values = asdict(read_manifest(checkpoint)) | {"format": FORMAT}
            write()
            data = part.read_bytes()
            digest_entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            values["parts"]["stage0.pt"] = digest_entry
            content = json.dumps(values)
            digest = hashlib.sha256(content.encode()).hexdigest()
            manifest.write_text(json.dumps({"sha256": digest, "content": content}))

        return forge

    payload = _Payload(mark)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield with_manifest(partial(part.write_bytes, pickle.dumps(payload, protocol)))
    yield with_manifest(lambda: torch.save(payload, part))
    yield with_manifest(lambda: torch.save({"layers": payload}, part))
    yield with_manifest(lambda: torch.save(payload, part, _use_new_zipfile_serialization=False))
    yield with_manifest(lambda: torch.save(torch.nn.Linear(1, 1), part))
    yield partial(manifest.write_bytes, pickle.dumps(payload))


def corrupt_packets(count: int, seed: int) -> list[Row]:
    """Flip a bit of packets, headers included, and try to receive them."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    refused = 0
    for number in range(count):
        shape = [rng.randint(1, 40) for _ in range(rng.randint(1, 3))]
        tensor = torch.randn(shape, generator=generator)
        header = {
            "kind": "activation",
            "number": number,
            "sequence": 0,
            "trees": {},
            "tensors": [wire.tensor_spec(tensor)],
            "checksums": [wire.checksum(tensor)],
        }
        first, _ = wire.encode_header(header)
        _flip_bit(wire.tensor_bytes(rng.choice([first, tensor])), rng)
        parts = iter((first, tensor))
        arrived = SimpleNamespace(post=lambda *_, parts=parts: partial(next, parts))
        arrived.headers = arrived
        reader = MessageReader("stage 1, from stage 0", cast(HostBackend, arrived))
        reader.post([])
        try:
            reader.receive()
        except TransitError:
            refused += 1
    return [{"row": PACKET, "tried": count, "refused": refused}]


def _flip_bit(bits: bytearray | Tensor, rng: random.Random) -> None:
    bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
