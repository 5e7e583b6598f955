"""Steps of a small perceptron, most of whose time goes to the code around the layers.

Three loops take turns: a plain one, one written by hand for the method, and the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from torch import Tensor, nn

from benchmarks.harness.rounds import TimedStep, time_turns
from benchmarks.harness.workload import Workload, torch_threads
from benchmarks.peers.by_hand import step_by_hand
from hocket import zoo
from hocket.methods import parse_method
from hocket.partition import Plan
from hocket.training.trainer import Trainer


@dataclass(frozen=True)
class ShortRow:
    """A row of short steps.

    Attributes:
        method: The method.
        stages: Number of stages; with one, the loop by hand is the plain loop.
        goal: The largest ratio to the plain loop that is wanted, if any.
        network: A chain; or a network that calls the same layers in its own forward, which may
            be declared plain. It is compared with the loops of the chain in any case.
    """

    method: str
    stages: int
    goal: float | None = None
    network: Literal["chain", "own forward", "plain forward"] = "chain"

    @property
    def name(self) -> str:
        """Name of the row."""
        name = f"{self.method} on {self.stages}"
        return name if self.network == "chain" else f"{name}, {self.network}"


SHORT_ROWS = (
    ShortRow("bp", 1, goal=1.25),
    ShortRow("bp", 1, network="own forward"),
    ShortRow("bp", 1, network="plain forward"),
    ShortRow("fdg", 2, goal=1.5),
    ShortRow("fdg", 2, network="own forward"),
    ShortRow("fdg", 2, network="plain forward"),
    ShortRow("fdg", 4, goal=2.2),
    ShortRow("fdg", 4, network="own forward"),
    ShortRow("fdg", 4, network="plain forward"),
    ShortRow("dgl", 2),
)
PLANS: Mapping[int, Plan] = {
    1: Plan(()),
    2: Plan(("hidden2",)),
    4: Plan(("hidden1", "hidden2", "head")),  # a layer in each stage, however uneven
}
GOAL_ABOVE_MS = 0.35
"""Milliseconds for each stage and tick that the engine may take above the loop by hand."""
STEPS = 40
"""Timed steps in a block."""


def short_workload(stages: int) -> Workload:
    """Return the perceptron 64-256-256-256-10 on batches of 64, on one thread."""
    return Workload(
        network="mlp", shape=(64,), batch=64, stages=stages, threads=1, channels_last=False
    )


class OwnForward(nn.Module):
    """The perceptron as a network that is no chain."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        chain = zoo.mlp(in_features=in_features, num_classes=num_classes)
        self.hidden0, self.hidden1, self.hidden2, self.head = chain

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return scores (B, C)."""
        x_BD = self.hidden0(x_BD)
        x_BD = self.hidden1(x_BD)
        x_BD = self.hidden2(x_BD)
        scores_BC: Tensor = self.head(x_BD)
        return scores_BC


class PlainForward(OwnForward):
    """The same network, whose forward is declared plain."""

    plain_forward = True

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return scores (B, C)."""
        return super().forward(x_BD)


NETWORKS = {
    "chain": "mlp",
    "own forward": f"{__name__}:OwnForward",
    "plain forward": f"{__name__}:PlainForward",
}
"""Networks of the rows, as a workload names them."""


def short_trainer(row: ShortRow) -> Trainer:
    """Return a trainer of the perceptron."""
    work = replace(short_workload(row.stages), network=NETWORKS[row.network])
    return work.build_trainer(parse_method(row.method), PLANS[row.stages])


def short_step_row(row: ShortRow, *, rounds: int, steps: int = STEPS) -> dict[str, Any]:
    """Time one method, a plain loop and a loop by hand.

    Returns:
        Median times in milliseconds, ratios to the plain loop, and the milliseconds for each
        stage and tick above the loop by hand, all of which are medians over rounds.
    """
    work, method, stages = short_workload(row.stages), parse_method(row.method), row.stages
    with torch_threads(work.threads):
        # Build the three loops, fill their pipelines, and time them in turns.
        trainer = short_trainer(row)
        plain = work.plain_step()
        by_hand = plain
        if stages > 1:
            chain = short_trainer(replace(row, network="chain")).stages
            by_hand = step_by_hand(chain, work.optimizer, work.example_batch())
        engine = work.trainer_step(trainer)
        loops: dict[str, TimedStep] = {"plain": plain, "by_hand": by_hand, "engine": engine}
        for loop in loops.values():
            for _ in range(work.warmup_steps(method)):
                loop()
        times = time_turns(loops, rounds=rounds, steps=steps)

    # Compare them round by round.
    each = list(zip(times["plain"], times["by_hand"], times["engine"], strict=True))
    ratios = [ours / base for base, _, ours in each]
    above = [1000 * (ours - hand) / steps / stages for _, hand, ours in each]
    return {
        "row": row.name,
        "short_steps": True,
        "stages": stages,
        "plain_ms": 1000 * median(times["plain"]) / steps,
        "by_hand_ms": 1000 * median(times["by_hand"]) / steps,
        "engine_ms": 1000 * median(times["engine"]) / steps,
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "goal": row.goal,
        "by_hand_ratio": median(hand / base for base, hand, _ in each),
        "above_ms": median(above),
        "above_min_ms": min(above),
        "above_max_ms": max(above),
        "goal_above_ms": GOAL_ABOVE_MS if row.network == "chain" else None,
    }
