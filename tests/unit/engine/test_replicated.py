"""Several replicas of each stage in one process: changes from outside, messages, refusals."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from threading import Lock

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from contract.small import conv, data, far, mlp, train
from hocket import Checkpoints, Trainer, cross_entropy
from hocket.errors import DataError, HocketError, NonFiniteError, OptionError
from hocket.methods import BP, DGL, DNI, FDG, DGLAsync

OPTIMIZER = partial(SGD, lr=0.05, momentum=0.9)
BATCHES = data(mlp, 8)
WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.1], dtype=torch.double))


def build(replicas: int, net: Callable[..., list[nn.Module]] = mlp, **more: object) -> Trainer:
    told = {"method": FDG(), "optimizer": OPTIMIZER, "replicas": replicas} | more
    return Trainer(net(2, dropout=0.0), **told)


def freeze(trainer: Trainer) -> None:
    next(trainer.stages[0].module.parameters()).requires_grad_(False)


def slow_down(trainer: Trainer) -> None:
    for stage in trainer.stages:
        stage.updater.optimizer.param_groups[0]["lr"] = 0.01


def load_weights(trainer: Trainer) -> None:
    state = trainer.state_dict()
    trainer.network.load_state_dict({name: value * 0.5 for name, value in state.items()})


def halve_head(trainer: Trainer) -> None:
    with torch.no_grad():
        for weight in trainer.stages[0].signal_network.parameters():
            weight.mul_(0.5)


def trained(replicas: int, change: Callable[[Trainer], None], **more: object) -> list[Tensor]:
    with build(replicas, **more) as trainer:
        for number, batch in enumerate(BATCHES):
            if number == 4:
                change(trainer)
            trainer.step(*batch)
        trainer.finish()
        return list(trainer.state_dict().values())


@pytest.mark.parametrize(
    ("change", "more"),
    [
        *product([freeze, slow_down, load_weights], [{}, {"replica_delay": 1}]),
        (halve_head, {"method": DGL(head="mlp", depth=0)}),
    ],
)
def test_all_replicas_follow_what_the_user_changes(change, more):
    """Halves of each batch then have the mean gradient of the whole batch, up to rounding."""
    halves = trained(2, change, **more)
    whole = trained(4 if "replica_delay" in more else 1, change, **more)
    assert far(halves, whole) == []
    assert far(halves, trained(2, lambda trainer: None, **more)) != []


def test_all_replicas_follow_the_rates_of_synthesizers():
    with build(2, method=DNI()) as trainer:
        trainer.step(*BATCHES[0])
        trainer.stages[0].signal_updater.optimizer.param_groups[0]["lr"] = 0.01
        trainer.step(*BATCHES[1])
        other = trainer.engine.all_stages[2]
    assert other.signal_updater.optimizer.param_groups[0]["lr"] == 0.01


def test_all_replicas_follow_modes_of_layers():
    with build(2, conv) as trainer:
        trainer.network.eval()
        trainer.prepare(data(conv, 1)[0][0])
        trainer.network.train()
        trainer.step(*data(conv, 1)[0])
        modes = [m.training for s in trainer.engine.all_stages for m in s.module.modules()]
    assert all(modes)


@pytest.mark.parametrize("loss", [cross_entropy, WEIGHTED])
def test_events_have_the_loss_of_the_whole_batch(loss):
    told = {"method": BP(), "loss": loss}
    with build(2, **told) as halves, build(1, **told) as whole:
        for batch in BATCHES:
            assert halves.step(*batch) == pytest.approx(whole.step(*batch), rel=1e-9)


def test_a_synthesizer_has_its_loss_before_its_late_gradients_have_come():
    trained = train(DNI(), mlp(2), BATCHES, replicas=2, replica_delay=1)
    reports = [event.report for event in trained.of("T", 0)]
    assert [report.lr is None for report in reports] == [True] + [False] * 7
    assert all(report.loss and report.targets is None for report in reports)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_replica_may_have_no_targets_of_a_batch(smoothing):
    """PyTorch's loss is NaN for its part, and a number for the batch."""
    loss, ends = nn.CrossEntropyLoss(label_smoothing=smoothing), []
    for replicas in (1, 2):
        with build(replicas, loss=loss) as trainer:
            losses = [
                trainer.step(x, torch.where(torch.arange(4) < 2, -100, y)) for x, y in BATCHES
            ]
            trainer.finish()
            ends.append([*trainer.state_dict().values(), torch.tensor(losses[2:])])
    assert far(*ends) == []


def test_a_rate_that_is_a_tensor_is_scheduled_once():
    scheduled = {
        "optimizer": partial(SGD, lr=torch.tensor(0.05)),
        "scheduler": partial(ExponentialLR, gamma=0.5),
        "scheduler_unit": "update",
    }
    halves, whole = (trained(count, lambda trainer: None, **scheduled) for count in (2, 1))
    assert far(halves, whole) == []


def test_other_cuts_continue_with_all_replicas(tmp_path: Path):
    network = nn.Sequential(*(layer for part in mlp(2, dropout=0.0) for layer in part))
    told = {"optimizer": OPTIMIZER, "replicas": 2}
    with Trainer(network, stages=2, resumable=True, **told) as trainer:
        trainer.fit(BATCHES, epochs=1, progress=False, checkpoints=Checkpoints(tmp_path))
    with Trainer(network, stages=3, **told) as trainer:
        with pytest.warns(UserWarning, match="not those of this training"):
            trainer.resume(tmp_path)
        stages = trainer.engine.all_stages
        for first, other in zip(stages[:3], stages[3:], strict=True):
            ours, theirs = first.module.state_dict(), other.module.state_dict()
            assert far(ours.values(), theirs.values()) == []
            assert other.updater.version == first.updater.version > 0


def test_a_fault_names_the_action():
    inputs, targets = BATCHES[0]
    broken = inputs.clone()
    broken[-1] = torch.nan  # of the second replica
    with build(2) as trainer, pytest.raises(NonFiniteError) as caught:
        trainer.step(broken, targets)
    assert "stage 0, batch 0" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("sample", [0, -1])
def test_no_step_follows_one_in_which_a_replica_has_failed(sample):
    """The other one may have begun to add up its gradients."""
    inputs, targets = BATCHES[0]
    broken = targets.clone()
    broken[sample] = 99
    with build(2, method=BP()) as trainer:
        with pytest.raises(DataError):
            trainer.step(inputs, broken)
        with pytest.raises(HocketError, match="cut short by DataError"):
            trainer.step(inputs, targets)


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"batchnorm": "shared"}, "batchnorm.*4 processes"),
        ({"gradient_error_every": 1, "on_gradient_error": print}, "gradient_error_every"),
        ({"method": DGLAsync()}, "dgl-async.*replicas"),
    ],
    ids=str,
)
def test_what_needs_one_replica_or_processes_is_refused(told, names):
    with pytest.raises(OptionError, match=names):
        build(2, **told).prepare(BATCHES[0][0])


def test_a_network_that_cannot_be_copied_is_refused():
    def with_lock(stages: int, **more: object) -> list[nn.Module]:
        modules = mlp(stages, **more)
        modules[0].lock = Lock()
        return modules

    with pytest.raises(OptionError, match=r"copied.*lock"):
        build(2, with_lock).prepare(BATCHES[0][0])
