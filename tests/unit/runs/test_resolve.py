"""A run is resolved at once: its parts, or one error with all that is wrong."""

import sys
from types import ModuleType

import pytest

from hocket.errors import OptionError
from hocket.runs.config import RunConfig
from hocket.runs.resolve import TRACKERS, ResolvedRun, parse_trackers
from hocket.runs.train import train

WRONG = {
    "method": "fgd",
    "plan": "a,b",
    "network": "mlpp",
    "data": "digitz",
    "optimizer": "SGDD",
    "scheduler": "StepLRR",
    "clip": "loose",
    "codec": "int9",
    "stage_speeds": "fast",
    "device": "gpu",
    "log_to": "wandbb",
}


def test_everything_that_is_wrong_is_told_at_once():
    with pytest.raises(OptionError) as caught:
        ResolvedRun.from_config(RunConfig(**WRONG))
    assert len(caught.value.problems) == len(WRONG)
    for value in WRONG.values():
        assert f"'{value}'" in str(caught.value)
    with pytest.raises(OptionError, match=r"^unknown network 'mlpp'"):  # without a title
        ResolvedRun.from_config(RunConfig(network="mlpp"))


def test_a_format_whose_package_is_missing_is_refused_before_the_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(OptionError, match="weights_format 'safetensors' needs the package"):
        ResolvedRun.from_config(RunConfig(weights_format="safetensors"))
    ResolvedRun.from_config(RunConfig())


# Trackers.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comet", "log_to is 'comet'; use 'wandb' or 'mlflow'"),
        ("wandb,wandb", "log_to is 'wandb,wandb'; name each once"),
        ("", "log_to is ''; use"),
        ("tensorboard", "--tensorboard"),
    ],
)
def test_other_names_are_refused(text, said):
    with pytest.raises(OptionError, match=said):
        parse_trackers(text)


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_package_a_tracker_is_refused_before_anything_is_made(
    name, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(OptionError, match=rf"pip install 'hocket\[{name}\]'"):
        train(RunConfig(log_to=name, run_dir=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
