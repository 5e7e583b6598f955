"""T3 of PipeMare: back-propagation to the bit at first, and then the method from that state."""

from dataclasses import replace

import pytest
import torch

from contract.small import conv, data, different, mlp, sgd, stepped, train
from hocket import Trainer
from hocket.methods import ADL, BP, DDG, FDG, PACI, PipeDream, PipeDream2BW
from hocket.methods.method import Method
from hocket.remedies import (
    T1,
    T2,
    T3,
    Compensate,
    Predict,
    SpikeCompensation,
    StageRemedy,
    StalenessRate,
)
from hocket_lab.planner.rehearsals import Candidate


def label(value):
    """Part of a test's id."""
    if isinstance(value, Method):
        kinds = [type(remedy).__name__ for remedy in value.remedies]
        return " ".join([value.name, value.linearize, value.hold, *kinds])
    return str(value)


class Halving(T1):
    def attach(self, stage, weights):
        at_stage = StageRemedy()
        at_stage.correct_gradient = lambda _: [p.grad.mul_(0.5) for p in weights.parameters]
        return at_stage


METHODS = [
    FDG().with_remedies(Halving()),
    DDG(linearize="recompute", epoch_end="drain"),
    ADL(accumulate=3, linearize="live"),
    PACI(accumulate=2, epoch_end="drain"),
    PipeDream(hold="vertical"),
    PipeDream2BW(accumulate=3),
    FDG(forward_delay=2).with_remedies(SpikeCompensation(), T1(anneal=3), Compensate()),
    DDG(linearize="live").with_remedies(T2(), StalenessRate(), T1(anneal=3)),
    ADL(accumulate=5).with_remedies(Predict(direction="last")),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=label)
KEEPS_NOTHING = [m for m in METHODS if not any(r.copies for r in m.remedies)]


@every_method
@pytest.mark.parametrize("net", [mlp, conv])
def test_the_first_updates_are_those_of_back_propagation(method, net):
    """Bit-equal, whatever other remedies there are; and no gradient is late."""
    bp = BP(accumulate=method.accumulate, epoch_end=method.epoch_end)
    plain = train(bp, net(3), data(net, 7, last=3), epochs=2)
    start = method.with_remedies(T3(updates=14))
    synchronous = train(start, net(3), data(net, 7, last=3), epochs=2)
    assert not different(synchronous.state, plain.state)
    assert {event.report.staleness for event in synchronous.of("B", 0)} == {0}


@pytest.mark.parametrize("method", KEEPS_NOTHING, ids=label)
def test_after_them_the_method_begins(method):
    """Bit-equal to a training by the method that begins with their weights and momenta."""
    first = 2 * method.accumulate
    batches = data(mlp, first + 9)
    whole = train(method.with_remedies(T3(updates=2)), mlp(3), batches)
    flush = replace(method, flush="alternate", hold="newest", remedies=(), linearize="stash")
    modules = mlp(3)
    begun = train(flush, modules, batches[:first])
    states = [stage.updater.optimizer.state_dict() for stage in begun.trainer.stages]

    def resumed(parameters, stage, stages):
        optimizer = sgd(parameters)
        optimizer.load_state_dict(states[stage])
        return optimizer

    after = train(method, modules, batches[first:], optimizer=resumed)
    assert whole.losses == begun.losses + after.losses
    assert not different(whole.state[1:], after.state[1:])
    late = [[e.report.staleness for e in each.of("B", 0)] for each in (begun, after, whole)]
    assert late[0] + late[1] == late[2]


def test_other_stages_go_on_with_those_that_are_left(tmp_path):
    """Of six, three are done: three are synchronous in the other stages."""
    method = PipeDream(epoch_end="carry").with_remedies(T3(updates=6))
    late, batches = [], data(mlp, 12)

    def note_staleness(event, stage):
        if event.action.kind == "B" and stage.index == 0:
            late.append(event.report.staleness)

    first, other = (
        Trainer(
            torch.nn.Sequential(*(layer for part in mlp(2) for layer in part)),
            stages=stages,
            method=method,
            optimizer=sgd,
            resumable=True,
            watchers=[note_staleness],
        )
        for stages in (2, 3)
    )
    stepped(first, batches[:3])
    first.save(tmp_path)
    other.prepare(batches[0][0])
    with pytest.warns(UserWarning, match="the 2 stages of the checkpoint are not those"):
        other.resume(tmp_path)
    stepped(other, batches[3:])
    other.finish()
    assert late == [0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2]


def test_a_plan_counts_the_steady_state():
    candidate = Candidate("pipedream+t1+t3(updates=9)", ())
    assert candidate.build_method() == PipeDream().with_remedies(T1())
