import pytest

from benchmarks.harness.workload import PLAIN
from benchmarks.overhead import ROWS as OF_OVERHEAD
from hocket.errors import OptionError
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.options import Named

EVERY = sorted(set(OF_OVERHEAD) - {PLAIN})


@pytest.mark.parametrize("text", EVERY)
def test_every_default_row_builds_a_method(text: str) -> None:
    assert isinstance(parse_method(text), Method)


def test_rows_differ_in_label_and_file() -> None:
    rows = [Named.parse(text) for text in EVERY]
    assert len({row.label for row in rows}) == len({row.slug for row in rows}) == len(EVERY)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("fgd", "did you mean 'fdg'"),
        ("fdg:shrink", "cannot read 'shrink' in 'fdg:shrink'; write fdg:option=value"),
        ("fdg:shrnk=1", "option 'shrnk'"),
        ("fdg:linearize=sometimes", "sometimes"),
    ],
)
def test_what_is_no_row_is_refused(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_method(text)
