"""What a trainer offers for several processes, seen from one; and what it refuses."""

from contract.small import data, different, mlp, sgd
from hocket import Trainer


def test_alone_a_process_leads_and_gathers_from_itself():
    trainer = Trainer(mlp(2), optimizer=sgd)
    assert trainer.is_main_process
    assert trainer.process_name is None
    assert trainer.gather({"a": 1}) == [{"a": 1}]
    assert trainer.sent_bytes == 0
    trainer.fit(data(mlp, 2), epochs=1, progress=False)
    assert trainer.sent_bytes == 0
    state = trainer.state_dict()
    assert different(state.values(), trainer.network.state_dict().values()) == []
    assert trainer.timeline().spans == ()  # only totals are kept without a trace
    assert all(stage.recorder.totals.busy_s > 0 for stage in trainer.stages)


def test_a_second_fit_counts_all_epochs(capsys):
    trainer = Trainer(mlp(2), optimizer=sgd)
    for epochs in (2, 3):
        trainer.fit(data(mlp, 2), epochs=epochs)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("epoch 1/2", "epoch 2/2"),
        *("epoch 3/5", "epoch 4/5", "epoch 5/5"),
    ]
