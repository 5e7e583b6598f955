"""The serial engine executes the program, tells of every action, and names where it stopped."""

import pytest
from torch import nn

from contract.small import LOCKSTEP, STAGES, data, mlp, sgd, stepped, train
from hocket import Trainer, unroll
from hocket.methods import FDG, METHODS


@pytest.mark.parametrize("name", LOCKSTEP)
@pytest.mark.parametrize("epoch_end", ["carry", "drain"])
@pytest.mark.parametrize("stages", STAGES)
def test_events_are_the_program_and_nothing_is_left_over(stages, epoch_end, name):
    method = METHODS[name](epoch_end=epoch_end)
    trained = train(method, mlp(stages), data(mlp, 4, last=2), epochs=2, lr=1e-3)
    program = [
        (tick, action)
        for tick, actions in enumerate(unroll(method, stages, [4, 4]))
        for action in actions
    ]
    if epoch_end == "carry":
        assert [(e.tick, e.action) for e in trained.events] == program
    assert [e.action for e in trained.events] == [action for _, action in program]
    for k, stage in enumerate(trained.trainer.stages):
        assert [e.report.epoch for e in trained.of("B", k)] == [b // 4 for b in range(8)]
        assert len(stage.in_flight) == 0
        assert all(p.grad is None for p in stage.module.parameters())
        port = stage.core.parts.to_previous
        assert port._incoming.state_dict() == port._outgoing.state_dict() == []
        assert stage.updater.version > 0


@pytest.mark.parametrize("reason", ["no", "you tried: can't allocate memory: 9 bytes"])
def test_any_error_says_where_it_happened(reason):
    class Fails(nn.Module):
        calls = 0

        def forward(self, values):
            self.calls += 1
            if self.calls == 3:  # those made while the stage was being built are not counted
                raise RuntimeError(reason)
            return values

    modules = [mlp(1)[0][:5], nn.Sequential(Fails(), *mlp(1))]
    with pytest.raises(RuntimeError, match=reason) as caught:
        train(FDG(), modules, data(mlp, 8))
    place, *advice = caught.value.__notes__
    assert place == "(stage 1, batch 2, tick 3: F1.2)"
    assert ["smaller batches" in line for line in advice] == [True] * (reason != "no")


def test_training_goes_on_after_it_was_finished_and_finishing_nothing_does_nothing():
    trainer = Trainer(mlp(3), method=FDG(), optimizer=sgd)
    assert trainer.finish() == trainer.end_epoch() == []
    batches = data(mlp, 6)
    trainer.prepare(batches[0][0])
    stages = trainer.stages
    trainer.prepare(batches[0][0])
    assert trainer.stages is stages
    assert trainer.finish() == []
    stepped(trainer, batches[:3])
    trainer.finish()
    assert trainer.finish() == []
    assert [trainer.step(*batch) is None for batch in batches[3:]] == [True, True, False]
    trainer.finish()
    assert all(stage.updater.version == 6 for stage in trainer.stages)
