"""One stage at its own pace in this process; the others run in processes of their own.

It takes what the stage before has sent, whenever that came, and sends on what the way is free
for; nobody waits for anybody, and how the turns fall is up to the machines.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from hocket.distributed.world import World
from hocket.engine.async_stage import AsyncStage, DataEpoch
from hocket.engine.engine import Batch
from hocket.engine.event import Event
from hocket.engine.lookahead import NOTHING, BatchAnnouncer, predict_stage
from hocket.errors import HocketError
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.transport.reconnecting import ReconnectingLink
from hocket.transport.replay_buffer import ReplayBuffer
from hocket.transport.source import Source
from hocket.tree import Tree

LOOK_S = 0.1
"""How often a stage that has learned enough looks whether all others have, too."""


class AsyncProcess:
    """Gives the stage of this process its turns until all stages have learned enough.

    Args:
        runner: The stage.
        source: Where batches enter, at the first stage.
        buffer: What the stage draws from; None for the first one.
        before: The way to the stage before, if there is one.
        after: The way to the stage after, if there is one.
        passes: The data as the first stage goes through them.
        rate: How fast it is, where 1 is as fast as it can.
        world: This process among the others.
    """

    def __init__(
        self,
        runner: AsyncStage,
        source: Source,
        buffer: ReplayBuffer | None,
        before: ReconnectingLink | None,
        after: ReconnectingLink | None,
        passes: DataEpoch,
        rate: float,
        world: World,
    ) -> None:
        self._runner = runner
        self._source = source
        self._buffer = buffer
        self._before = before
        self._after = after
        self._passes = passes
        self._rest = 1 / rate - 1  # as a part of the time that a turn takes
        self._world = world
        self._lines = [line for line in (before, after) if line is not None]
        self._announce: BatchAnnouncer | None = None
        self._looked = 0.0
        self._said = self._ended = False
        self._failure: HocketError | None = None
        world.failures.add_listener(self._fail)
        world.on_close(self._close)

    @property
    def stages(self) -> Sequence[Stage]:
        """The stage of this process."""
        return [self._runner.stage]

    @property
    def tick_count(self) -> int:
        """How many turns the stage has had."""
        return self._runner.turns

    @property
    def sent_bytes(self) -> int:
        """What was sent to the neighbours so far."""
        return sum(line.sent_bytes for line in self._lines)

    def set_goal(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Have the stage learn for so many more epochs of its own, of so many batches.

        From here on to ``finish`` any stage may be killed and come back.
        """
        self._passes.length = length or self._passes.length
        self._runner.set_goal(epochs, again=again)
        self._world.membership.detach()
        if self._world.rejoined and not self._runner.finished:
            self._world.flags.clear(self._name("over"))
        self._said = self._ended = False
        for line in self._lines:
            line.open()

    def state_dict(self) -> list[Tree]:
        """What the stage remembers between two turns."""
        return [self._runner.state_dict()]

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Go on from what the same stage remembered."""
        (part,) = parts
        self._runner.load_state_dict(part)

    @property
    def finished(self) -> bool:
        """Whether every stage has learned enough."""
        return self._ended

    def stop(self) -> None:
        """Have all stages stop where they are."""
        self._world.flags.set(self._name("stop"))

    def ticks(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches at the first stage, at others a placeholder for each turn of an epoch."""
        turns = iter(batches) if self._before is None else self._placeholders()
        while not self._over_for_all():
            batch = next(turns, None)
            if batch is None:
                return
            yield batch

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """A turn of the stage, once there is something to draw."""
        runner, self._passes.epoch = self._runner, epoch
        if self._before is None:
            self._source.send(runner.turns, epoch, inputs, targets)
        elif not self._found_something():
            return []
        start = time.perf_counter()
        self._world.failures.set_activity(f"taking turn {runner.turns}")
        events = runner.take_turn(runner.turns)
        time.sleep(self._rest * (time.perf_counter() - start))
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """What this stage makes of each batch; all stages take part, and nothing is kept."""
        before, after = (
            line.require_open() if line is not None else None
            for line in (self._before, self._after)
        )
        self._announce = self._announce or BatchAnnouncer(before, after)
        return predict_stage(self._runner.stage, before, after, self._announce, batches)

    def finish(self) -> list[Event]:
        """Meet the others again, and apply gradients that were too few for an update."""
        if self._world.membership.detached:
            for line in self._lines:
                line.require_open()
            self._world.reunite()
            self._announce = None  # all count from the beginning with those who came back
        return self._runner.final_update(self._runner.turns)

    def _placeholders(self) -> Iterator[Batch]:
        """One for each turn that is left of the stage's own epoch."""
        epoch = self._runner.epoch
        while self._runner.finished or self._runner.epoch == epoch:
            yield NOTHING

    def _found_something(self) -> bool:
        """Wait for something to draw; or, having learned enough, for something to pass on."""
        assert self._buffer is not None
        assert self._before is not None
        over, turn, alarm = self._runner.finished, self._runner.turns, self._world.failures
        if over and self._after is None:
            time.sleep(LOOK_S)
            return False
        begun, found = time.monotonic(), False
        words = f"waiting for something to draw from {self._before.place}"
        waited = self._runner.stage.recorder.span("wait", turn, turn)
        with waited, alarm.waiting_for(words, self._before.rank):
            while not found and self._failure is None:
                found = self._buffer.wait(LOOK_S, fresh=over)
                self._before.require_reachable()
                if over:
                    break
                if not found and time.monotonic() - begun >= alarm.timeout_s:
                    raise alarm.peer_timed_out(
                        self._before.rank, f"anything from {self._before.place}"
                    )
        return found

    def _over_for_all(self) -> bool:
        """Whether there is nothing left to do for anybody."""
        over = self._runner.finished
        if over and not self._said:
            self._world.flags.set(self._name("over"))
            self._said = True
        for line in self._lines:
            line.require_reachable()
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if not self._ended and now - self._looked >= LOOK_S:
            self._looked = now
            board = self._world.flags
            stopped = board.all_set(self._name("stop"), ranks=[0])
            self._ended = stopped or (over and board.all_set(self._name("over")))
        return self._ended

    def _name(self, what: str) -> str:
        return f"{what}/{self._world.membership.number}"

    def _fail(self, error: HocketError) -> None:
        self._failure = error

    def _close(self) -> None:
        """Part from the neighbours."""
        for line in self._lines:
            line.close()
