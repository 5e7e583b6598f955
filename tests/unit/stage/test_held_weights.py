"""Old weights of a stage: as they were, no more than needed, in place for a forward only."""

import pytest
import torch

from contract.small import LINEARIZE, data, mlp, train
from hocket.methods import ADL, FDG, PipeDream, PipeDream2BW
from hocket.remedies import Compensate, Predict

HOLDING = {
    "vertical": PipeDream(hold="vertical"),
    "vertical-2": ADL(hold="vertical", accumulate=2),
    "2bw": PipeDream2BW(accumulate=3),
    "double": ADL(hold="double", accumulate=6),
}


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("method", HOLDING.values(), ids=HOLDING.keys())
def test_a_stage_holds_as_many_versions_as_the_table_says(method, stages):
    most = [0] * stages

    def watch(event, stage):
        graphs = {batch.version for batch in stage.in_flight.values()}
        versions = {*stage.core.weights._kept, *graphs, stage.updater.version}
        most[stage.index] = max(most[stage.index], len(versions))

    train(method, mlp(stages), data(mlp, 26), watch=watch, lr=1e-3)
    assert most == [method.memory(k, stages).versions for k in range(stages)]


@pytest.mark.parametrize(
    ("method", "stage"),
    [(PipeDream2BW(accumulate=1), 1), (FDG().with_remedies(Predict()), 0)],
    ids=["held", "predicted"],
)
def test_an_error_of_a_forward_with_other_weights_leaves_the_newest_in_place(method, stage):
    modules, seen = mlp(2), []
    weight = modules[stage][0].weight

    def fail(module, inputs):
        seen.append(weight.detach().clone())
        if len(seen) == 5:
            raise RuntimeError("a layer failed")

    modules[stage].register_forward_pre_hook(fail)
    newest = []

    def watch(event, at):
        if event.action.kind == "U" and at.index == stage:
            newest.append(weight.detach().clone())

    with pytest.raises(RuntimeError, match="a layer failed"):
        train(method, modules, data(mlp, 9), watch=watch)
    assert torch.equal(weight, newest[-1])
    assert not torch.equal(seen[-1], newest[-1])


def test_a_weight_may_be_replaced_by_one_with_other_strides():
    plain, replaced = mlp(2), mlp(2)

    def watch(event, stage):
        if event.action.kind == "U":
            weight = replaced[1][0].weight
            weight.data = weight.data.t().contiguous().t()

    train(PipeDream2BW(accumulate=1), plain, data(mlp, 9))
    train(PipeDream2BW(accumulate=1), replaced, data(mlp, 9), watch=watch)
    torch.testing.assert_close(replaced[1][0].weight, plain[1][0].weight)


@pytest.mark.parametrize("linearize", LINEARIZE)
def test_only_versions_of_batches_in_flight_are_kept(linearize):
    method = FDG(linearize=linearize).with_remedies(Compensate())
    most = [0, 0, 0]

    def watch(event, stage):
        versions = {batch.version for batch in stage.in_flight.values()}
        if event.action.kind == "U" and stage.index < 2:
            assert set(stage.core.weights._kept) <= versions
            most[stage.index] = max(most[stage.index], len(stage.core.weights._kept))

    train(method, mlp(3), data(mlp, 26), watch=watch)
    assert most == [method.staleness(k, stages=3) for k in range(3)]
