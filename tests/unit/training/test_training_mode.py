"""The mode in which a trainer trains, and what it says of modes and single samples."""

import pytest
import torch
from torch import nn

from contract.small import conv, data, mlp, sgd
from hocket import Trainer
from hocket.errors import DataError
from hocket.methods import BP, DGL, FDG
from unit.test_modes import flags


@pytest.mark.parametrize("build", [lambda layers: nn.Sequential(*layers).eval(), list])
def test_fit_trains_a_network_or_stages_that_come_in_evaluation_mode(build):
    stages = [stage.eval() for stage in conv(2)]
    trainer = Trainer(build(stages), optimizer=sgd)
    trainer.fit(data(conv, 3), data(conv, 1), epochs=1, progress=False)
    assert all(flags(*stages))
    assert stages[0][1].num_batches_tracked == 3


def test_layers_that_are_frozen_before_or_in_a_callback_stay_so_until_the_user_trains_them():
    network = nn.Sequential(*conv(2))
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    norms[0].eval()
    trainer = Trainer(network, method=BP(), optimizer=sgd)

    def on_epoch(epoch):
        norms[1].eval()
        if epoch.number == 1:
            network.eval()  # for a metric of the user's own, say
        if epoch.number == 2:
            network.train()

    trainer.fit(data(conv, 3), epochs=4, on_epoch=on_epoch, progress=False)
    assert [int(norm.num_batches_tracked) for norm in norms] == [3, 6]
    assert network.training


def test_a_step_in_evaluation_mode_warns_once():
    network = nn.Sequential(*mlp(2))
    trainer = Trainer(network, optimizer=sgd)
    batch = data(mlp, 1)[0]
    trainer.step(*batch)
    network.eval()
    with pytest.warns(UserWarning, match="the network trains in evaluation mode, so"):
        trainer.step(*batch)
    trainer.step(*batch)
    assert not network.training


@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize(
    ("method", "place"),
    [(BP(), "(stage 0, batch 1, tick 1: F0.1)"), (DGL(), "(stage 0, batch 1, tick 1: B0.1)")],
)
def test_a_batch_of_one_sample_for_batchnorm_is_refused(method, place, compared):
    """For that of a stage, or of its head."""
    has_norm = method.signal.needs_gradient
    norm = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5) if has_norm else nn.Identity())
    measured = {"gradient_error_every": 1, "on_gradient_error": lambda comparison: None}
    trainer = Trainer(
        [norm, nn.Linear(5, 3)], method=method, optimizer=sgd, **(measured if compared else {})
    )
    batches = [(torch.randn(n, 5), torch.zeros(n, dtype=torch.long)) for n in (4, 1)]
    with pytest.raises(DataError, match=r"one sample.*BatchNorm.*drop_last=True") as caught:
        trainer.fit(batches, epochs=1, progress=False)
    assert place in caught.value.__notes__


def test_the_weights_of_other_stages_are_said_to_be_old_once():
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd)
    session = trainer._session
    trainer.step(*data(mlp, 1)[0])
    assert trainer.network is session.cut.network  # one process has all stages
    session.cut.collected = False  # as after a step among processes
    with pytest.warns(UserWarning, match="the present weights of its own stage only; call"):
        _ = trainer.network
    _ = trainer.network
    trainer.collect()
    assert session.cut.collected
