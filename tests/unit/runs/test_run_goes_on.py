"""Choices that may differ in a resumed run, and all others."""

from dataclasses import fields

import pytest

from hocket.errors import OptionError
from hocket.runs.config import MAY_CHANGE, RunConfig, check_same_run


def test_choices_that_may_change_exist():
    assert not MAY_CHANGE - {field.name for field in fields(RunConfig)}


def test_other_choices_are_refused_by_name():
    check_same_run(RunConfig(epochs=3, stages=4), RunConfig())
    words = r"(?s)seed is 1, and was 0; begin a new run.*extra_delay is 2, and was 0"
    with pytest.raises(OptionError, match=words):
        check_same_run(RunConfig(seed=1, extra_delay=2), RunConfig())
