import pytest

from hocket.errors import OptionError
from hocket_lab.studies.target import Target


def test_a_target_is_reached_at_its_limit():
    target = Target.parse("test_error <= 0.15")
    assert (target.metric, target.limit) == ("test_error", 0.15)
    assert [target.is_reached(value) for value in (0.15, 0.1501, None)] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "target is 'soon'; write it like 'test_loss <= 1.90'"),
        ("test_los <= 1", "target: unknown metric 'test_los' .did you mean 'test_loss'"),
        ("test_loss >= 1", "less is better for test_loss"),
        ("test_loss <= low", "wanted a finite number, not 'low'"),
        ("test_loss <= inf", "wanted a finite number, not 'inf'"),
        ("test_error <= 10", "test_error is a share, .*; 10 % are 'test"),
    ],
)
def test_what_is_no_target_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        Target.parse(text)
