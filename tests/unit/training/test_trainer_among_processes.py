"""What a trainer offers for several processes, seen from one; and what it refuses."""

import pytest

from contract.small import data, different, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("batchnorm", "none", "batchnorm is 'none'; wanted 'local' or 'shared'"),
        ("replicas", 3, "replicas is 3, .* start 6"),
        ("slow_timeout_s", 10, "slow_timeout_s is 10, and timeout_s"),
    ],
)
def test_an_option_out_of_its_range_is_refused(option, value, said):
    with pytest.raises(OptionError, match=said):
        Trainer(mlp(2), optimizer=sgd, **{option: value})


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


def test_a_second_fit_counts_all_epochs(capsys):
    trainer = Trainer(mlp(2), optimizer=sgd)
    for epochs in (2, 3):
        trainer.fit(data(mlp, 2), epochs=epochs)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("epoch 1/2", "epoch 2/2"),
        *("epoch 3/5", "epoch 4/5", "epoch 5/5"),
    ]


def test_without_a_trace_only_totals_are_kept():
    trainer = Trainer(mlp(2), optimizer=sgd)
    trainer.fit(data(mlp, 2), epochs=1, progress=False)
    assert trainer.timeline().spans == ()
    assert all(stage.recorder.totals.busy_s > 0 for stage in trainer.stages)
