"""One stage at its own pace in this process; the others run in processes of their own.

It takes what the stage before has sent, whenever that came, and sends on what the way is free
for; nobody waits for anybody, and how the turns fall is up to the machines.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from hocket.distributed.world import World
from hocket.engine.async_stage import Passes, Runner
from hocket.engine.engine import Batch
from hocket.engine.event import Event
from hocket.engine.lookahead import NOTHING, Announce, answers
from hocket.errors import HocketError
from hocket.stage.prediction import Answer
from hocket.stage.stage import Stage
from hocket.transport.reconnecting import Line
from hocket.transport.replay_buffer import Buffer
from hocket.transport.source import Source
from hocket.tree import Tree

LOOK_S = 0.1
"""How often a stage that has learned enough looks whether all others have, too."""


class Alone:
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
        runner: Runner,
        source: Source,
        buffer: Buffer | None,
        before: Line | None,
        after: Line | None,
        passes: Passes,
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
        self._announce: Announce | None = None
        self._looked = 0.0
        self._said = self._ended = False
        self._failure: HocketError | None = None
        world.alarm.listen(self._fail)
        world.at_end(self._close)

    @property
    def stages(self) -> Sequence[Stage]:
        """The stage of this process."""
        return [self._runner.stage]

    @property
    def now(self) -> int:
        """How many turns the stage has had."""
        return self._runner.turns

    @property
    def sent_bytes(self) -> int:
        """What was sent to the neighbours so far."""
        return sum(line.sent_bytes for line in self._lines)

    def aim(self, epochs: int, length: int | None, *, again: bool = False) -> None:
        """Have the stage learn for so many more epochs of its own, of so many batches.

        From here on to ``finish`` any stage may be killed and come back.
        """
        self._passes.length = length or self._passes.length
        self._runner.aim(epochs, again=again)
        self._world.outing.begin()
        if self._world.returned and not self._runner.over:
            self._world.board.unsay(self._name("over"))
        self._said = self._ended = False
        for line in self._lines:
            line.begin()

    def state(self) -> list[Tree]:
        """What the stage remembers between two turns."""
        return [self._runner.state()]

    def load(self, parts: Sequence[Tree]) -> None:
        """Go on from what the same stage remembered."""
        (part,) = parts
        self._runner.load(part)

    @property
    def done(self) -> bool:
        """Whether every stage has learned enough."""
        return self._ended

    def stop(self) -> None:
        """Have all stages stop where they are."""
        self._world.board.say(self._name("stop"))

    def feed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
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
        self._world.alarm.set_activity(f"taking turn {runner.turns}")
        events = runner.turn(runner.turns)
        time.sleep(self._rest * (time.perf_counter() - start))
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Answer]:
        """What this stage makes of each batch; all stages take part, and nothing is kept."""
        before, after = (
            line.require() if line is not None else None for line in (self._before, self._after)
        )
        self._announce = self._announce or Announce(before, after)
        return answers(self._runner.stage, before, after, self._announce, batches)

    def finish(self) -> list[Event]:
        """Meet the others again, and apply gradients that were too few for an update."""
        if self._world.outing.apart:
            for line in self._lines:
                line.require()
            self._world.meet_again()
            self._announce = None  # all count from the beginning with those who came back
        return self._runner.flush(self._runner.turns)

    def _placeholders(self) -> Iterator[Batch]:
        """One for each turn that is left of the stage's own epoch."""
        epoch = self._runner.epoch
        while self._runner.over or self._runner.epoch == epoch:
            yield NOTHING

    def _found_something(self) -> bool:
        """Wait for something to draw; or, having learned enough, for something to pass on."""
        assert self._buffer is not None
        assert self._before is not None
        over, turn, alarm = self._runner.over, self._runner.turns, self._world.alarm
        if over and self._after is None:
            time.sleep(LOOK_S)
            return False
        begun, found = time.monotonic(), False
        words = f"waiting for something to draw from {self._before.place}"
        waited = self._runner.stage.recorder.span("wait", turn, turn)
        with waited, alarm.waiting(words, self._before.rank):
            while not found and self._failure is None:
                found = self._buffer.wait(LOOK_S, fresh=over)
                self._before.require_hope()
                if over:
                    break
                if not found and time.monotonic() - begun >= alarm.timeout_s:
                    raise alarm.silent(self._before.rank, f"anything from {self._before.place}")
        return found

    def _over_for_all(self) -> bool:
        """Whether there is nothing left to do for anybody."""
        over = self._runner.over
        if over and not self._said:
            self._world.board.say(self._name("over"))
            self._said = True
        for line in self._lines:
            line.require_hope()
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if not self._ended and now - self._looked >= LOOK_S:
            self._looked = now
            board = self._world.board
            stopped = board.said(self._name("stop"), ranks=[0])
            self._ended = stopped or (over and board.said(self._name("over")))
        return self._ended

    def _name(self, what: str) -> str:
        return f"{what}/{self._world.outing.number}"

    def _fail(self, error: HocketError) -> None:
        self._failure = error

    def _close(self) -> None:
        """Part from the neighbours."""
        for line in self._lines:
            line.close()
