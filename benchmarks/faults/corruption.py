"""Damage to what was written or sent: is it ever taken for what it was?"""

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
from typing import Any

import torch
from torch import Tensor

from benchmarks.faults.job import FaultyJob, train_with_faults
from hocket.checkpoint.directory import MANIFEST, newest_first, read_manifest
from hocket.distributed import wire
from hocket.errors import CheckpointError, TransitError
from hocket.training.state import open_checkpoint
from hocket.transport.sequence_check import SequenceCheck

Row = dict[str, Any]
FLIPPED = "checkpoint with another bit"
SHORT = "checkpoint cut short"
FORGED = "checkpoint of a forger"
PACKET = "packet with another bit"


def checkpoints(folder: Path, flips: int, truncations: int, seed: int) -> list[Row]:
    """Damage a checkpoint in every way and try to read it; a row for each kind of damage."""
    train_with_faults(FaultyJob("fdg", 2), folder)
    place, chance = newest_first(folder / "checkpoints")[0], random.Random(seed)
    files = [file for file in sorted(place.iterdir()) if file.is_file()]
    whole = {file: file.read_bytes() for file in files}

    def flipped(data: bytes) -> bytes:
        other = bytearray(data)
        other[chance.randrange(len(other))] ^= 1 << chance.randrange(8)
        return bytes(other)

    def short(data: bytes) -> bytes:
        return data[: chance.randrange(len(data))]

    def refused(damage: Callable[[bytes], bytes]) -> bool:
        file = chance.choice(files)
        file.write_bytes(damage(whole[file]))
        found = _is_refused(place)
        file.write_bytes(whole[file])
        return found

    damages = ((FLIPPED, flipped, flips), (SHORT, short, truncations))
    rows: list[Row] = [
        {"row": name, "tried": n, "refused": sum(refused(damage) for _ in range(n))}
        for name, damage, n in damages
    ]
    mark = folder / "harm"
    forged = []
    for forge in _forgeries(place, mark):
        forge()
        forged.append(_is_refused(place) and not mark.exists())
        for file, data in whole.items():
            file.write_bytes(data)
    return [*rows, {"row": FORGED, "tried": len(forged), "refused": sum(forged)}]


def _is_refused(place: Path) -> bool:
    """Whether all of a checkpoint cannot be read, with the error for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of protocols of pickle
        try:
            open_checkpoint(place, lambda manifest: sorted(manifest.parts))
        except CheckpointError:
            return True
    return False


class _Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self._mark,)


def _forgeries(place: Path, mark: Path) -> Iterator[Callable[[], object]]:
    """Ways to write files that do harm where what is read is run."""
    part, manifest = place / "stage0.pt", place / MANIFEST

    def sealed(write: Callable[[], object]) -> Callable[[], object]:
        """With a manifest that says that it is as it should be."""

        def forge() -> None:
            values = asdict(read_manifest(place)) | {"format": 1}
            write()
            data = part.read_bytes()
            seal = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            values["parts"]["stage0.pt"] = seal
            content = json.dumps(values)
            digest = hashlib.sha256(content.encode()).hexdigest()
            manifest.write_text(json.dumps({"sha256": digest, "content": content}))

        return forge

    harm = _Harm(mark)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield sealed(partial(part.write_bytes, pickle.dumps(harm, protocol)))
    yield sealed(lambda: torch.save(harm, part))
    yield sealed(lambda: torch.save({"layers": harm}, part))
    yield sealed(lambda: torch.save(harm, part, _use_new_zipfile_serialization=False))
    yield sealed(lambda: torch.save(torch.nn.Linear(1, 1), part))
    yield partial(manifest.write_bytes, pickle.dumps(harm))


def packets(count: int, seed: int) -> list[Row]:
    """Change a bit of what a packet is sent as, header included, and try to take it."""
    chance, make = random.Random(seed), torch.Generator().manual_seed(seed)
    refused = 0
    for number in range(count):
        shape = [chance.randint(1, 40) for _ in range(chance.randint(1, 3))]
        tensor = torch.randn(shape, generator=make)
        header = {
            "kind": "activation",
            "number": number,
            "sequence": 0,
            "tensors": [wire.tensor_spec(tensor)],
            "checksums": [wire.checksum(tensor)],
        }
        first, rest = wire.encode_header(header)
        _flip(chance.choice([first, tensor]), chance)
        order = SequenceCheck("stage 1, from stage 0")
        try:
            found = wire.decode_header(first, rest)
            order.require_next(found)
            order.require_intact(found, [tensor])
        except TransitError:
            refused += 1
    return [{"row": PACKET, "tried": count, "refused": refused}]


def _flip(tensor: Tensor, chance: random.Random) -> None:
    bits = wire.tensor_bytes(tensor)
    bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
