"""A plan is written to a file and read back, and fits its own network only."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket import Plan, Trainer, cut
from hocket.errors import CutError, OptionError
from hocket.partition.plan import network_signature
from hocket.runs.build import build_plan
from hocket.runs.config import RunConfig
from unit.partition.networks import Skips, skips


def test_a_plan_is_written_and_read(tmp_path):
    network, sample = skips()
    plan = Plan(("blocks.1", "head"), network_signature(network))
    plan.write(tmp_path / "plan.json", forecast={"speed_up": 2.0})
    again = Plan.read(tmp_path / "plan.json")
    assert (again, again.signature) == (plan, plan.signature)
    assert json.loads((tmp_path / "plan.json").read_text())["forecast"] == {"speed_up": 2.0}
    assert len(cut(network, stages=again, sample=sample)) == 3
    assert build_plan(RunConfig(plan=str(tmp_path / "plan.json"), stages=3)) == plan
    with pytest.raises(OptionError, match="stages is 2; give --stages 3, or"):
        build_plan(RunConfig(plan=str(tmp_path / "plan.json"), stages=2))


def test_the_plan_of_another_network_is_refused_by_its_signature():
    network, sample = skips()
    plan = Plan(("blocks.1",), network_signature(Skips(blocks=2)))
    actual = network_signature(network)
    with pytest.raises(CutError, match=f"{plan.signature}, that of this Skips is {actual}"):
        cut(network, stages=plan, sample=sample)
    chain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(CutError, match="the plan is for another network: its signature is"):
        Trainer(chain, stages=Plan(("1",), "0"), optimizer=lambda w: torch.optim.SGD(w, lr=1.0))


def test_the_names_of_a_plan_come_in_one_tuple_and_one_that_cannot_be_written_is_told(tmp_path):
    assert Plan("b") == Plan(["b"]) == Plan(("b",))
    with pytest.raises(OptionError, match=r"as one tuple; write Plan\(\('b', 'c'\)\)"):
        Plan("b", "c")
    for wrong in (3, None, ("b", 3)):
        with pytest.raises(OptionError, match=f"plan are {re.escape(repr(wrong))}; give the n"):
            Plan(wrong)
    with pytest.raises(OptionError, match=r"cannot write the plan to .*; name another file"):
        Plan(()).write(tmp_path / "no" / "plan.json")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file or directory; name a file to read"),
        ("{", r"it is not JSON \(.*\); plan again"),
        ("[]", "it has no entry 'format': 'hocket plan 1'; plan again"),
        ('{"format": "hocket plan 1", "cuts": [1], "signature": ""}', "not strings; plan"),
        ('{"format": "hocket plan 1", "cuts": ["a"]}', "not strings; plan again"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content, text):
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OptionError, match=f"cannot read the plan .*plan.json': .*{text}"):
        Plan.read(file)
