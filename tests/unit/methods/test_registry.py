"""Methods as objects and as text."""

import re

import pytest

import hocket
from hocket.errors import OptionError
from hocket.methods.registry import as_method, parse_method


def test_a_method_may_be_text():
    assert as_method("fdg:shrink=0.5") == hocket.FDG(shrink=0.5)
    assert as_method(hocket.BP()) == hocket.BP()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (hocket.FDG, "which is no method; call it"),
        (3, "method is 3, which is no method; give one such as hocket.FDG() or 'fdg'"),
        ("fgd", "unknown method 'fgd' (did you mean 'fdg'?)"),
    ],
)
def test_what_is_no_method_is_refused(given, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        as_method(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py", "the method 'mine.py' is a file; name its function"),
        ("fdg+mine.py", "the remedy 'mine.py' is a file; name its function"),
        ("fdg+predict,t1", "cannot read the remedy 'predict,t1'; write each one after a plus"),
    ],
)
def test_texts_that_name_nothing_say_what_does(text, message):
    with pytest.raises(OptionError) as caught:
        parse_method(text)
    assert message in str(caught.value)


def test_blanks_around_a_plus_sign_do_not_matter():
    assert parse_method("fdg + predict + t1") == parse_method("fdg+predict+t1")
