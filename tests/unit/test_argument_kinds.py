"""Arguments of another kind than wanted are refused by name, with what to give."""

from collections import Counter, UserString
from functools import partial

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.callbacks import Callback
from hocket.errors import DataError, OptionError
from hocket.methods import BP
from hocket.restore import numpy_and_python_state
from hocket.signals.losses import cross_entropy
from hocket.stage.setup import Setup

BATCHES = data(mlp, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "mse"}, "loss is 'mse'; give a function"),
        ({"loss": nn.MSELoss}, r"loss is the class MSELoss; give an object .*MSELoss\(\)"),
        ({"loss": Counter}, r"loss is the class Counter; give an object of it"),
        ({"evaluation_loss": nn.MSELoss}, "evaluation_loss is the class MSELoss"),
        ({"split_batch": 3}, "split_batch is 3; give a function"),
        ({"watchers": print}, r"watchers is <.*>; give a list, such as \[<"),
        ({"clip": True}, "^clip is True; use a norm, .* all the others$"),
        ({"skip_batches": 3}, "^skip_batches is 3; wanted a list, each a whole number$"),
        ({"metrics": [print]}, "give each a name: {'name': metric}"),
        ({"device": "gpu"}, "device is 'gpu'; use one such as 'cpu' or 'cuda'"),
        ({"device": 3.5}, "device is 3.5; use one such as"),
        ({"gradient_error_every": "3"}, "gradient_error_every is '3'; give a number"),
        ({"gradient_error_every": True, "on_gradient_error": print}, "every is True; give a n"),
        ({"gradient_error_every": 3, "on_gradient_error": 5}, "on_gradient_error is 5; give"),
        ({"gradient_error_every": 2}, "belong together"),
        ({"on_gradient_error": print}, "belong together"),
        ({"gradient_error_every": -1, "on_gradient_error": print}, "gradient_error_every"),
        (
            {"method": "dgl-async", "gradient_error_every": 1, "on_gradient_error": print},
            "stages of method 'dgl-async' run freely",
        ),
        ({"skip_batches": [3, -1]}, "skip_batches has -1; .* from 0"),
        ({"method": "dgl-async", "skip_batches": [1]}, "run freely, and each numbers its bat"),
        ({"on_nan": UserString("stop")}, r"on_nan is 'stop' \(collections.UserString\); w"),
        ({"on_nan": "ignore"}, "on_nan is 'ignore'; wanted 'stop' or 'skip'"),
        ({"on_nan": "skip", "replicas": 2}, "2 replicas that share each batch"),
        ({"stage_speeds": (1, 1)}, "those of method 'fdg' keep step"),
        ({"method": "dgl-async", "stage_speeds": (1, 1, 1)}, "3 stage_speeds for 2 stages"),
        ({"precision": "fp16", "check_every": 2}, "check_every is 2 and replicas is 1, but a"),
        ({"precision": "fp16", "replicas": 2}, "check_every is 1 and replicas is 2, but a b"),
        *(
            ({"precision": "fp16", "method": name}, f"method '{name}' predicts gradients")
            for name in ("dni", "cdni")
        ),
        (
            {"precision": "fp16", "gradient_error_every": 1, "on_gradient_error": print},
            "small numbers vanish",
        ),
        ({"method": "dgl-async", "stage_speeds": 3}, "stage_speeds is 3; give a list, such as"),
        ({"precison": "bf16"}, "'precison' .did you mean 'precision'"),
        ({"options": {"clip": 1.0}}, r"options is .*hocket\.TrainingOptions"),
        ({"stages": 3}, "leave the option stages out"),
        ({"batchnorm": "none"}, "batchnorm is 'none'; wanted 'local' or 'shared'"),
        ({"replicas": 2, "replica_delay": -1}, "replica_delay is -1; use a number of at least"),
        ({"replicas": 2, "replica_delay": 0.5}, "replica_delay is 0.5; wanted a whole number"),
        ({"replicas": 2, "replica_delay": 1, "meet": "diloco"}, "replica_delay is 1 and meet"),
        ({"replicas": 2, "meet": "diloco", "batchnorm": "shared"}, "batchnorm at 'local'"),
        ({"replicas": 2, "meet": 3}, "meet is 3; use text such as 'local-sgd:every=64'"),
        ({"replicas": 2, "meet": "local"}, "unknown meeting 'local' .did you mean 'local-sgd'"),
        ({"replicas": 2, "meet": "local-sgd:outer_lr=1"}, "unknown option 'outer_lr'"),
        ({"replicas": 2, "meet": "diloco:every=0"}, "every is 0; use a number of at least 1"),
        ({"replicas": 2, "meet": "diloco:every=1.5"}, "every is 1.5; wanted a whole number"),
        ({"replicas": 2, "meet": "diloco:every=4,overlap=4"}, "overlap is 4 and every is 4"),
        ({"replicas": 2, "meet": "diloco:every=2,fragments=3"}, "fragments is 3 and every is"),
        ({"replicas": 2, "loss": nn.MSELoss(reduction="sum")}, "'sum', but 2 replicas"),
        ({"replicas": 2, "loss": partial(F.nll_loss, reduction="sum")}, "'sum', but 2 rep"),
        ({"replicas": 2, "method": "dgl-async"}, "run freely, and have no replicas"),
        ({"replicas": 2, "meet": "diloco", "cuda_graphs": True}, "replicas is 2, which CUDA"),
    ],
)
def test_an_option_of_another_kind_or_out_of_its_range_is_refused(options, text):
    with pytest.raises(OptionError, match=text):
        Trainer(mlp(2), optimizer=sgd, **options)


def test_replicas_of_one_stage_that_add_up_each_gradient_are_left_to_pytorch():
    with pytest.raises(OptionError, match="one stage with 2 replicas is data parallelism"):
        Trainer(mlp(1), optimizer=sgd, replicas=2)


def test_what_is_no_network_and_batches_that_cannot_be_iterated_are_refused():
    for network in ("resnet", nn.Linear, 3, [1, 2], lambda x: x):
        with pytest.raises(OptionError, match=r"the network is .*; give a module, or a list"):
            Trainer(network, optimizer=sgd)
    trainer = Trainer(mlp(2), optimizer=sgd)
    for use in (trainer.evaluate, trainer.predict):
        with pytest.raises(DataError, match="the data are 3; give a DataLoader"):
            use(3)


def test_an_optimizer_of_a_network_is_told_what_it_gets():
    def build(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(OptionError, match="has no attribute 'parameters'; the function gets a"):
        Trainer(mlp(2), optimizer=build).step(*BATCHES[0])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"callbacks": print}, OptionError, "callbacks is <.*>; give a list"),
        ({"callbacks": [Callback]}, OptionError, "Callback'>; give an object of a class"),
        ({"checkpoints": "runs"}, OptionError, r"checkpoints is 'runs'; give hocket.Checkp"),
        ({"on_epoch": 3}, OptionError, "on_epoch is 3; give a function"),
        ({"progress": "no"}, OptionError, "progress is 'no'; wanted true or false"),
        (
            {"on_evaluation": 3, "validation": BATCHES, "evaluate_every": 1},
            OptionError,
            "on_evaluation is 3; give a function",
        ),
        ({"train": 3}, DataError, "the training data are 3; give a DataLoader, or another"),
        ({"train": lambda: BATCHES}, DataError, "the training data are <function"),
        ({"validation": 3}, DataError, "the validation data are 3; give a DataLoader"),
    ],
)
def test_an_argument_of_fit_of_another_kind_is_refused(options, error, text):
    trainer = Trainer(mlp(2), optimizer=sgd)
    before = [p.clone() for p in trainer.network.parameters()]
    length = {"updates": 2} if "evaluate_every" in options else {"epochs": 1}
    with pytest.raises(error, match=text):
        trainer.fit(**{"train": BATCHES, "progress": False, **length, **options})
    assert all(map(torch.equal, before, trainer.network.parameters()))


@pytest.mark.parametrize("checkpoints", ["runs", None])
def test_a_loop_of_ones_own_saves_with_nothing_but_checkpoints(checkpoints):
    trainer = Trainer(mlp(2), optimizer=sgd, resumable=True)
    with (
        pytest.raises(OptionError, match=r"checkpoints is .*; give hocket\.Checkpoints"),
        trainer.saving(checkpoints),
    ):
        pytest.fail("it goes on")


def test_data_with_indices_alone_are_batches():
    class Indexed:
        def __getitem__(self, index):
            return BATCHES[index]

    build = partial(Trainer, optimizer=sgd)
    trained, wanted = build(mlp(2)), build(mlp(2))
    trained.fit(Indexed(), Indexed(), epochs=1, progress=False)
    wanted.fit(BATCHES, BATCHES, epochs=1, progress=False)
    pairs = zip(trained.network.parameters(), wanted.network.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_other_objects_that_are_as_good_are_taken():
    def listen(error):
        return None

    speeds = {"method": "dgl-async", "stage_speeds": numpy.array([1.0, 2.0])}
    for options in (
        {"split_batch": tuple},
        speeds,
        {"gradient_error_every": numpy.int64(2), "on_gradient_error": listen},
    ):
        trainer = Trainer(mlp(2), optimizer=sgd, **options)
        assert trainer.fit(BATCHES, epochs=1, progress=False)[0].loss > 0
    assert Trainer((module for module in mlp(3)), optimizer=sgd).stage_count == 3
    stages = dict(enumerate(mlp(2)))
    assert Trainer(stages.values(), optimizer=sgd).stage_count == 2


def test_the_state_of_any_generator_of_numpy_can_be_compared():
    before = numpy.random.get_bit_generator()
    try:
        for kind in (numpy.random.MT19937, numpy.random.PCG64):
            numpy.random.set_bit_generator(kind(0))
            state = numpy_and_python_state()
            assert state == numpy_and_python_state()
            numpy.random.random()
            assert state != numpy_and_python_state()
    finally:
        numpy.random.set_bit_generator(before)


# Options that no training can have are refused together.


def test_all_problems_are_in_one_error():
    with pytest.raises(OptionError) as caught:
        Setup(
            method=BP(),
            loss=5,
            optimizer="SGD",
            scheduler=lambda: None,
            seed=-1,
            timeout_s=20.0,
            slow_timeout_s=10.0,
            replicas=2,
            check_every=4,
            on_nan="skip",
            precision="fp16",
            compile="inductor",
            batchnorm="shared",
        )
    title, *problems = str(caught.value).splitlines()
    assert title.endswith(":")
    begins = [
        "seed is -1",
        "slow_timeout_s is 10",
        "on_nan is 'skip', and 2 replicas",
        "batchnorm is 'shared'",
        "check_every is 4",
        "precision is 'fp16'",
        "loss is 5",
        "optimizer is an object of str",
        "scheduler cannot be called",
    ]
    assert len(problems) == len(begins)
    for problem, begin in zip(problems, begins, strict=True):
        assert problem.startswith(f"  - {begin}")


def test_values_of_other_types_are_not_compared():
    with pytest.raises(OptionError) as caught:
        Setup(method=BP(), loss=cross_entropy, optimizer=sgd, slow_timeout_s="long", replicas=0)
    _, *problems = str(caught.value).splitlines()
    assert len(problems) == 2
    assert "slow_timeout_s is 'long'" in problems[0]
    assert "replicas is 0" in problems[1]
