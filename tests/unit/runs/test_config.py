"""A configuration can be written and read back, and every error in its file is named."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket import Trainer
from hocket.errors import OptionError
from hocket.runs.config import MAY_CHANGE, RunConfig, check_same_run, parse_config, write_json


def message(values, where="run.json"):
    with pytest.raises(OptionError) as caught:
        parse_config(values, where)
    return str(caught.value)


OWN = {
    "plan": "layer1_0,layer2_0,layer3_0",
    "data_dir": Path("data"),
    "batch_size": 7,
    "scheduler": "StepLR:step_size=2",
    "scheduler_unit": "update",
    "device": "cuda:0",
    "channels_last": True,
    "timeout_s": 2.5,
    "run_dir": Path("runs/mine"),
}


@pytest.mark.parametrize("choices", [{}, OWN], ids=["none", "some"])
def test_what_is_written_is_read_back_and_what_is_left_out_has_its_default(choices, tmp_path):
    run = RunConfig(**choices)
    run.write(tmp_path / "run.json")
    assert RunConfig.read(tmp_path / "run.json") == run
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.epochs = 3
    (tmp_path / "run.json").write_text('{"epochs": 2, "timeout_s": 1, "data_dir": "d"}')
    config = RunConfig.read(tmp_path / "run.json")
    assert config == RunConfig(epochs=2, timeout_s=1, data_dir=Path("d"))


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("stages", "two", "a whole number"),
        ("stages", 2.0, "a whole number"),
        ("stages", True, "a whole number"),
        ("method", 3, "text"),
        ("timeout_s", "0.1", "a finite number"),
        ("timeout_s", True, "a finite number"),
        ("channels_last", 1, "true or false"),
        ("data_dir", 3, "a path or null"),
        ("scheduler_unit", "batch", "'epoch' or 'update'"),
    ],
)
def test_a_value_of_the_wrong_type_is_shown_with_what_was_wanted(key, value, wanted):
    assert f"{key} is {value!r}; wanted {wanted}" in message({key: value})


def test_all_wrong_keys_and_values_are_told_at_once():
    said = message({"epoch": 3, "zzz": 1, "stages": "x", "seed": None, "precision": "fp8"})
    assert said.startswith("cannot use run.json")
    for part in ("'epoch'", "'zzz'", "stages is 'x'", "seed is None", "precision is 'fp8'"):
        assert part in said
    assert said.count("did you mean") == said.count("did you mean 'epochs'") == 1
    assert "another version of Hocket" in message({"warmup_epochs": 1})
    assert "another version of Hocket" not in message({"stages": "x"})
    zero = dict.fromkeys(("stages", "epochs", "batch_size", "replicas", "log_every"), 0)
    names = ("warmup_updates", "seed", "threads", "gradient_error_every", "extra_delay")
    wrong = zero | dict.fromkeys(names, -1)
    said = message(wrong)
    for key, value in wrong.items():
        assert f"{key} is {value}; use a number" in said
    assert said.startswith("this run is impossible:")


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"timeout_s": math.inf}, "timeout_s is inf; wanted a finite number"),
        ({"timeout_s": 1e300}, "timeout_s is 1e+300; use a number in (0, 1000000]"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; use a number in (0, 1000000]"),
        ({"seed": 10**30}, f"seed is {10**30}; use a number in [0, {2**63 - 1}]"),
        ({"precision": "fp8"}, "precision is 'fp8'; wanted 'fp32' or 'bf16' or 'fp16'"),
        ({"threads": 99999}, "threads is 99999; use a number in [0, 1025)"),
    ],
)
def test_numbers_that_pytorch_cannot_take_are_refused_in_words(choices, said):
    """In a run and in a trainer, by one check."""
    with pytest.raises(OptionError, match=re.escape(said)):
        RunConfig(**choices)
    if "threads" not in choices:
        with pytest.raises(OptionError, match=re.escape(said)):
            Trainer(nn.Linear(1, 1), optimizer=torch.optim.SGD, **choices)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "is not JSON"),
        ("[1, 2]", "holds no object of keys and values"),
    ],
)
def test_a_file_that_is_no_run_is_named(content, said, tmp_path):
    file = tmp_path / "mine.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OptionError, match=rf"mine\.json.*{said}"):
        RunConfig.read(file)
    with pytest.raises(OptionError, match="cannot read the run file"):
        RunConfig.read(tmp_path)


def test_write_json_replaces_a_file_and_leaves_nothing_else(tmp_path):
    file = tmp_path / "summary.json"
    write_json(file, {"state": "old"})
    write_json(file, {"state": "new", "loss": float("nan")})
    assert json.loads(file.read_text()) == {"state": "new", "loss": None}
    assert list(tmp_path.iterdir()) == [file]


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = parse_config({"data_dir": "~/data", "run_dir": "~/run"}, "this")
    assert [str(config.data_dir), str(config.run_dir)] == ["/home/me/data", "/home/me/run"]


def test_of_a_resumed_run_some_choices_may_change_and_others_are_refused_by_name():
    assert not MAY_CHANGE - {field.name for field in dataclasses.fields(RunConfig)}
    check_same_run(RunConfig(epochs=3, stages=4), RunConfig())
    words = r"(?s)seed is 1, and was 0; begin a new run.*extra_delay is 2, and was 0"
    with pytest.raises(OptionError, match=words):
        check_same_run(RunConfig(seed=1, extra_delay=2), RunConfig())
