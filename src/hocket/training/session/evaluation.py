"""Evaluation of a network in the middle of its training, which leaves no trace in it.

Weights, statistics, random numbers and modes are afterwards as they were before.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hocket.distributed.failures.phases import Phase
from hocket.errors import DataError
from hocket.modes import evaluation_mode
from hocket.restore import preserve_rng, restore_state
from hocket.stage.passes.forward_only import Prediction
from hocket.training.results.meters import EvaluationMeter
from hocket.training.results.own_metrics import OwnMetrics
from hocket.training.session.batches import require_batches
from hocket.training.session.session import Session
from hocket.tree import Tree, map_tensors


def measure(session: Session, batches: Iterable[Any]) -> EvaluationMeter:
    """Evaluate on batches; return what was counted in all processes, perhaps nothing.

    Raises:
        DataError: A metric of the user's own is not one number.
    """
    # Count what the stages of this process predict.
    meter = EvaluationMeter(session.cut.count, session.metrics)

    def add(prediction: Prediction) -> None:
        with session.setup.autocast():
            meter.add(prediction, session.setup.evaluation_loss)

    _forward(session, batches, add)
    # Add up the counts of all processes.
    total = EvaluationMeter(session.cut.count, OwnMetrics({}))
    with session.reporting_failures():
        counted = meter.values()
    for values in session.world.gather(counted, "evaluating"):
        total.merge(values)
    return total


def predict(session: Session, batches: Iterable[Any]) -> list[Tree]:
    """Return the output of the network for each batch, on the CPU of every process.

    Raises:
        DataError: The batches are one tensor.
    """
    last = session.cut.count - 1
    if isinstance(batches, Tensor):
        with session.reporting_failures():
            raise DataError(
                f"the batches are a tensor of shape {tuple(batches.shape)}, each row of "
                "which would be a batch; give a list of batches, [x] for one"
            )
    # Keep the outputs of the last stage, and send them to all processes, mappings as dicts.
    outputs: list[Tree] = []
    alone = session.world.size == 1

    def keep(prediction: Prediction) -> None:
        if prediction.stage == last:
            output = map_tensors(Tensor.cpu, prediction.output)
            outputs.append(dict(output) if isinstance(output, dict) and not alone else output)

    _forward(session, batches, keep, inputs_only=True)
    shared = session.world.broadcast(outputs, source=last * session.world.replicas)
    assert isinstance(shared, list)
    return shared


@torch.inference_mode(False)  # leave the caller's
@torch.no_grad()
def _forward(
    session: Session,
    batches: Iterable[Any],
    use: Callable[[Prediction], None],
    *,
    inputs_only: bool = False,
) -> None:
    """Forward batches in evaluation mode, and use what each stage here predicts for each.

    Raises:
        DataError: There are none, and other processes wait for the first one.
    """
    setup = session.setup
    losses = [f for f in (setup.loss, setup.evaluation_loss) if isinstance(f, nn.Module)]
    # Build the stages, if there are none yet: the network is cut in its current mode.
    with session.reporting_failures(), preserve_rng([setup.device]):
        if session.world.reads_data:
            require_batches("data", batches)
        pairs = session.prepared_by(batches, inputs_only=inputs_only)
        if not session.prepared and session.world.size > 1:  # the others build stages
            raise DataError("there are no batches; an iterator can be used once")
        session.ticks.look()
    # Forward all batches, and restore what that changes.
    with (
        session.reporting_failures(),
        session.world.in_phase(Phase.EVALUATING),
        preserve_rng([setup.device]),
        evaluation_mode(session.cut.network, *session.cut.modules, *losses),
        restore_state(*losses),
    ):
        moved = map(session.upload, pairs)
        # Replicas differ in statistics; the first one is the network that is saved.
        first = session.world.replica == 0
        for prediction in session.engine.predict(moved) if first else ():
            use(prediction)
