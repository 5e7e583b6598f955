"""From the options of a stage to what runs its functions, and the steps of its optimizer."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from hocket.errors import OptionError, warn
from hocket.stage.finite.nonfinite import LateCheck
from hocket.stage.graphs.recorder import CudaRecorder, Recorder
from hocket.stage.graphs.runner import ReplayRunner, Runner
from hocket.stage.graphs.step import ReplayedStep
from hocket.stage.late_gradients.linearizer import Linearizer
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.update.bare_step import do_step


def build_recorder(device: torch.device) -> Recorder:
    """Build the recorder of a stage.

    Args:
        device: Device of the stage.

    Raises:
        OptionError: It has no graphs.
    """
    if device.type != "cuda":
        raise OptionError(
            f"cuda_graphs are for a GPU, and the device is {str(device)!r}; leave cuda_graphs "
            "out, or choose device='cuda'"
        )
    return CudaRecorder()


def build_runner(
    setup: Setup,
    parts: StageParts,
    trained: Sequence[nn.Parameter],
    late: LateCheck,
    linearizer: Linearizer,
) -> Runner:
    """Build the runner of a stage.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
        trained: All weights with which backwards leave gradients.
        late: Check that norms are left to.
        linearizer: Linearizer of the stage.
    """
    if not setup.cuda_graphs:
        return Runner()
    if parts.signal.learns_from_gradient:
        warn(
            f"stage {parts.index} of method {setup.method.name!r} has a network that learns "
            "from targets, which is not captured (cuda_graphs): the stage computes each batch "
            "as without"
        )
        return Runner()
    return ReplayRunner(
        build_recorder(setup.device),
        parts.index,
        (parts.module, parts.signal_network),
        trained,
        late,
        linearizer.after_update,
        accumulates=setup.method.accumulate > 1,
    )


def build_step(setup: Setup) -> Callable[[Optimizer], None]:
    """Build what does the steps of an optimizer.

    Args:
        setup: Options that all stages share.
    """
    return ReplayedStep(build_recorder(setup.device)) if setup.cuda_graphs else do_step
