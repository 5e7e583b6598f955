"""Schedule of one stage, tick by tick."""

from typing import Any

from hocket.methods.method import Method
from hocket.program.action import Action


class StageSchedule:
    """Schedule of one stage, computed tick by tick while batches arrive.

    Args:
        method: Method of the training.
        stages: Number of stages (K).
        stage: Number of this stage.

    Raises:
        OptionError: The method is impossible on so many stages.
    """

    def __init__(self, method: Method, stages: int, stage: int) -> None:
        method.require_stages(stages)
        self.method = method
        self.stages = stages
        self.stage = stage
        self.tick_count = 0
        self.batch_count = 0
        self._entered: dict[int, int] = {}  # tick -> batch, of the batches in flight
        self._accumulated = 0  # gradients since the last update
        self._updates = 0
        self._drained = (0, 0)  # batches and updates when nothing was left to do
        self._earlier_updates = 0  # by stages that were cut elsewhere
        self._flight = method.flight(stages)
        # Of every tick, and sums over all stages.
        self._entry, self._delay = method.entry(stage), method.delay(stage, stages)
        has_next = stage < stages - 1
        self._learns = method.signal.learns_from_gradient and has_next
        self._answer_delay = sum(method.edge_delay(stage)) if has_next else 0
        self._holds = method.holds(stages)
        self._flushed_updates = method.flushed_updates
        self._forward_version = method.forward_versions(stage, stages)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the batches in flight, as plain values."""
        return {
            "tick_count": self.tick_count,
            "batch_count": self.batch_count,
            "entered": dict(self._entered),
            "gathered": self._accumulated,
            "updates": self._updates,
            "drained": self._drained,
            "earlier_updates": self._earlier_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a schedule of the same stage."""
        self.tick_count, self.batch_count = state["tick_count"], state["batch_count"]
        self._entered = dict(state["entered"])
        self._accumulated = state["gathered"]
        self._updates = state["updates"]
        self._drained = tuple(state["drained"])
        self._earlier_updates = state["earlier_updates"]

    def start_at(self, tick_count: int, batch_count: int, updates: int) -> None:
        """Continue from these counts of a training that other stages began.

        No batch is in flight, and versions of weights are counted from 0 again.

        Args:
            tick_count: Number of the next tick.
            batch_count: Number of the next batch.
            updates: Number of updates that the weights have seen.
        """
        self.tick_count, self.batch_count = tick_count, batch_count
        self._earlier_updates = updates
        self._entered, self._accumulated = {}, 0
        self._drained = (batch_count, self._updates)

    @property
    def idle(self) -> bool:
        """True if no batch is in flight at any stage."""
        return not self._entered

    @property
    def flushed(self) -> bool:
        """True if the present batches leave the pipeline before the next group enters."""
        return self._earlier_updates + self._drained[1] < self._flushed_updates

    @property
    def flushing(self) -> bool:
        """True if no batch may enter before those in flight have left."""
        full = self.batch_count - self._drained[0] == self.method.accumulate
        return self.flushed and full and not self.idle

    def tick(self) -> list[Action]:
        """Return the stage's actions in the next tick, in which a new batch enters."""
        if not self._entered and not self._accumulated:
            self._drained = (self.batch_count, self._updates)
        self._entered[self.tick_count] = self.batch_count
        self.batch_count += 1
        return self.drain_tick()

    def drain_tick(self) -> list[Action]:
        """Return the stage's actions in the next tick, in which no batch enters."""
        # A batch that entered at tick s runs down three diagonals. On three stages of FDG,
        # whose packets take one tick:
        #
        #     tick  | stage 0 | stage 1 | stage 2
        #     s     | F       |         |
        #     s + 1 |         | F       |
        #     s + 2 | (T)     |         | F B U
        #     s + 3 |         | B U (T) |
        #     s + 4 | B U     |         |
        #
        # F goes from the first stage to the last, B back to the first. T is where B would be if
        # the next stage answered at once; only signals that learn from that answer have it. So
        # these are the ticks at which the batches entered that are due here now:
        method, stage = self.method, self.stage
        for_forward = self.tick_count - self._entry
        for_backward = for_forward - self._delay
        for_target = for_forward - self._answer_delay

        # The forward diagonal.
        forward, backward, learn = [], [], []
        if for_forward in self._entered:
            batch = self._entered[for_forward]
            batches, updates = self._drained
            seen = self._forward_version(batch - batches)
            due = (batch - batches) // method.accumulate - seen
            version = updates + seen if self._holds else None
            forward.append(Action("F", stage, batch, version, due))

        # The backward diagonal. The last gradient of a group brings an update.
        if for_backward in self._entered:
            backward.append(Action("B", stage, batch := self._entered[for_backward]))
            self._accumulated += 1
            if self._accumulated == method.accumulate:
                backward.append(Action("U", stage, batch))
                self._accumulated = 0
                self._updates += 1

        # The diagonal of answers.
        if self._learns and for_target in self._entered:
            learn.append(Action("T", stage, self._entered[for_target]))

        # A batch that has been everywhere is forgotten.
        self._entered.pop(self.tick_count - self._flight, None)
        self.tick_count += 1
        if self._delay and method.order == "backward-first":
            return backward + forward + learn
        return forward + backward + learn

    def final_update(self) -> list[Action]:
        """Return the update with the remaining gradients, once no batch is in flight."""
        remaining, self._accumulated = self._accumulated, 0
        self._updates += remaining > 0
        self._drained = (self.batch_count, self._updates)
        return [Action("U", self.stage, self.batch_count - 1)] if remaining else []
