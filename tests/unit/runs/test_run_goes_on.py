"""Some choices may be others where a run goes on; all others may not."""

from dataclasses import fields

import pytest

from hocket.errors import OptionError
from hocket.runs.config import FREE, Run, require_same


def test_what_may_change_is_what_there_is():
    assert not FREE - {field.name for field in fields(Run)}


def test_what_may_not_is_refused_by_name():
    require_same(Run(epochs=3, stages=4), Run())
    words = r"(?s)seed is 1, and was 0; begin a new run.*slack is 2, and was 0"
    with pytest.raises(OptionError, match=words):
        require_same(Run(seed=1, slack=2), Run())
