"""Arithmetic of a method's choices: delays, staleness, versions of weights and memory."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from hocket.errors import OptionError
from hocket.methods.replay import Replay
from hocket.signals.signal import Signal


@dataclass(frozen=True)
class MemoryCount:
    """Largest number of batches and of versions of its weights that a stage holds.

    Attributes:
        graphs: Batches with a graph.
        inputs: Batches with an input.
        versions: Versions of the weights.
    """

    graphs: int
    inputs: int
    versions: int


class Delays:
    """Delays, versions and memory that follow from the choices of a `Method`.

    If every edge between K stages has the delays df and db, stage k forwards a batch ``k * df``
    ticks after its entry, and back-propagates it ``(K-1-k) * (df + db)`` ticks later.
    """

    # The choices that are read here; `Method` explains them.
    name: str
    signal: Signal
    forward_delay: int
    backward_delay: int
    edge_delays: tuple[tuple[int, int], ...] | None
    order: str
    linearize: str
    hold: str
    flush: str
    accumulate: int
    replay: Replay | None

    @property
    def flushes(self) -> bool:
        """True if a group of batches leaves the pipeline before the next one enters.

        >>> from hocket.methods import ADL, GPipe
        >>> GPipe().flushes, ADL().flushes
        (True, False)
        """
        return self.flush != "never"

    def edge_delay(self, edge: int) -> tuple[int, int]:
        """Return the ticks forward and backward over the edge behind a stage."""
        return self._same_delays if self.edge_delays is None else self.edge_delays[edge]

    @property
    def _same_delays(self) -> tuple[int, int]:
        return self.forward_delay, self.backward_delay

    def entry(self, stage: int) -> int:
        """Return the ticks from the entrance of a batch to its forward at a stage."""
        return sum(self.edge_delay(edge)[0] for edge in range(stage))

    def flight(self, stages: int) -> int:
        """Return the ticks from a batch's first action to its last.

        A gradient comes back over every edge, a target over one.
        """
        last = self.entry(stages - 1)
        if self.signal.needs_gradient:
            return self.delay(0, stages)
        if not self.signal.learns_from_gradient:
            return last
        returns = (self.entry(k + 1) + self.edge_delay(k)[1] for k in range(stages - 1))
        return max(returns, default=last)

    def delay(self, stage: int, stages: int) -> int:
        """Return the ticks between a stage's forward of a batch and its backward.

        >>> from hocket.methods import FDG
        >>> [FDG().delay(k, stages=4) for k in range(4)]
        [6, 4, 2, 0]
        """
        if not self.signal.needs_gradient:
            return 0
        turn = self.accumulate - 1 if self.flush == "all-forward" else 0
        return turn + sum(sum(self.edge_delay(edge)) for edge in range(stage, stages - 1))

    def holds(self, stages: int) -> bool:
        """Return True if stages forward with older weights than their newest.

        Where no stage is behind another, the newest weights are the same version everywhere.

        >>> from hocket.methods import PipeDream
        >>> [PipeDream(hold="vertical").holds(stages) for stages in (1, 2)]
        [False, True]
        """
        return self.hold != "newest" and self._gradients_missed(0, stages) > 0

    def graph_delay(self, stage: int, stages: int) -> int:
        """Return the delay for which a stage linearizes; 0 if a plain graph is enough.

        A last stage that forwards with old weights has its gradient at once, and yet other
        weights between its forward and its backward. In a pipeline that is flushed no weight
        changes in between.
        """
        if self.flushes and self.linearize != "recompute":
            return 0
        return self.delay(stage, stages) or int(self.holds(stages))

    def _batches_between(self, stage: int, stages: int) -> int:
        """Return the batches that a stage forwards between a forward and its backward."""
        delay = self.delay(stage, stages)
        between = delay - 1 if delay and self.order == "backward-first" else delay
        return min(between, self.accumulate - 1) if self.flushes else between

    def _gradients_missed(self, stage: int, stages: int) -> int:
        """Return the batches between a forward and its backward whose gradients it misses."""
        return 0 if self.flushes else self._batches_between(stage, stages)

    def forward_versions(self, stage: int, stages: int) -> Callable[[int], int]:
        """Return the function from a batch to the updates that its forward's weights have seen.

        The batch is its number, from 0, if no epoch has been drained before.

        Args:
            stage: Number of the stage, from 0.
            stages: Number of stages.

        >>> from hocket.methods import PipeDream2BW
        >>> version = PipeDream2BW(accumulate=2).forward_versions(0, stages=3)
        >>> [version(batch) for batch in range(8)]
        [0, 0, 0, 0, 1, 1, 2, 2]
        """
        accumulate = self.accumulate
        if self.hold == "double" and self.holds(stages):
            return lambda batch: max(batch // accumulate - 1, 0)
        last = 0 if self.hold == "vertical" else stage  # the stage that is last to update
        missed = self._gradients_missed(last, stages)
        return lambda batch: max(batch - missed, 0) // accumulate

    def held_back(self, stage: int, stages: int) -> int:
        """Return the most updates by which a stage's forward is older than its newest weights.

        >>> from hocket.methods import PipeDream
        >>> [PipeDream(hold="vertical").held_back(k, stages=4) for k in range(4)]
        [0, 1, 2, 3]
        """
        if self.hold == "double":
            return int(self.holds(stages))
        if self.hold == "newest":
            return 0
        least, most = self._gradients_missed(stage, stages), self._gradients_missed(0, stages)
        return ceil((most - least) / self.accumulate)

    def require_stages(self, stages: int) -> None:
        """Refuse a number of stages that the method's delays or versions are not for.

        Raises:
            OptionError: The delays are for another number of edges, or a forward needs weights
                that do not exist yet, as there are too few gradients per update.
        """
        edges = stages - 1 if self.edge_delays is None else len(self.edge_delays)
        if edges != stages - 1:
            raise OptionError(
                f"method {self.name!r} has delays of the edges between {edges + 1} stages, and "
                f"there are {stages}; give a staleness for each stage, or an extra delay for "
                "each edge"
            )
        least = self._gradients_missed(0, stages)
        if self.hold == "double" and self.accumulate < least:
            raise OptionError(
                f"method {self.name!r} on {stages} stages: with hold='double' and "
                f"accumulate={self.accumulate} stage 0 would forward batches with an update "
                f"that it has not done; use accumulate={least} or more, or fewer stages"
            )

    def staleness(self, stage: int, stages: int, batch: int | None = None) -> float:
        """Return the updates of a stage between its forward of a batch and its backward.

        A backward before the forward of the same tick saves one gradient (FDG, arXiv
        1906.09108, section 3).

        Args:
            stage: Number of the stage, from 0.
            stages: Number of stages.
            batch: Number of the batch, from 0, for its exact staleness if no epoch has been
                drained before; None for the mean in steady state.

        >>> from hocket.methods import ADL, FDG
        >>> [FDG().staleness(k, stages=4) for k in range(4)]
        [5.0, 3.0, 1.0, 0.0]
        >>> [ADL(accumulate=4, order="forward-first").staleness(k, stages=3) for k in range(3)]
        [1.0, 0.5, 0.0]
        """
        if batch is not None:
            return batch // self.accumulate - self.forward_versions(stage, stages)(batch)
        if self.hold == "double":
            return float(self.holds(stages))
        last = 0 if self.hold == "vertical" else stage
        return self._gradients_missed(last, stages) / self.accumulate

    def memory(self, stage: int, stages: int) -> MemoryCount:
        """Return the largest number of batches that a stage holds in steady state.

        >>> from hocket.methods import FDG
        >>> FDG(order="forward-first").memory(0, stages=2)
        MemoryCount(graphs=3, inputs=3, versions=3)
        """
        batches = self._batches_between(stage, stages) + 1
        # Rounded up: the batches in flight may straddle one more group of gradients.
        versions = 1 + ceil(self.staleness(stage, stages))
        if self.holds(stages):
            return MemoryCount(graphs=batches, inputs=batches, versions=versions)
        if self.delay(stage, stages) == 0:
            buffer = self.replay.buffer if self.replay and stage > 0 else 1
            return MemoryCount(graphs=1, inputs=buffer, versions=1)
        if self.linearize == "recompute":
            return MemoryCount(graphs=1, inputs=batches, versions=1)
        if self.linearize == "live":
            return MemoryCount(graphs=batches, inputs=batches, versions=1)
        return MemoryCount(graphs=batches, inputs=batches, versions=versions)

    def locks(self) -> tuple[str, ...]:
        """Return the passes that a stage waits for, as the literature names them.

        It waits inside a tick, or for the end of a group that is flushed.

        >>> from hocket.methods import BP, DDG, FDG
        >>> BP().locks(), DDG().locks(), FDG().locks()
        (('forward', 'backward', 'update'), ('forward',), ())
        """
        if self.flushes:
            return "forward", "backward", "update"
        edges = self.edge_delays or (self._same_delays,)
        forward = min(forward for forward, _ in edges) == 0
        backward = self.signal.needs_gradient and min(back for _, back in edges) == 0
        locks = {"forward": forward, "backward": backward, "update": forward and backward}
        return tuple(name for name, locked in locks.items() if locked)
