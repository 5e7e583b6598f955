"""Every part of a checkpoint is needed: without it the resumed training is another one.

Else the equality of resumed and uninterrupted trainings could not fail.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from contract import worlds
from contract.resumed import all_of, differences, resumable
from contract.small import SHAPES, Centred, conv
from contract.worlds import Case, trained
from hocket.checkpoint.directory import checkpoint_name, read_manifest, read_part
from hocket.codecs import VQ
from hocket.errors import HocketError
from hocket.training.checkpoints import find_and_load as training_state

State = dict[str, Any]
AT = checkpoint_name(7, 1)
"""After three batches of the second epoch of four."""


def drifting(stages: int, **options: Any) -> list[nn.Module]:
    return [nn.Sequential(Centred(), stage) for stage in conv(stages, **options)]


def find_first(states: list[State], path: tuple[str | int, ...]) -> tuple[Any, Any]:
    """The container and the key of a value in the state of the first stage that has it."""
    for state in states:
        place: Any = state
        try:
            for key in path[:-1]:
                place = place[key]
            if str(place[path[-1]]) not in ("{}", "[]", "None", "0"):
                return place, path[-1]
        except (KeyError, IndexError, TypeError, RuntimeError):
            continue
    raise AssertionError(f"no stage has {path}")


def without(*path: str | int) -> Callable[[list[State]], None]:
    """Leaves a value out: what a stage has that was just built takes its place."""

    def leave_out(states: list[State]) -> None:
        place, key = find_first(states, path)
        kind = type(place[key])
        place[key] = torch.zeros_like(place[key]) if kind is torch.Tensor else kind()

    return leave_out


def past_as_now(what: str, own: str) -> Callable[[list[State]], None]:
    """Batches in flight are forwarded with what the layers are now."""

    def replace_past(states: list[State]) -> None:
        for state in states:
            for flying in state["in_flight"]:
                past = flying["past"][what]
                flying["past"][what] = {name: state[own][name] for name in past}

    return replace_past


def of_another_epoch(states: list[State]) -> None:
    for state in states:
        for flying in state["in_flight"]:
            flying["activation"]["epoch"] += 1


def at_last(leave_out: Callable[[list[State]], None]) -> Callable[[list[State]], None]:
    """The same for the last stage."""
    return lambda states: leave_out(states[-1:])


def blank_packets(states: list[State]) -> None:
    for slot in (slot for state in states[1:] for slot in state["to_previous"]["slots"]):
        slot["packet"]["values"] = torch.zeros_like(slot["packet"]["values"])


def every_layer(states: list[State]) -> None:
    for value in states[0]["layers"].values():
        value.mul_(1.001) if value.is_floating_point() else value.add_(1)


FDG = Case("fdg", "drifting", optimizer=torch.optim.Adam)
LIVE = replace(FDG, options=(("linearize", "live"),))
ADL = Case("adl", "drifting", (("accumulate", 2),))
DNI = Case("dni", "drifting", (("forward_delay", 2),))
CODED = Case("dgl", "drifting", trainer=(("codec", VQ(codes=5, decay=0.5)),))
# Stage 2 is slow, and what it draws comes in an uneven rhythm: so it draws old packets, too.
ASYNC = Case(
    "dgl-async", "drifting", (("buffer", 3), ("reuse", 1)),
    (("stage_speeds", (0.8, 1, 0.6)), ("codec", VQ(codes=5, decay=0.5))),
)  # fmt: skip
FULL = replace(ASYNC, options=(*ASYNC.options, ("accumulate", 2)), trainer=ASYNC.trainer[:1])
COARSE = Case("dgl", "drifting", trainer=(("codec", VQ(codes=5, decay=0.5, every=4)),))

ABLATIONS = {
    "weights of the forward, stash": (FDG, past_as_now("weights", "layers")),
    "weights of the forward, live": (LIVE, past_as_now("weights", "layers")),
    "statistics before the forward": (FDG, past_as_now("buffers", "layers")),
    "batches in flight": (FDG, without("in_flight")),
    "input of a batch in flight": (FDG, without("in_flight", 0, "activation", "values")),
    "targets of a batch in flight": (
        replace(DNI, method="cdni"), without("deferred_targets", 0, "activation", "targets"),
    ),
    "number of a batch in flight": (FDG, without("in_flight", 0, "activation", "batch")),
    "epoch of a batch in flight": (FDG, of_another_epoch),
    "version of a batch in flight": (FDG, without("in_flight", -1, "version")),
    "activations under way": (FDG, without("to_next")),
    "gradients under way": (FDG, without("to_previous")),
    "layers": (FDG, every_layer),
    "optimizer": (FDG, without("updater", "optimizer", "state", 0, "exp_avg")),
    "scheduler": (replace(FDG, step=2), without("updater", "scheduler", "last_epoch")),
    "epoch of the scheduler": (FDG, without("updater", "epoch")),
    "number of updates": (FDG, without("updater", "version")),
    "gathered gradients": (ADL, without("updater", "gathered", "sums", 0)),
    "number of gathered gradients": (ADL, without("updater", "gathered", "count")),
    "gradients counted by the program": (ADL, without("schedule", "gathered")),
    "tick": (FDG, without("schedule", "tick_count")),
    "batches fed": (FDG, without("schedule", "batch_count")),
    "batches entered": (FDG, without("schedule", "entered")),
    "network of the signal": (DNI, without("signal", "entry.weight")),
    "optimizer of the signal": (
        DNI, without("signal_updater", "optimizer", "state", 0, "momentum_buffer"),
    ),
    "lessons": (DNI, without("deferred_targets")),
    "output of a lesson": (DNI, without("deferred_targets", 0, "output")),
    "codebooks": (CODED, without("to_next", "encoders", 0, "books")),
    "averages of codebooks": (CODED, without("to_next", "encoders", 0, "sums")),
    "counts of codebooks": (CODED, without("to_next", "encoders", 0, "counts")),
    "version of codebooks": (COARSE, without("to_next", "encoders", 0, "version")),
    "version of codebooks sent": (COARSE, without("to_next", "encoders", 0, "sent")),
    "batches of codebooks": (COARSE, without("to_next", "encoders", 0, "batches")),
    "codebooks of the receiver": (COARSE, without("to_previous", "decoders", 0)),
    "bytes that codecs have written": (CODED, without("send_stats", "encoded_bytes")),
    "packets in a buffer": (FULL, at_last(without("to_previous", "slots"))),
    "values of packets in a buffer": (FULL, blank_packets),
    "coded packets in a buffer": (
        ASYNC, at_last(without("to_previous", "port", "slots")),
    ),
    "uses of a packet in a buffer": (FULL, without("to_previous", "slots", 0, "drawn")),
    "place of the next packet in a buffer": (
        FULL, at_last(without("to_previous", "next")),
    ),
    "counts of a buffer": (FULL, without("to_previous", "stats", "arrived")),
    "turns of a stage": (FULL, without("turns", "turns")),
    "turns that a stage has learned from": (FULL, without("turns", "trained")),
    "gradients counted by a stage": (FULL, without("turns", "accumulated")),
    "turns that the clock has given": (FULL, without("clock", "taken")),
    "codebooks of an asynchronous stage": (ASYNC, without("to_next", "encoders", 0, "books")),
    "losses counted": (FDG, without("fit", "meter", "losses")),
    "staleness counted": (FDG, without("fit", "meter", "staleness")),
}  # fmt: skip


def states_of(folder: Path) -> dict[str, State]:
    """The state of each part of a checkpoint, by the name of the part."""
    manifest = read_manifest(folder / AT)
    return {part: read_part(folder / AT, part, manifest) for part in sorted(manifest.parts)}


def read_from(states: dict[str, State]) -> Any:
    """Context manager in which a training resumes from these states."""
    return patch.object(training_state, "read_part", lambda place, part, manifest: states[part])


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """Trainings that never stopped, with their checkpoints, each done once."""
    done = {}

    def whole(case):
        if case not in done:
            folder = tmp_path_factory.mktemp("whole")
            left, _ = all_of(case, 3, folder)
            with read_from(states_of(folder)):  # as what is left out is
                assert not differences(left, trained(case, 3, resume=folder / AT)), "all there"
            done[case] = left, folder
        return done[case]

    shapes = patch.dict(SHAPES, {drifting: SHAPES[conv]})
    with patch.dict(worlds.MORE_NETS, {"drifting": drifting}), shapes:
        yield whole


@pytest.mark.xdist_group("ablation")  # which share the trainings that never stopped
@pytest.mark.parametrize("what", ABLATIONS)
def test_without_it_the_training_is_another_one(what, wholes):
    case, leave_out = ABLATIONS[what]
    case = replace(resumable(case), batches=4, epochs=3)
    whole, folder = wholes(case)
    states = states_of(folder)
    before = str(list(states.values()))
    leave_out(list(states.values()))
    assert before != str(list(states.values())), "there was something to leave out"
    with read_from(states):
        try:
            resumed = trained(case, 3, resume=folder / AT)
        except (HocketError, LookupError, TypeError, ValueError, RuntimeError):
            return  # told, which is better than in silence
    assert differences(whole, resumed)
