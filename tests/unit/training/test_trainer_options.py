"""What a trainer refuses, warns of, and does with its options."""

import copy
import inspect
import io
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from lion_pytorch import Lion
from torch import nn, optim

from contract.small import data, different, mlp, sgd, stepped
from hocket import Plan, Trainer
from hocket.distributed.world.solo_world import SoloWorld
from hocket.errors import DataError, HocketError, OptionError, WorldError
from hocket.methods import FDG, parse_method
from hocket.stage.training_options import TrainingOptions
from hocket.training import trainer as trainer_module
from hocket.training.session.cut_network import CutNetwork
from hocket.training.session.no_effect import SCALE_FREE
from hocket.training.trainer import _device_here


def test_all_wrong_options_are_told_at_once():
    wrong = {"device": "tpu", "loss": 3, "clip": "loose", "codec": "int9", "seeed": 1}
    with pytest.raises(OptionError) as caught:
        Trainer(mlp(2), optimizer=sgd, **wrong)
    for part in ("'tpu'", "loss is 3", "'loose'", "'int9'", "'seeed'"):
        assert part in str(caught.value)


def test_options_as_one_value_are_those_by_name():
    """Bit-equal; an option by name wins."""
    options = TrainingOptions(clip=0.1, seed=3)
    states = []
    for given in ({"options": options}, {"clip": 0.1, "options": TrainingOptions(seed=3)}):
        trainer = Trainer(nn.Sequential(*mlp(2, dropout=0.3)), optimizer=sgd, **given)
        trainer.fit(data(mlp, 4), epochs=1, progress=False)
        states.append(list(trainer.state_dict().values()))
    assert not different(*states)


def test_help_has_the_six_main_arguments_first_and_a_text_for_each_option():
    names = list(inspect.signature(Trainer).parameters)
    main = ["network", "stages", "method", "optimizer", "loss", "device"]
    assert names[:6] == main
    documented = re.findall(r"^    \**(\w+): ", inspect.getdoc(Trainer), re.MULTILINE)
    assert documented[:6] == main
    assert set(names) | {"changes"} <= set(documented)


def test_no_batches_are_an_error_of_the_data_and_before_them_there_are_no_stages():
    trainer = Trainer(mlp(2), optimizer=sgd)
    with pytest.raises(HocketError, match="built at the first batch; call prepare or step"):
        _ = trainer.stages
    with pytest.raises(DataError, match="epoch 0: the training data have no batches"):
        trainer.fit([], epochs=1, progress=False)
    with pytest.raises(DataError, match="no batches to evaluate on"):
        trainer.evaluate([])
    batches = data(mlp, 3)
    with pytest.raises(DataError, match="the validation data have no batches"):
        trainer.fit(batches, [], epochs=1, progress=False)
    with pytest.raises(DataError, match=r"epoch 1: .*an iterator can be used once"):
        trainer.fit(iter(batches), epochs=2, progress=False)


OPTIMIZERS = [
    each
    for each in vars(optim).values()
    if isinstance(each, type) and issubclass(each, optim.Optimizer)
    if each not in (optim.Optimizer, optim.LBFGS)  # whose step needs a closure
]


def moved(optimizer, scale):
    """The last of some steps of a matrix along random gradients of a scale.

    The first five of RAdam are those of SGD.
    """
    weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.double))
    options = {} if optimizer is optim.Adadelta else {"weight_decay": 0.0}
    if optimizer in (optim.Rprop, optim.SparseAdam):
        options = {}
    stepper, numbers = optimizer([weight], lr=0.1, **options), torch.Generator().manual_seed(0)
    for _ in range(8):
        before = weight.detach().clone()
        weight.grad = scale * torch.randn(3, 2, generator=numbers, dtype=torch.double)
        if optimizer is optim.SparseAdam:
            weight.grad = weight.grad.to_sparse(1)
        stepper.step()
    return weight.detach() - before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shrink_warns_of_the_optimizers_whose_steps_do_not_depend_on_it(optimizer):
    """Relative tolerance 1 %, for the small numbers that they add to denominators."""
    is_same = torch.allclose(moved(optimizer, 1000.0), moved(optimizer, 250.0), rtol=0.01)
    assert is_same == issubclass(optimizer, SCALE_FREE)


@pytest.mark.parametrize(
    ("method", "stages", "optimizer", "told"),
    [
        ("fdg+t1", 2, sgd, "t1 changes nothing: on 2 stages of 'fdg'"),
        ("paci+staleness-rate+t1", 4, sgd, "staleness-rate and t1 changes nothing: on 4"),
        ("fdg+t1", 3, sgd, None),
        ("ddg:linearize=live+predict", 1, sgd, "predict changes nothing: on 1 stage of 'ddg'"),
        *(
            (f"{name}:shrink=0.5", 2, each, f"shrink=0.5 cancels under {each.__name__}")
            for name in ("fdg", "adl")
            for each in (optim.Adam, optim.Adafactor, Lion)
        ),
        ("adl:reduce=sum", 2, optim.Adam, "reduce='sum' of "),
        ("bp:accumulate=2,reduce=sum", 2, optim.Adam, "reduce='sum' of "),
        ("fdg:shrink=0.5", 2, sgd, None),
        ("flat:fdg:shrink=0.5", 2, optim.Adam, "shrink=0.5 cancels under Adam"),
        *((name, 2, optim.Adam, None) for name in ("fdg", "dgl", "bp")),
    ],
)
def test_choices_that_change_nothing_are_told(method, stages, optimizer, told, recwarn):
    """Before them there may be a stage without weights."""
    build = optimizer if optimizer is sgd else partial(optimizer, lr=1e-3)
    modules = [nn.Flatten(), *mlp(stages)] if method.startswith("flat:") else mlp(stages)
    method = parse_method(method.removeprefix("flat:"))
    trainer = Trainer(modules, method=method, optimizer=build)
    warnings.simplefilter("always")
    trainer.prepare(data(mlp, 1)[0][0])
    texts = [str(one.message) for one in recwarn]
    assert not texts if told is None else [text.startswith(told) for text in texts] == [True]


def test_a_warm_up_that_no_training_ends_is_told():
    trainer = Trainer(mlp(2), method="bp", optimizer=sgd, warmup_updates=5)
    with pytest.warns(UserWarning, match="warmup_updates is 5, and this fit ends after 3"):
        trainer.fit(data(mlp, 3), epochs=1, progress=False)
    trainer.fit(data(mlp, 3), epochs=1, progress=False)  # which goes on with the warm-up


@pytest.mark.parametrize("linearize", ["stash", "recompute"])
def test_low_precision_computes_low_and_keeps_weights_high(linearize):
    seen = []

    class Seen(nn.Module):
        def forward(self, values):
            seen.append(values.dtype)
            return values

    modules = [nn.Sequential(nn.Linear(5, 5), Seen()), nn.Linear(5, 3)]
    trainer = Trainer(modules, method=FDG(linearize=linearize), optimizer=sgd, precision="bf16")
    before = modules[0][0].weight.clone()
    trainer.prepare(data(mlp, 1)[0][0].float())
    seen.clear()
    for x, y in data(mlp, 6):
        trainer.step(x.float(), y)
    trainer.finish()
    score = trainer.evaluate([(x.float(), y) for x, y in data(mlp, 2)])
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for module in modules for p in module.parameters()} == {torch.float32}
    assert not torch.equal(before, modules[0][0].weight)
    assert 0 < score.loss < 10


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, pickle.dumps, lambda t: torch.save(t, io.BytesIO())]
)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_trainer_is_not_copied(duplicate, steps):
    trainer = stepped(Trainer(mlp(2), optimizer=sgd), data(mlp, steps))
    with pytest.raises(HocketError, match="a trainer cannot be copied"):
        duplicate(trainer)


@pytest.mark.parametrize("end", [Trainer.finish, Trainer.state_dict])
def test_weights_that_are_replaced_after_the_first_batch_are_told(end):
    network = nn.Sequential(*mlp(2))
    trainer = Trainer(network, stages=2, optimizer=sgd)
    trainer.step(*data(mlp, 1)[0])
    trainer.state_dict()
    values = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(values, assign=True)
    with pytest.warns(UserWarning, match=r"'0.0.weight', .* are not trained; build a new"):
        end(trainer)


@pytest.mark.parametrize("ends_epochs", [False, True])
def test_a_loop_without_ends_of_epochs_hears_that_its_scheduler_stands_still(
    ends_epochs, recwarn
):
    schedule = partial(optim.lr_scheduler.StepLR, step_size=1)
    trainer = stepped(Trainer(mlp(2), optimizer=sgd, scheduler=schedule), data(mlp, 4))
    if ends_epochs:
        trainer.end_epoch()
    trainer.finish()
    trainer.finish()
    told = ["call end_epoch" in str(each.message) for each in recwarn]
    assert told == [True] * (not ends_epochs)


@pytest.mark.parametrize("end", [Trainer.finish, Trainer.end_epoch])
def test_other_processes_hear_of_an_error_in_the_last_ticks(end, monkeypatch):
    def fail(event, stage):
        if stage.index == 1:
            raise ZeroDivisionError

    method = FDG(epoch_end="drain")
    trainer = Trainer(mlp(2), method=method, optimizer=sgd, watchers=[fail])
    stepped(trainer, data(mlp, 1))
    told = []
    monkeypatch.setattr(SoloWorld, "report_failure", lambda world, error: told.append(error))
    with pytest.raises(ZeroDivisionError) as raised:
        end(trainer)
    assert told == [raised.value]


CALLS = {
    "step": lambda trainer: trainer.step(*data(mlp, 1)[0]),
    "end_epoch": Trainer.end_epoch,
    "finish": Trainer.finish,
    "fit": lambda trainer: trainer.fit(data(mlp, 2), epochs=1, progress=False),
    "close": Trainer.close,
    "resume": lambda trainer: trainer.resume("folder"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_would_change_a_fit_is_refused_within_it_and_not_after_it(call):
    trainer, batches, act = Trainer(mlp(2), optimizer=sgd), data(mlp, 2), CALLS[call]
    with pytest.raises(HocketError, match=f"{call} was called while a fit is under way"):
        trainer.fit(batches, epochs=1, progress=False, on_epoch=lambda _: act(trainer))
    trained = pytest.raises(HocketError, match="has trained already; resume with a new one")
    with trained if call == "resume" else nullcontext():
        act(trainer)


@pytest.mark.parametrize("call", ["evaluate", "predict", "save"])
def test_what_would_disturb_a_fit_from_another_thread_is_refused(call, tmp_path):
    trainer, batches = Trainer(mlp(2), optimizer=sgd), data(mlp, 2)
    given = tmp_path if call == "save" else batches

    def act(_):
        with ThreadPoolExecutor() as pool:
            pool.submit(getattr(trainer, call), given).result()

    with pytest.raises(HocketError, match=f"{call} was called in another thread while a fit"):
        trainer.fit(batches, epochs=1, progress=False, on_epoch=act)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "close"])
def test_what_trains_is_refused_where_gradients_are_switched_off(call, mode):
    trainer = Trainer(mlp(2), method=FDG(epoch_end="drain"), optimizer=sgd)
    with mode(), pytest.raises(HocketError, match=f"{call} was called inside torch.no_grad"):
        CALLS[call](trainer)


def test_a_second_fit_counts_all_epochs(capsys):
    trainer = Trainer(mlp(2), optimizer=sgd)
    for epochs in (2, 3):
        trainer.fit(data(mlp, 2), epochs=epochs)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("epoch 1/2", "epoch 2/2"),
        *("epoch 3/5", "epoch 4/5", "epoch 5/5"),
    ]


# The device of a process: the one that is asked for, or a GPU for each.


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(trainer_module, "find_device", lambda network: torch.device("cuda", 0))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "device", "wanted"),
    [
        ({}, None, "cuda:0"),
        ({}, "cuda", "cuda:0"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, "cuda", "cuda:1"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, None, "cuda:1"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, "cuda:0", "cuda:0"),
        ({"RANK": "3"}, None, "cuda:1"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("two_gpus")
def test_each_process_of_a_machine_has_the_next_gpu(variables, device, wanted, monkeypatch):
    """Also where the network of each is on the first one, and without a local rank."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _device_here(nn.Linear(1, 1), device) == torch.device(wanted)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_beyond_those_of_the_machine_is_refused():
    with pytest.raises(OptionError, match="device is 'cuda:2', and PyTorch finds 2 GPUs"):
        _device_here(nn.Linear(1, 1), "cuda:2")


def test_a_local_rank_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(WorldError, match="LOCAL_RANK is 'first'; set it to a whole number"):
        _device_here(nn.Linear(1, 1), "cpu")


def test_short_memory_of_a_gpu_is_not_taken_for_inputs_that_a_network_refuses():
    class Large(nn.Module):
        def forward(self, x):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        CutNetwork(Large(), 2).accepts(torch.ones(1, 3))


def test_a_network_on_no_device_or_built_for_inference_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with torch.inference_mode():
        inferring = mlp(2)
    for network, device, said in (
        (nn.Linear(2, 2, device="meta"), None, "device is 'meta'"),
        (mlp(2), "mps", "device is 'mps', and PyTorch finds no GPU"),
        (inferring, None, "built in inference_mode"),
    ):
        with pytest.raises(OptionError, match=said):
            Trainer(network, optimizer=sgd, device=device)


def test_a_trainer_tells_method_stages_cuts_and_delays():
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    trainer = Trainer(network, stages=Plan(("1",)), method=FDG(), optimizer=sgd)
    trainer.prepare(torch.zeros(2, 6))
    assert repr(trainer) == "<Trainer: fdg, 2 stages, cut at 1, delays 2, 0>"
