"""Steps of a small perceptron, whose time is mostly that of the code around the layers.

Three loops take turns: a plain one, one written by hand for the method, and the engine.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.harness.pairs import TimedStep, time_turns
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import Workload
from benchmarks.peers.by_hand import step_by_hand
from hocket.methods import parse_method
from hocket.partition import Plan
from hocket.training.trainer import Trainer

SHORT_ROWS: Mapping[tuple[str, int], float | None] = {
    ("bp", 1): 1.25,
    ("fdg", 2): 1.5,
    ("fdg", 4): 2.2,
    ("dgl", 2): None,
}
"""Methods and numbers of stages, and the largest ratio to the plain loop that is wanted."""
GOAL_ABOVE_MS = 0.35
"""Milliseconds for each stage and tick that the engine may take above the loop by hand."""
STEPS = 40
"""Timed steps in a block."""


def short_workload(stages: int) -> Workload:
    """Return the perceptron 64-256-256-256-10 on batches of 64, on one thread."""
    return Workload(
        network="mlp", shape=(64,), batch=64, stages=stages, threads=1, channels_last=False
    )


def short_trainer(name: str, stages: int) -> Trainer:
    """Return a trainer of the perceptron; four stages have a layer each, however uneven."""
    plan = Plan(("hidden1", "hidden2", "head")) if stages == 4 else None
    return short_workload(stages).build_trainer(parse_method(name), plan)


def short_step_row(
    name: str, stages: int, *, rounds: int, steps: int = STEPS
) -> dict[str, Any]:
    """Time one method beside a plain loop and a loop by hand.

    Args:
        name: The method.
        stages: Number of stages; with one, the loop by hand is the plain loop.
        rounds: Blocks of each loop.
        steps: Timed steps in a block.

    Returns:
        Median times in milliseconds, ratios to the plain loop, and the milliseconds for each
        stage and tick above the loop by hand, all of which are medians over rounds.
    """
    work, method = short_workload(stages), parse_method(name)
    with torch_threads(work.threads):
        trainer = short_trainer(name, stages)
        plain = work.plain_step()
        by_hand = plain
        if stages > 1:
            by_hand = step_by_hand(trainer.stages, work.optimizer, work.example_batch())
        engine = work.trainer_step(trainer)
        loops: dict[str, TimedStep] = {"plain": plain, "by_hand": by_hand, "engine": engine}
        for loop in loops.values():
            for _ in range(work.warmup_steps(method)):
                loop()
        times = time_turns(loops, rounds=rounds, steps=steps)
    each = list(zip(times["plain"], times["by_hand"], times["engine"], strict=True))
    ratios = [ours / base for base, _, ours in each]
    above = [1000 * (ours - hand) / steps / stages for _, hand, ours in each]
    return {
        "row": f"{name} on {stages}",
        "short_steps": True,
        "stages": stages,
        "plain_ms": 1000 * median(times["plain"]) / steps,
        "by_hand_ms": 1000 * median(times["by_hand"]) / steps,
        "engine_ms": 1000 * median(times["engine"]) / steps,
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "goal": SHORT_ROWS.get((name, stages)),
        "by_hand_ratio": median(hand / base for base, hand, _ in each),
        "above_ms": median(above),
        "above_min_ms": min(above),
        "above_max_ms": max(above),
        "goal_above_ms": GOAL_ABOVE_MS,
    }
