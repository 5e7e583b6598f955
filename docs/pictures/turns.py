"""Turns of asynchronous stages, which follow no program."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from pictures.frame import svg
from pictures.programs import STAGES, TIMES, legend, panel, panel_height, window

from hocket.engine.async_simulated import TurnOrder
from hocket.methods import parse_method
from hocket.timeline import Span
from hocket.transport.packet import Activation
from hocket.transport.replay_buffer import ReplayBuffer

SPEEDS, TURNS = (1.0, 0.5, 1.0), 40


def turns_picture() -> str:
    """Return the turns of three stages under dgl-async, of which the middle one is slow."""
    shown = window([span for turn in draws() for span in actions(*turn)], first=5)
    used = [[s.batch for s in shown if (s.kind, s.stage) == ("F", k)] for k in range(STAGES)]
    dropped = sum(b - a - 1 for a, b in pairwise(used[1]))
    repeated = sum(a == b for a, b in pairwise(used[2]))
    title = "dgl-async, stage 1 at half the speed"
    note = f"stage 1 drops {dropped} batches, stage 2 repeats {repeated}"
    height = panel_height(STAGES)
    return svg(height + 24, *panel(shown, STAGES, title, note, 0), *legend(height + 14))


def draws() -> Iterator[tuple[int, int, int]]:
    """Yield the first turns: the stage, the number of its turn, and the batch that it draws."""
    clock, turns = TurnOrder(SPEEDS), [0] * STAGES
    buffers = [ReplayBuffer(parse_method("dgl-async").replay) for _ in SPEEDS]
    for _ in range(TURNS):
        # Draw a batch, if one has come.
        stage = clock.next()
        turns[stage] += 1
        if stage == 0:
            batch = turns[0] - 1
        elif (packet := buffers[stage].draw()) is not None:
            batch = int(packet.targets)
        else:
            continue
        yield stage, turns[stage], batch
        # Send it on, with its number as the targets.
        if stage + 1 < STAGES:
            number, buffer = torch.tensor(batch), buffers[stage + 1]
            buffer.put(Activation(buffer.stats.arrived, 0, number, (True,), number))


def actions(stage: int, turn: int, batch: int) -> list[Span]:
    """Return the actions of a turn, in forwards of the first stage.

    A turn of the clock takes no time. Here it does, so each stage begins later by the forwards
    of those before it, and no batch is drawn before it has been sent.
    """
    speed = SPEEDS[stage]
    begin = TIMES.forward_s * sum(1 / before for before in SPEEDS[:stage])
    begin += turn * (TIMES.forward_s + TIMES.backward_s) / speed
    middle = begin + TIMES.forward_s / speed
    end = middle + TIMES.backward_s / speed
    places = {"F": (begin, middle), "B": (middle, end), "U": (end, end)}
    return [Span(stage, kind, batch, turn, *place) for kind, place in places.items()]


PICTURES = {"program-dgl-async.svg": turns_picture}
