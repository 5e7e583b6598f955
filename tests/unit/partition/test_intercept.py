"""Handlers see the steps of a forward, and modules are afterwards as they were before."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from hocket import Plan
from hocket.partition.recording.intercept import call_intercepted, intercept
from hocket.partition.recording.recorder import user_line
from unit.partition.networks import assert_same

SAMPLE = torch.ones(2, 4)


class Chain(nn.Module):
    """Three layers, with functions between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (
            nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)
        )

    def forward(self, x):
        return self.third(torch.relu(self.second(x + self.first(x))))


class Log:
    """Handler that notes what it is given, and computes it."""

    def __init__(self):
        self.calls = []

    def call(self, name, module, args, kwargs):
        self.calls.append(name)
        return call_intercepted(module, args, kwargs)

    def function(self, function, args, kwargs):
        return function(*args, **kwargs)


def run(network, handler):
    names = {module: name for name, module in network.named_modules()}
    with intercept(names, handler):
        return network(SAMPLE)


def attributes(network):
    return [dict(vars(module)) for module in network.modules()]


def test_modules_are_as_before_after_a_forward_and_after_an_error():
    class Fails(Log):
        def call(self, name, module, args, kwargs):
            if name == "second.1":
                raise KeyboardInterrupt
            return super().call(name, module, args, kwargs)

    network = Chain()
    network.second._compiled_call_impl = network.second._call_impl  # as its compile() does
    before, modes = attributes(network), torch.overrides._len_torch_function_stack()
    run(network, Log())
    assert attributes(network) == before
    with pytest.raises(KeyboardInterrupt):
        run(network, Fails())
    assert attributes(network) == before
    assert torch.overrides._len_torch_function_stack() == modes


def test_threads_intercept_one_network_at_the_same_time():
    network, entered, left = Chain(), threading.Barrier(2), threading.Barrier(2)
    before = attributes(network)

    class Waits(Log):
        late = False

        def call(self, name, module, args, kwargs):
            if name == "second":
                entered.wait(60)
                if self.late:
                    left.wait(60)  # the other thread has ended its forward
            return super().call(name, module, args, kwargs)

    logs = Waits(), Waits()
    logs[1].late = True

    def first():
        run(network, logs[0])
        left.wait(60)

    with ThreadPoolExecutor() as pool:
        pool.submit(first)
        pool.submit(run, network, logs[1])
    assert [len(log.calls) for log in logs] == [10, 10]
    assert attributes(network) == before


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_a_copy_that_a_forward_makes_is_a_plain_module(copied):
    class Teaching(Chain):
        teacher = ()

        def forward(self, x):
            x = self.first(x)
            if not self.teacher:
                teacher = copied(self.second)
                teacher._modules = copied(dict(teacher._modules)) | {"0": nn.Identity()}
                self.teacher = (teacher,)
            return self.third(self.second(x) - self.teacher[0](x).detach())

    network = Teaching()
    log = Log()
    run(network, log)
    (teacher,) = network.teacher
    assert teacher is not network.second
    assert log.calls.count("second") == 1
    assert torch.equal(teacher(SAMPLE), torch.tanh(SAMPLE))
    assert torch.equal(copied(teacher)(SAMPLE), torch.tanh(SAMPLE))
    assert vars(teacher).keys() == vars(network.second).keys()


def test_stages_enter_modes_of_their_own():
    class Moded(Chain):
        def forward(self, x):
            with torch.device("cpu"):
                x = self.second(x + self.first(x) + torch.zeros(4))
            with BaseTorchFunctionMode():
                return self.third(torch.relu(x))

    assert_same(Moded(), Plan(("second", "third")), SAMPLE, SAMPLE)


def test_the_line_of_an_obstacle_may_be_in_a_package_whose_name_begins_like_pytorchs():
    file = f"{Path(torch.__file__).parent}vision/models.py"
    found = {"user_line": user_line}
    exec(compile("told = user_line()", file, "exec"), found)
    assert found["told"] == f"{file}, line 1"
