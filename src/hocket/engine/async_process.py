"""The engine of one stage that runs at its own pace, with other stages in other processes.

It draws from what the stage before has sent, whenever that came, and sends as much as the
link takes. No process waits for another, so the order of turns depends on the machines.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from hocket.distributed.failures.detector import Wait
from hocket.distributed.failures.phases import Status
from hocket.distributed.world.world import World
from hocket.engine.async_stage import AsyncStage
from hocket.engine.engine import Batch, Engine
from hocket.engine.event import Event
from hocket.engine.lookahead import NO_BATCH, BatchAnnouncer
from hocket.stage.passes.forward_only import Prediction
from hocket.transport.mailbox import Source
from hocket.transport.processes.reconnecting import ReconnectingLink
from hocket.transport.replay_buffer import ReplayBuffer
from hocket.tree import Tree

POLL_S = 0.1
"""Seconds after which a stage that has finished asks again whether all others have, too."""


class AsyncProcess(Engine):
    """Lets the stage of this process take its turns until all stages have reached their goal.

    Args:
        stage: The stage.
        source: Source of batches, for the first stage.
        buffer: Buffer that the stage draws from; None for the first stage.
        previous: Link to the stage before; None for the first stage.
        following: Link to the next stage; None for the last stage.
        speed: Speed of the stage, where 1 is as fast as it can.
        world: This process among the others.

    Attributes:
        reached_goal: True once every stage has reached its goal, or all are stopped.
        stopped: True if all stages were stopped where they are.
    """

    reached_goal = stopped = False

    def __init__(
        self,
        stage: AsyncStage,
        source: Source,
        buffer: ReplayBuffer | None,
        previous: ReconnectingLink | None,
        following: ReconnectingLink | None,
        speed: float,
        world: World,
    ) -> None:
        self.stages = [stage.stage]
        self._stage = stage
        self._source = source
        self._buffer = buffer
        self._previous = previous
        self._following = following
        self._idle = 1 / speed - 1  # as a fraction of the time that a turn takes
        self._world = world
        self._links = [link for link in (previous, following) if link is not None]
        self._announce: BatchAnnouncer | None = None
        self._taken = False  # whether this process has taken a turn
        self._polled = 0.0
        self._announced_end = False
        self._waits = []
        for link in self._links:
            world.add_link(link)
            status = Status("waiting for the others", (link.rank,), limit="slow_timeout_s")
            self._waits.append(Wait(world.failures, status, f"{link.peer_name} to finish"))

    @property
    def tick_count(self) -> int:
        """Number of turns that the stage has taken."""
        return self._stage.turns

    def state_dict(self) -> list[Tree]:
        """Return the state of the stage between two turns."""
        return [self._stage.state_dict()]

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """Continue from the state of the same stage."""
        (part,) = parts
        self._stage.load_state_dict(part)

    def set_goal(self, epochs: int, length: int | None, *, epoch: int, again: bool) -> None:
        """See the base.

        From here on to ``finish`` any stage may be killed and rejoin.
        """
        self._stage.set_goal(epochs, length, epoch=epoch, again=again)
        self._world.membership.detach(again=again)
        if not self._stage.finished:
            # It may be set by an earlier process of this rank, which was killed.
            self._world.flags.clear(self._flag("finished"))
        self._announced_end = self.reached_goal = self.stopped = False
        for link in self._links:
            link.start_reconnecting()

    def end_goal(self) -> None:
        """Let the stage train for as long as batches enter."""
        self._stage.end_goal()
        self._announced_end = self.reached_goal = self.stopped = False

    def stop(self) -> None:
        """Let all stages stop where they are."""
        # The flag of rank 0, whichever process sets it: all look at that one alone.
        self._world.flags.set(self._flag("stop"), rank=0)

    def entering(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return batches at the first stage, at others a placeholder for each turn."""
        turns = iter(batches) if self._previous is None else self._placeholders()
        while not self._check_finished():
            batch = next(turns, None)
            if batch is None:
                return
            yield batch

    def _placeholders(self) -> Iterator[Batch]:
        """Return a placeholder for each turn that is left of the stage's own epoch."""
        epoch = self._stage.epoch
        while self._stage.finished or self._stage.epoch == epoch:
            yield NO_BATCH

    def _check_finished(self) -> bool:
        """Announce that this stage has finished; return True once all have, or are stopped."""
        finished = self._stage.finished
        if finished and not self._announced_end:
            self._world.flags.set(self._flag("finished"))
            self._announced_end = True
            for wait in self._waits:
                wait.restart()
        for link in self._links:
            link.raise_if_lost()
        self._world.failures.raise_if_failed()
        now = time.monotonic()
        if not self.reached_goal and now - self._polled >= POLL_S:
            self._polled = now
            flags = self._world.flags
            self.stopped = flags.all_set(self._flag("stop"), ranks=[0])
            all_finished = finished and flags.all_set(self._flag("finished"))
            self.reached_goal = self.stopped or all_finished
            if finished and not self.reached_goal:
                self._look_at_neighbours()
        return self.reached_goal

    def _look_at_neighbours(self) -> None:
        """Raise an error if a neighbour that has not finished hangs: nothing waits for it."""
        for link, wait in zip(self._links, self._waits, strict=True):
            finished = self._world.flags.all_set(self._flag("finished"), ranks=[link.rank])
            if finished or link.connection is None:  # it is being started again
                wait.restart()
            else:
                wait.look()

    def _flag(self, name: str) -> str:
        return f"{name}/{self._world.membership.phase}"

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Take a turn of the stage, as soon as there is a packet to draw; see the base."""
        stage = self._stage
        stage.enter(epoch)
        if self._previous is None:
            self._source.send(stage.turns, stage.epoch, inputs, targets)
        elif not self._wait_for_packet():
            return []
        start = time.perf_counter()
        failures, turn = self._world.failures, stage.turns
        # The first turn of a process may compile, or load libraries.
        failures.set_activity(f"taking turn {turn}", slow=not self._taken)
        events = stage.take_turn(turn)
        self._taken = True
        failures.set_activity(f"between turn {turn} and the next one", slow=True, idle=True)
        time.sleep(self._idle * (time.perf_counter() - start))
        return events

    def predict(self, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation with all stages; return what this one predicts."""
        previous, following = (
            link.wait_connected() if link is not None else None
            for link in (self._previous, self._following)
        )
        self._announce = self._announce or BatchAnnouncer(previous, following)
        return self._announce.predict(self._stage.stage, batches)

    def finish(self) -> list[Event]:
        """Meet the other processes, and apply gradients that were too few for an update."""
        if self._world.membership.detached:
            for link in self._links:
                link.wait_connected()
            self._world.reunite()
            self._announce = None  # all count from the beginning, with those that have rejoined

            # Count packets that were lost or orphaned and that no later packet has told of.
            phase = self._world.membership.phase
            if self._following is not None:
                sent = self._stage.stage.send_stats.sent
                self._following.wait_connected().send("count", phase, sent=sent)
            if self._previous is not None and self._buffer is not None:
                message = self._previous.wait_connected().receive("count", phase)
                self._buffer.count_lost(message.number("sent"))
        return self._stage.final_update(self._stage.turns)

    def _wait_for_packet(self) -> bool:
        """Wait for a packet to draw or, after the goal, to pass on; return True if it came.

        The sender may have been stopped, so the wait ends when all are.
        """
        assert self._buffer is not None
        assert self._previous is not None
        finished, turn, failures = self._stage.finished, self._stage.turns, self._world.failures
        if finished and self._following is None:
            time.sleep(POLL_S)
            return False
        there, peer = False, self._previous.peer_name
        activity = f"waiting for something to draw from {peer}"
        wait = failures.waiting_for(activity, [self._previous.rank], f"anything from {peer}")
        with self._stage.stage.recorder.span("wait", turn, turn), wait as waiting:
            while not there and failures.record.known is None:  # no other has failed
                there = self._buffer.wait(min(POLL_S, failures.slice_s), fresh=finished)
                if finished or self._check_finished():
                    break
                if self._previous.connection is None:  # it is being started again
                    waiting.restart()
                elif not there:
                    # A sender that drops everything makes progress all the same.
                    waiting.look(failures.limits.slow_timeout_s)
        return there
