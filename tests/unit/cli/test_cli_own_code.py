"""Networks, methods, remedies and data sets of the user have names."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from hocket import data
from hocket.errors import OptionError
from hocket.methods import parse_method
from hocket.methods.registry import forwards_first, normalize_method
from hocket.options import Named
from hocket.remedies import parse_remedies
from hocket.runs.build import load_data, network_builder
from hocket.runs.config import RunConfig
from hocket.runs.own_code import named_code
from hocket_lab.studies.rows import Run
from hocket_lab.studies.study import Study
from unit.lab.studies.in_process import run_here

MINE = """
from __future__ import annotations

import beside

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from hocket.data import Data
from hocket.data.batches import Batches, InMemory
from hocket.methods import DDG
from hocket.remedies import T2

if TYPE_CHECKING:
    from nowhere import Kind


def late(*, extra: int = 0, order: str = "backward-first"):
    return DDG(backward_delay=1 + extra, linearize="live", order=order, name="late")


class Later:
    def __call__(self, *, extra: int):
        return late(extra=extra)


later, whenever = partial(late, extra=1), Later()


@dataclass(frozen=True)
class Half(T2):
    share: float = 0.5
    kind: Kind = None


def toy(*, batch_size, seed=0, size: int = 64):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 8, generator=generator)
    examples = InMemory(inputs, (inputs[:, 0] > 0).long())
    train = Batches(examples, batch_size, seed=seed, shuffle=True)
    return Data("toy", train, Batches(examples, batch_size), 2, (8,), "vectors")


def served(*, batch_size, seed=0, workers=1): ...


def any_toy(*, batch_size: int, seed: Kind = 0, **options: Kind) -> Kind:
    return toy(batch_size=batch_size, seed=seed, **options)


def any_late(**options: Kind) -> Kind:
    return late(**options)


def loaders(*, batch_size, seed=0):
    return replace(toy(batch_size=batch_size), test=[])


def small(num_classes, in_features, width=4):
    layers = nn.Linear(in_features, width), nn.Linear(width, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)


def failing():
    return 1 / 0


def number(classes=3):
    return classes


_hidden = 3
"""
DIGITS = data.load("digits", batch_size=32)
METHOD = "mine.py:late:extra=1+mine.py:Half(share=0.25)"
TRAIN = ("--data", "mine.py:toy:size=32", "--network", "mlp:hidden=[8,8]", "--batch-size", "8")


@pytest.fixture(autouse=True)
def mine(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine.py").write_text(MINE)
    Path("beside.py").touch()
    yield
    for name in ("mine", "mine_", "beside"):
        sys.modules.pop(name, None)


def test_a_function_builds_a_method_or_loads_data_and_a_class_is_a_remedy():
    method = parse_method(METHOD)
    assert method == parse_method(METHOD)  # its file has run once
    assert (method.backward_delay, method.name) == (2, parse_method("mine.py:late").name)
    assert [remedy.share for remedy in method.remedies] == [0.25]
    assert parse_method("ddg:linearize=live+mine.py:Half").remedies[0].share == 0.5
    assert normalize_method("mine.py:late:extra=1+mine.py:Half(share=25e-2)") == METHOD
    assert "order=forward-first" in forwards_first(METHOD)
    data = load_data(RunConfig(data="mine.py:toy:size=32", batch_size=8))
    assert (data.shape, len(data.train)) == ((8,), 4)


def test_a_function_may_take_any_option_and_name_types_for_type_checkers_only():
    assert data.options("mine.py:any_toy") == {}
    assert len(load_data(RunConfig(data="mine.py:any_toy:size=32", batch_size=8)).train) == 4
    method = parse_method("mine.py:any_late:extra=1+mine.py:Half(share=0.25)")
    assert (method.backward_delay, method.remedies[0].share) == (2, 0.25)


def test_two_files_may_have_one_name_and_folders_plus_signs():
    Path("c++").mkdir()
    Path("c++/mine.py").write_text(f"{MINE}\nKind = str")
    with pytest.raises(OptionError, match="kind is 3; wanted text"):
        parse_method("mine.py:late+c++/mine.py:Half(kind=3)")
    assert parse_method("c++/mine.py:late+mine.py:Half(kind=[3])").remedies[0].kind == [3]


@pytest.mark.parametrize("module", ["mine.py", "./mine.py", "mine"])
def test_a_file_and_a_module_give_the_network_fitted_to_the_data(module):
    run = RunConfig(network=f"{module}:small:width=6")
    network = network_builder(run)(DIGITS)
    assert network[1].weight.shape == (6, 64)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert Named.parse(run.network).title == "small"
    again = network_builder(run)(DIGITS)
    assert torch.equal(network[1].weight, again[1].weight)


def test_a_file_that_fails_leaves_no_module():
    Path("mine.py").write_text("1 / 0")
    with pytest.raises(OptionError, match="ZeroDivisionError"):
        network_builder(RunConfig(network="mine.py:small"))(DIGITS)
    assert "mine" not in sys.modules


def _build(network):
    return network_builder(RunConfig(network=network))(DIGITS)


NETWORKS = {
    "nowhere:small": r"cannot import 'nowhere' for the network 'nowhere:small'.*ModuleNo",
    "mine.py": r"is a file; .*mine.py:build",
    "nowhere.py:small": "FileNotFoundError: .*nowhere.py.*name a module, or a file",
    "mine:smal": "unknown function of 'mine': 'smal' .did you mean",
    "mine:_hidden": "unknown function of 'mine': '_hidden'",
    "mine:small:depth=2": "small does not take these options: got an unexpected",
    "mine:failing": "failing fails: ZeroDivisionError",
    "resnet20:wide": "cannot read 'wide' in 'resnet20:wide'",
    "mine:number": "number returns a int; return a torch.nn.*Module",
}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *((partial(_build, name), f"(?s){said}") for name, said in NETWORKS.items()),
        (lambda: parse_method("mine.py:late:power=2"), "'power' .*; there are: extra, order"),
        *(
            (partial(parse_method, f"mine.py:{name}:extra=many"), "extra is 'many'")
            for name in ("late", "later", "whenever")
        ),
        (lambda: parse_method("mine.py:number"), "mine.py:number returns a int; .*Method"),
        (lambda: parse_remedies(["mine.py:late"]), "returns a Method; .*Remedy"),
        (lambda: load_data(RunConfig(data="mine.py:number")), "does not take .*batch_size"),
        (lambda: load_data(RunConfig(data="mine.py:loaders")), "mine.py:loaders .*Batches"),
        (lambda: load_data(RunConfig(data="mine.py:served:workers=2")), "--workers .* rename"),
        (lambda: load_data(RunConfig(data="mine.py")), "the data set 'mine.py' is a file"),
    ],
)
def test_what_goes_wrong_is_told(build, message):
    with pytest.raises(OptionError, match=message):
        build()


def test_a_run_is_trained_and_resumed_by_name_only_and_a_report_runs_no_code(call, refused):
    words = ("--method", METHOD, *TRAIN, "--checkpoint-every", "2", "--run-dir", "run")
    assert call("train", *words, "--epochs", "1")[0] == 0
    told = refused("train", "--resume", "run", "--epochs", "2")
    assert f"give --method '{METHOD}'" in told
    assert "give --data mine.py:toy:size=32" in told
    again = ("--method", METHOD, "--data", TRAIN[1], "--epochs", "2")
    assert call("train", "--resume", "run", *again)[0] == 0
    assert json.loads(Path("run/run.json").read_text())["method"] == METHOD
    Path("mine.py").write_text("raise SystemExit('it ran')")
    assert call("report", "run", "--out", "report.html")[0] == 0
    assert "mine.py:late" in Path("report.html").read_text()


def test_a_study_names_them_with_a_word_of_the_user(call, refused, monkeypatch):
    run_here(monkeypatch)
    Path("mine.toml").write_text(
        "grid = {method = ['ddg', 'mine.py:late', 'mine.py:late:extra=1+mine.py:Half']}\n"
        "base = {data = 'mine.py:toy', network = 'mine.py:small', plan = '2', epochs = 1}"
    )
    told = refused("sweep", "mine.toml", "--method", "mine.py:late")
    assert "give --method mine.py:late:extra=1+mine.py:Half" in told
    allowed = ("--method", "mine.py:late", "--method", "fdg+mine.py:Half")
    words = ("--data", "mine.py:toy", "--network", "mine.py:small", "--out", "out")
    code, _, told = call("sweep", "mine.toml", *allowed, *words)
    assert code == 0, told
    own_code = {"method": [METHOD], "data": ["mine.py:toy"], "network": ["mine.py:small"]}
    read = Study.read("mine.toml", own_code=own_code)
    assert len(read.rows) == 3


def test_the_files_of_a_run_are_part_of_its_identity():
    config = RunConfig(method=METHOD, data="mine.py:toy", network="mine:small")
    names = {"method file", "method file 1", "data file", "network file"}
    assert set(Run("own", config, None, 0).files) == names
    assert named_code(vars(RunConfig())) == {}
    of_all = dict.fromkeys(("method", "network", "data"), "mine (1).py:small:width=2")
    assert named_code(of_all).keys() == of_all.keys()


def test_draw_and_plan_take_them_and_a_method_of_a_file_trains_as_that_of_hocket(call):
    assert "B0 U0" in call("draw", "--method", "mine.py:late:extra=1")[1]
    words = ("--methods", METHOD, "--data", TRAIN[1], "--network", TRAIN[3], "--stages", "2")
    code, printed, _ = call("plan", *words)
    assert code == 0
    # The plan may choose the order of forward and backward, by the times that it measures.
    method = re.escape(METHOD).replace("extra=1", "extra=1[^+]*")
    assert re.search(f"--method '{method}'", printed)
    for method in ("mine.py:late", "ddg:linearize=live,order=backward-first"):
        folder = Path(method.partition(":")[0]).stem
        words = ("--method", method, *TRAIN, "--epochs", "1", "--run-dir", folder)
        assert call("train", *words)[0] == 0
    mine, theirs = (Path(f"{name}/network.pt").read_bytes() for name in ("mine", "ddg"))
    assert mine == theirs
