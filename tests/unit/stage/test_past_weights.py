"""Weights of forwards in flight: as they were, and no more of them than there are batches."""

import pytest

from contract.small import LINEARIZE, data, different, mlp, train, weights_of
from hocket.methods import ADL, FDG
from hocket.remedies import Compensate


@pytest.mark.parametrize("linearize", LINEARIZE)
@pytest.mark.parametrize("build", [FDG, ADL])
def test_the_weights_of_every_forward_are_found_at_its_backward(build, linearize):
    method = build(linearize=linearize).with_remedies(Compensate(strength=0.0))
    modules, forwarded, versions, found = mlp(3), {}, {}, 0

    def watch(event, stage):
        nonlocal found
        place = stage.index, event.action.batch
        if event.action.kind == "F":
            forwarded[place] = list(weights_of(modules[stage.index]).values())
            versions[place] = stage.updater.version
        elif event.action.kind == "B":
            then = stage.core.weights.at_version(versions[place])
            found += then is not None
            now = weights_of(modules[stage.index]).values()
            assert not different(now if then is None else then, forwarded[place])

    train(method, modules, data(mlp, 13), watch=watch)
    assert found


@pytest.mark.parametrize("linearize", LINEARIZE)
def test_only_versions_of_batches_in_flight_are_kept(linearize):
    method = FDG(linearize=linearize).with_remedies(Compensate())
    most = [0, 0, 0]

    def watch(event, stage):
        versions = {batch.version for batch in stage.in_flight}
        if event.action.kind == "U" and stage.index < 2:
            assert set(stage.core.weights._kept) <= versions
            most[stage.index] = max(most[stage.index], len(stage.core.weights._kept))

    train(method, mlp(3), data(mlp, 26), watch=watch)
    assert most == [method.staleness(k, stages=3) for k in range(3)]
