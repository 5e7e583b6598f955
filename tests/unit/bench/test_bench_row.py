import pytest

from hocket.bench.accuracy import ROWS as OF_ACCURACY
from hocket.bench.overhead import ROWS as OF_OVERHEAD
from hocket.bench.row import Row
from hocket.bench.work import PLAIN
from hocket.errors import OptionError
from hocket.method import Method

EVERY = sorted({*OF_ACCURACY, *OF_OVERHEAD} - {PLAIN})


@pytest.mark.parametrize("text", EVERY)
def test_every_default_row_builds_a_method(text: str) -> None:
    assert isinstance(Row.parse(text).build(), Method)


def test_rows_differ_in_label_and_file() -> None:
    rows = [Row.parse(text) for text in EVERY]
    assert len({row.label for row in rows}) == len({row.slug for row in rows}) == len(EVERY)


def test_options_reach_the_method() -> None:
    method = Row.parse("adl:accumulate=2,linearize=live").build()
    assert (method.accumulate, method.linearize) == (2, "live")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("fgd", "did you mean 'fdg'"),
        ("fdg:shrink", "is no option; write"),
        ("fdg:shrnk=1", "option 'shrnk'"),
        ("fdg:linearize=sometimes", "sometimes"),
    ],
)
def test_what_is_no_row_is_refused(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Row.parse(text)
