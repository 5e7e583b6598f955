"""Gradients become updates at the learning rate of their own epoch; nothing else moves."""

import copy
import inspect
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, MultiStepLR, ReduceLROnPlateau

from contract.small import data, different, mlp, sgd, stepped, train
from hocket import Checkpoints, Trainer
from hocket.checkpoint.directory import checkpoint_name
from hocket.errors import CheckpointError, OptionError
from hocket.methods import ADL, BP, DDG, FDG, FR, METHODS
from hocket.remedies.remedy import StageRemedies, StageRemedy
from hocket.stage.update.updater import Updater


class Own(torch.optim.Optimizer):
    """Float32 copies of the weights, booleans in a list, and a state of no weight."""

    @torch.no_grad()
    def step(self):
        self.state["calls"] = 7
        for weight in self.param_groups[0]["params"]:
            [mask] = self.state[weight].setdefault("masks", [weight > 0])
            copy = self.state[weight].setdefault("copy", weight.float().clone())
            copy -= torch.where(mask, 0.1, 0.2) * weight.grad
            weight.copy_(copy)


OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")  # closures; sparse gradients
} | {"Own": lambda weights, lr: Own(weights, {"lr": lr})}


@pytest.mark.parametrize("way", ["load_state_dict", "adopt_state"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, (5, 4)) for name in OPTIMIZERS), *((n, ()) for n in OPTIMIZERS if n != "Muon")],
)
def test_an_optimizer_goes_on_with_the_bits_of_one_that_never_stopped(name, shape, dtype, way):
    def build(weight):
        optimizer = OPTIMIZERS[name]([weight], lr=0.1)
        return weight, Updater([("a", weight)], optimizer)

    def train(weight, updater, steps):
        for n in steps:
            weight.grad = torch.sin(weight.detach() * 7 + n)
            updater.accumulate()
            updater.update(epoch=0)

    torch.manual_seed(0)
    weight, updater = build(nn.Parameter(torch.randn(shape, dtype=dtype)))
    train(weight, updater, range(6))
    again, resumed = build(nn.Parameter(weight.detach().clone()))
    state = copy.deepcopy(updater.state_dict())
    if way == "adopt_state":
        resumed.adopt_state([state["optimizer"]["state"].get(0)], epoch=0, updates=6)
    else:
        resumed.load_state_dict(state)
    for each in ((weight, updater), (again, resumed)):
        train(*each, range(6, 16))
    assert torch.equal(weight, again)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.double))


@pytest.mark.parametrize("method", ["bp", "fdg", "dgl", "dni"])
@pytest.mark.parametrize("own_loop", [False, True])
def test_all_stages_follow_the_validation_loss(method, own_loop):
    """By hand: one scheduler, which is told the loss of each epoch before the next one."""
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.5)
    optimizer = partial(sgd, lr=1e-3)
    rates = {}

    def note(event, stage):
        if event.action.kind == "U":
            rates.setdefault((event.action.stage, event.report.epoch), event.report.lr)

    trainer = Trainer(
        mlp(3), method=method, optimizer=optimizer, scheduler=plateau, watchers=[note]
    )
    batches = data(mlp, 4)
    losses = []
    if own_loop:
        for _ in range(4):
            stepped(trainer, batches)
            losses.append(trainer.evaluate(batches).loss)
            trainer.end_epoch(losses[-1])
        trainer.finish()
    else:
        history = trainer.fit(batches, batches, epochs=4, progress=False)
        losses = [epoch.evaluation.loss for epoch in history]
    by_hand = optimizer([parameter(1.0)])
    scheduler, wanted = plateau(by_hand), []
    for loss in losses:
        wanted.append(by_hand.param_groups[0]["lr"])
        scheduler.step(loss)
    assert wanted[-1] < wanted[0]
    assert {
        stage: [rate for (k, _), rate in sorted(rates.items()) if k == stage]
        for stage in range(3)
    } == dict.fromkeys(range(3), wanted)


def test_a_plateau_is_followed_after_a_resumption_as_before(tmp_path):
    def build(stages=2):
        plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.5)
        options = {"optimizer": sgd, "scheduler": plateau, "resumable": True}
        network = nn.Sequential(*(layer for stage in mlp(2) for layer in stage))
        return Trainer(network, stages=stages, method="fdg", **options)

    batches = data(mlp, 3)
    whole = build()
    kept = Checkpoints(tmp_path, every=1, keep=99)
    whole.fit(batches, batches, epochs=4, progress=False, checkpoints=kept)
    resumed = build()
    resumed.resume(tmp_path / checkpoint_name(7, 2))
    resumed.fit(batches, batches, epochs=4, progress=False)
    weights, same = (list(each.network.state_dict().values()) for each in (whole, resumed))
    assert different(weights, same) == []
    (last,) = tmp_path.glob("*epoch-000004")
    refused = build(stages=1)
    before = [value.clone() for value in refused.network.state_dict().values()]
    with pytest.raises(CheckpointError, match="continues with the stages that it began with"):
        refused.resume(last)
    assert different(before, list(refused.network.state_dict().values())) == []


def test_plateaus_without_losses_are_refused():
    batches = data(mlp, 2)
    plateau = {"method": "fdg", "optimizer": sgd, "scheduler": ReduceLROnPlateau}
    with pytest.raises(OptionError, match="no validation data"):
        Trainer(mlp(2), **plateau).fit(batches, epochs=2, progress=False)
    trainer = Trainer(mlp(1), **plateau)
    trainer.step(*batches[0])
    trainer.end_epoch()
    with pytest.raises(OptionError, match="epoch 0 has none"):
        trainer.step(*batches[0])
    by_steps = partial(lr_scheduler.StepLR, step_size=1)
    for others, told in (
        ({"method": "dgl-async"}, "scheduler_unit 'epoch'"),
        ({"scheduler_unit": "update"}, "scheduler_unit 'epoch'"),
        ({"scheduler": by_steps, "plateau_metric": "accuracy"}, "plateau_metric .*StepLR"),
        ({"scheduler": partial(ReduceLROnPlateau, mode="max")}, "mode 'max' and follows"),
    ):
        with pytest.raises(OptionError, match=told):
            Trainer(mlp(2), **plateau | others).prepare(batches[0][0])


class RateRecorder:
    """Optimizer factory that records the learning rate of each step."""

    def __init__(self, lr=0.1) -> None:
        self.used, self.lr = [], lr

    def __call__(self, params):
        optimizer, lrs = sgd(params, lr=self.lr), []
        self.used.append(lrs)
        optimizer.register_step_pre_hook(
            lambda opt, *_: lrs.append(float(opt.param_groups[0]["lr"]))
        )
        return optimizer


WAITING_LONG = {
    "bp": BP(),
    "ddg": DDG(),
    "fdg": FDG(),
    "fdg-drained": FDG(epoch_end="drain"),
    "adl": ADL(accumulate=2),
    "adl-over-epochs": ADL(accumulate=3),
    "dgl": METHODS["dgl"](),
    "far": DDG(forward_delay=3, backward_delay=3),
}


@pytest.mark.parametrize("method", WAITING_LONG.values(), ids=WAITING_LONG.keys())
def test_the_rate_of_an_update_is_that_of_its_batchs_epoch(method):
    """At every stage, and no matter when the gradient comes back."""
    schedule = [0.1, 0.1 * 0.5, 0.1 * 0.5, 0.1 * 0.5 * 0.5]
    rates = RateRecorder()
    trained = train(
        method,
        mlp(3),
        data(mlp, 4),
        epochs=4,
        optimizer=rates,
        scheduler=partial(MultiStepLR, milestones=[1, 3], gamma=0.5),
    )
    for k in range(3):
        updates = trained.of("U", k)
        wanted = [schedule[e.action.batch // 4] for e in updates]
        assert [e.report.epoch for e in updates] == [e.action.batch // 4 for e in updates]
        assert rates.used[k] == wanted
        assert [e.report.lr for e in updates] == wanted


# Every scheduler of torch, with options that let it move within some epochs.
SCHEDULERS = {
    "constant": partial(lr_scheduler.ConstantLR, factor=0.5, total_iters=3),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=5, eta_min=0.02),
    "cosine restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4),
    "cyclic": partial(
        lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2, cycle_momentum=False
    ),
    "exponential": partial(ExponentialLR, gamma=0.7),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch)),
    "linear": partial(lr_scheduler.LinearLR, total_iters=3),
    "milestones": partial(MultiStepLR, milestones=[2, 5], gamma=0.3),
    "multiplicative": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda epoch: 0.9),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=9),
    "polynomial": partial(lr_scheduler.PolynomialLR, total_iters=6, power=2.0),
    "steps": partial(lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [ExponentialLR(optimizer, gamma=0.5), lr_scheduler.LinearLR(optimizer)],
        milestones=[3],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [ExponentialLR(optimizer, gamma=0.9), lr_scheduler.ConstantLR(optimizer)], optimizer
    ),
}


def test_all_schedulers_of_torch_are_tried():
    classes = {
        value
        for name, value in vars(lr_scheduler).items()
        if inspect.isclass(value) and issubclass(value, LRScheduler) and name[0] != "_"
    }
    tried = {type(build(sgd([parameter(1.0)]))) for build in SCHEDULERS.values()}
    untried = {each.__name__ for each in classes - tried}
    assert untried <= {"LRScheduler", "ReduceLROnPlateau", "SWALR"}


def rates_of_updates(scheduler, method, unit="epoch", lr=0.1, **options):
    """Return the learning rates of each stage, update after update."""
    rates = RateRecorder(lr)
    trainer = Trainer(
        mlp(2),
        method=method,
        optimizer=rates,
        scheduler=scheduler,
        scheduler_unit=unit,
        **options,
    )
    batches = data(mlp, 1 if unit == "update" else 2)
    trainer.fit(batches, epochs=8, progress=False)
    return rates.used


@pytest.mark.parametrize(
    ("method", "updates"), [(ADL(accumulate=2), 4), (METHODS["dni"](), 8)], ids=["adl", "dni"]
)
@pytest.mark.parametrize(
    "lr", [0.1, torch.tensor(0.1, dtype=torch.double)], ids=["number", "tensor"]
)
def test_a_scheduler_may_count_updates(method, updates, lr):
    """Those of synthesizers, too; of a tensor that all stages are given, each its own."""
    rates = rates_of_updates(partial(ExponentialLR, gamma=0.5), method, "update", lr)
    assert rates == [[0.1 * 0.5**n for n in range(updates)]] * len(rates)


@pytest.mark.parametrize("unit", ["epoch", "update"])
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_first_rate_scales_the_rates_of_every_scheduler(scheduler, unit):
    """Bit-equal: it is a factor on the rates that the scheduler gives by itself."""
    plain = rates_of_updates(scheduler, FR(), unit)[1]
    used = rates_of_updates(scheduler, FR(first_stage_rate=3.0), unit)
    assert len(set(plain)) > 1
    assert used == [[rate * 3.0 for rate in plain], plain]


@pytest.mark.parametrize("name", ["cosine", "steps", "one cycle"])
def test_a_scheduler_that_counts_updates_begins_after_a_warm_up_in_updates(name):
    """Bit-equal to its own rates from then on, at every stage and for every delay.

    The rates of a scheduler that counts epochs are scaled.
    """
    plain = rates_of_updates(SCHEDULERS[name], FDG(), "update")[0]
    for used in rates_of_updates(SCHEDULERS[name], FDG(), "update", warmup_updates=3):
        assert used == [plain[0] * (n + 1) / 4 for n in range(3)] + plain[:5]
    plain = rates_of_updates(SCHEDULERS[name], FDG())[0]
    for used in rates_of_updates(SCHEDULERS[name], FDG(), warmup_updates=3):
        factors = [0.25, 0.5, 0.75, *[1.0] * 13]
        assert used == [rate * factor for rate, factor in zip(plain, factors, strict=True)]


FIRST = {"method": FR(first_stage_rate=2.0)}
WARM = {"method": BP(), "scheduler_unit": "update", "warmup_updates": 4}


@pytest.mark.parametrize(
    ("options", "scheduler", "at", "stages"),
    [
        *((FIRST, name, 4, 2) for name in ("one cycle", "cosine", "chained", "sequential")),
        *((WARM, "cosine", at, stages) for at in (1, 3, 6) for stages in (2, 3)),
    ],
)
@pytest.mark.filterwarnings("ignore:the 2 stages of the checkpoint")
def test_rates_go_on_after_a_checkpoint(options, scheduler, at, stages, tmp_path):
    """Of the same stages bit by bit, and of others at the same rate."""

    def build(stages):
        return Trainer(
            nn.Sequential(*mlp(3)),
            stages=stages,
            optimizer=sgd,
            scheduler=SCHEDULERS[scheduler],
            resumable=True,
            **options,
        )

    rates, weights = [], []
    for resumed in (False, True):
        trainer = build(2)
        for number, batch in enumerate(data(mlp, 8)):
            if resumed and number == at:
                trainer.save(tmp_path)
                trainer = build(stages)
                trainer.resume(tmp_path)
            trainer.step(*batch)
            trainer.end_epoch()
        trainer.finish()
        rates.append(
            {stage.updater.optimizer.param_groups[0]["lr"] for stage in trainer.stages}
        )
        weights.append(list(trainer.network.parameters()))
    assert not different(*weights)
    assert rates[0] == rates[1]


def test_groups_keep_their_rates_between_updates():
    """Also rates that are tensors, as those of capturable optimizers."""
    p, q = parameter(1.0), parameter(1.0)
    rate = torch.tensor(0.4)
    optimizer = torch.optim.SGD([{"params": [p], "lr": rate}, {"params": [q], "lr": 0.2}])
    updater = Updater([("p", p), ("q", q)], optimizer, lr_factor=lambda update: 0.5)
    for weight in (p, q):
        weight.grad = torch.ones_like(weight)
    updater.accumulate()
    assert updater.update(epoch=0) == pytest.approx(0.2)
    assert [p.item(), q.item()] == pytest.approx([0.8, 0.9])
    assert [group["lr"] for group in optimizer.param_groups] == [rate, 0.2]
    assert optimizer.param_groups[0]["lr"] is rate


def test_a_first_update_in_a_later_epoch_does_not_warn():
    """Warnings are errors here; torch warns of schedulers that step before any update."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = sgd([weight])
    updater = Updater([("a", weight)], optimizer, ExponentialLR(optimizer, gamma=0.5))
    weight.grad = torch.ones(1)
    updater.accumulate()
    assert updater.update(epoch=2) == pytest.approx(0.1 / 4)


def test_the_staleness_of_a_late_sum_counts_the_updates_that_were_done():
    class Alone:
        """The sum over one replica."""

        def __init__(self, parameters):
            (self.weight,) = parameters

        def take(self):
            taken, self.weight.grad = self.weight.grad, None
            return taken

        def put(self, sums):
            self.weight.grad = sums

    class Watcher(StageRemedy):
        def after_backward(self, staleness):
            seen.append(staleness)

    seen = []
    weight = nn.Parameter(torch.ones(2))
    updater = Updater(
        [("a", weight)],
        sgd([weight]),
        build_reduction=Alone,
        replica_delay=1,
        remedies=StageRemedies([Watcher()]),
    )
    for batch in range(5):
        if batch not in (1, 4):  # the second is skipped; after the last, what is left is due
            weight.grad = torch.ones(2)
            updater.accumulate(updater.version)
        epoch = updater.due_epoch(0 if batch < 4 else None)
        if epoch is not None:
            updater.update(epoch)
    assert seen == [0, 0, 1]
