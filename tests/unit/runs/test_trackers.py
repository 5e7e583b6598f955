"""Trackers of a run: names, and the runs that begin at the services."""

import sys
from types import ModuleType

import pytest

from hocket.errors import OptionError
from hocket.runs.config import RunConfig
from hocket.runs.resolve import TRACKERS, parse_trackers
from hocket.runs.train import train


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comet", "log_to is 'comet'; use 'wandb' or 'mlflow'"),
        ("wandb,wandb", "log_to is 'wandb,wandb'; name each once"),
        ("", "log_to is ''; use"),
    ],
)
def test_other_names_are_refused(text, said):
    with pytest.raises(OptionError) as caught:
        parse_trackers(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_package_a_tracker_is_refused_before_anything_is_made(
    name, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(OptionError, match=rf"pip install 'hocket\[{name}\]'"):
        train(RunConfig(log_to=name, run_dir=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
