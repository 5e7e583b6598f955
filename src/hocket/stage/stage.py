"""A run of layers that trains by itself: forward, backward and update, without a schedule.

First, middle and last stage are the same class. They differ in what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from hocket.program.action import Action
from hocket.signals.losses import ignored_index
from hocket.stage.core import StageCore, build_core
from hocket.stage.finite.nonfinite import check_pending
from hocket.stage.parts import StageParts
from hocket.stage.passes.backward import backward
from hocket.stage.passes.forward import forward
from hocket.stage.passes.update import learn, update
from hocket.stage.report import ActionReport
from hocket.stage.setup import Setup
from hocket.stage.state import read_state, state_mismatches, write_state
from hocket.tree import Tree

_ACTIONS: Mapping[str, Callable[[StageCore, int], ActionReport]] = {
    "F": forward,
    "B": backward,
    "U": update,
    "T": learn,
}


class Stage:
    """One stage at work.

    Args:
        setup: Options that all stages share.
        parts: Layers, signal and ports of this stage.

    Attributes:
        core: Everything that the stage holds; the other attributes are parts of it.
        index: Number of the stage, from 0.
        is_last: True for the last stage of the network.
        module: Layers of the stage.
        signal: Signal that its error comes from.
        signal_network: Auxiliary network of that signal.
        updater: Updater of the layers, with their optimizer.
        signal_updater: Updater of a network that learns from targets.
        untrained: Weights that no optimizer has.
        recorder: Recorder of the time that the stage spends.
        send_stats: Statistics of what it sends to the next stage.
        receive_stats: Statistics of the buffer that it draws from; None without a buffer.
        in_flight: Batches between their forward and their backward.
        ignored_target: Class index that the loss leaves out.
        late_check: Search for NaN and infinity once in several ticks.
    """

    def __init__(self, setup: Setup, parts: StageParts) -> None:
        self.core = core = build_core(setup, parts)
        self.index = parts.index
        self.is_last = parts.is_last
        self.module = parts.module
        self.signal = parts.signal
        self.signal_network = parts.signal_network
        self.updater = core.updater
        self.signal_updater = core.signal_updater
        self.untrained = core.untrained
        self.recorder = parts.recorder
        self.send_stats = parts.send_stats
        self.receive_stats = parts.receive_stats
        self.in_flight = core.in_flight
        self.ignored_target = ignored_index(setup.loss)
        self.late_check = core.checks.late

    @property
    def gradients(self) -> list[Tensor | None]:
        """Gradients of the last backward, one for each weight; empty after an update."""
        return self.core.gradients

    def execute(self, action: Action) -> ActionReport:
        """Do one action.

        Raises:
            NonFiniteError: An output, a loss or a gradient is NaN or infinite, and that is
                to stop the training; or a weight is.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers are not compatible with the linearization.
        """
        do = _ACTIONS[action.kind]
        if not self.core.weights.replaces:
            return do(self.core, action.batch)
        with self.core.weights.at(action):
            return do(self.core, action.batch)

    def state_dict(self) -> Tree:
        """Return everything that the stage remembers between two ticks; see `write_state`."""
        check_pending([self.late_check])
        return write_state(self.core)

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a stage of the same layers and the same method."""
        read_state(self.core, state)

    def mismatches(self, state: Tree) -> list[str]:
        """Return one line for each reason why a state is not one of this stage."""
        return state_mismatches(self.core, state)

    def persistent_fault(self) -> str | None:
        """Describe the first NaN or infinity in what outlives a batch; None without one."""
        checks = self.core.checks
        return checks.layers.persistent_fault() or checks.signal.persistent_fault()
