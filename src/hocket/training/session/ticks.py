"""Ticks and epochs of an engine; the first tick that an error cuts short is remembered."""

from collections.abc import Iterator
from contextlib import contextmanager

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.engine import Engine, UnbuiltEngine
from hocket.engine.event import Event
from hocket.errors import CheckpointError, DataError, HocketError, NonFiniteError
from hocket.partition.inputs import as_inputs, as_tree
from hocket.stage.finite.late_check import check_pending
from hocket.stage.setup import Setup
from hocket.stage.update.updater import Updater
from hocket.training.session.batches import Upload
from hocket.training.session.cut_network import CutNetwork
from hocket.tree import Tree


class Ticks:
    """Feeds an engine batch by batch, and refuses to go on where an error has lost some.

    After a tick that was cut short the stages are at different places. If batches are in flight
    between two ticks, or wait for an update of several, they are lost with it.
    """

    def __init__(
        self, setup: Setup, world: World | SoloWorld, cut: CutNetwork, upload: Upload
    ) -> None:
        self.engine: Engine = UnbuiltEngine()
        self._setup = setup
        self._world = world
        self._cut = cut
        self._upload = upload
        # Batches, or sums of gradients that not all of several replicas may have begun.
        self._holds_batches = (
            setup.method.accumulate > 1
            or setup.method.flight(cut.count) > 0
            or setup.replicas > 1
        )
        self._in_tick = False
        self._cut_short = ""
        self._advice = "resume a new trainer from a checkpoint"

    def step(self, inputs: Tree, targets: Tree, epoch: int) -> list[Event]:
        """Do the tick in which a batch enters, and those that flush a full group.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.
            epoch: Epoch that the batch belongs to.

        Raises:
            DataError: There is no tensor among the inputs.
            HocketError: Batches were lost in a tick that was cut short.
        """
        # Bring the batch to the device, where this process reads one.
        self._require_batches()
        if self._world.reads_data:
            pair = as_inputs(inputs, "the batch"), as_tree(targets)
            inputs, targets = self._upload(pair)
        else:
            inputs = targets = None
        # Do the tick; among several processes the network then lacks weights of other stages.
        self._cut.collected = self._world.size == 1
        engine, every = self.engine, self._setup.ticks_per_check
        ticks = engine.tick_count if every > 1 else 0
        with self._remembering_errors():
            events = engine.step(inputs, targets, epoch)
        # Look for faults, if that is due.
        if every > 1 and engine.tick_count // every > ticks // every:
            self.look()
        return events

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient.

        Raises:
            HocketError: Batches were lost in a tick that was cut short.
            NonFiniteError: A value became NaN or infinite since the last look.
        """
        self._require_batches()
        with self._remembering_errors():
            events = self.engine.finish()
        self.look()
        return events

    def end_epoch(self) -> list[Event]:
        """Complete what is in flight if the method drains at the end of an epoch.

        Raises:
            NonFiniteError: A value became NaN or infinite since the last look.
        """
        if self._setup.method.epoch_end == "drain":
            return self.finish()
        self.look()
        return []

    @property
    def follows_losses(self) -> bool:
        """True if a scheduler follows the validation loss of each epoch."""
        return any(updater.follows_losses for updater in self._updaters())

    def note_loss(self, epoch: int, loss: float) -> None:
        """Tell the schedulers that follow it the validation loss of an epoch."""
        for updater in self._updaters():
            updater.note_loss(epoch, loss)

    def _updaters(self) -> Iterator[Updater]:
        for stage in self.engine.all_stages:
            yield from (stage.updater, stage.signal_updater)

    def look(self) -> None:
        """Find faults of the stages here since the last look.

        Raises:
            NonFiniteError: There is one. The stages are in their states of the last look.
        """
        with self._remembering_errors(Exception):  # a Ctrl-C between two ticks loses no batch
            check_pending([stage.late_check for stage in self.engine.all_stages])

    def require_whole(self) -> None:
        """Refuse the state within a tick, or after one that was cut short.

        Raises:
            CheckpointError: There is such a tick.
        """
        if self._in_tick:
            raise CheckpointError(
                "save was called within a tick, by a watcher or on_update, while "
                "the stages are at different places; call it after the tick, as in on_step"
            )
        if self._cut_short:
            raise CheckpointError(
                f"{self._cut_short}, so the stages are at different places; resume from the "
                "checkpoint before"
            )

    def _require_batches(self) -> None:
        """Refuse to go on within a tick, or without batches whose update was to come.

        Raises:
            HocketError: There is such a tick, or they were lost in one that was cut short.
        """
        if self._in_tick:
            raise HocketError(
                "the trainer was called within a tick, by a watcher, while the stages are at "
                "different places; call it after the step"
            )
        if self._cut_short and self._holds_batches:
            raise HocketError(
                f"{self._cut_short}, and the batches before their update are lost; "
                f"{self._advice}"
            )

    @contextmanager
    def _remembering_errors(self, kind: type[BaseException] = BaseException) -> Iterator[None]:
        """Context manager for a tick that remembers the first error that has cut one short.

        The caller's autocast has no effect in it.

        Raises:
            DataError: A layer cannot train on a batch of one sample.
        """
        was_in_tick, self._in_tick = self._in_tick, True
        try:
            with self._setup.without_callers_autocast():
                yield
        except kind as error:
            if "more than 1 value per channel" not in str(error):  # said by PyTorch's BatchNorm
                self._end(error)
                raise
            refusal = DataError(
                f"a batch of one sample cannot pass BatchNorm in training ({error}); use "
                "another batch size, so that the last batch has more, or leave it out: "
                "DataLoader(drop_last=True)"
            )
            for note in getattr(error, "__notes__", ()):
                refusal.add_note(note)
            self._end(refusal)
            raise refusal from error
        finally:
            self._in_tick = was_in_tick

    def _end(self, error: BaseException) -> None:
        if not self._holds_batches:  # so the tick's own batch is the only one
            for stage in self.engine.all_stages:
                stage.in_flight.clear()
            for updater in self._updaters():
                updater.accumulator.reduce()  # it begins again with none
                updater.zero_grad()
        # Data are refused before the update, and a single stage then is where it was.
        is_whole = not self._holds_batches and self._cut.count == 1
        if self._cut_short or (is_whole and isinstance(error, DataError)):
            return
        self._cut_short = f"a tick was cut short by {type(error).__name__}"
        if isinstance(error, NonFiniteError):
            self._advice += ", or leave such batches out with on_nan='skip'"
