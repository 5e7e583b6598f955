"""Names with options are parsed and printed without loss; invalid text is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import OptionError
from hocket.options import Named

words = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda word: word not in ("true", "false", "null")
)
texts = words | st.sampled_from(["no", "Off", "a],b", 'x"y', "0.5", "", "(", "a, b", "\\"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = numbers | st.booleans() | st.none() | texts
values = scalars | st.lists(scalars, max_size=4)
options = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), values, max_size=4
)


@given(words, options)
def test_printed_text_is_parsed_back_with_its_types(name, chosen):
    named = Named(name, chosen)
    parsed = Named.parse(str(named))
    assert parsed == named
    assert {k: type(v) for k, v in parsed.options.items()} == {
        k: type(v) for k, v in chosen.items()
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fdg", {}),
        ("fdg:", {}),
        ("fdg:shrink=0.5", {"shrink": 0.5}),
        ("fdg:forward-delay=2", {"forward_delay": 2}),
        ("fdg: shrink = 0.5", {"shrink": 0.5}),
        ("fdg:a=True,b=False,c=None", {"a": True, "b": False, "c": None}),
        ("fdg:d=true,e=null", {"d": True, "e": None}),
        ("fdg:a=[1,2],b=[],c=x", {"a": [1, 2], "b": [], "c": "x"}),
        ("fdg:a=b=c", {"a": "b=c"}),
        ("fdg:a=.5,b=+1.,c=-.5e1", {"a": 0.5, "b": 1.0, "c": -5.0}),
        ('fdg:a="no",b="x],y",c=1', {"a": "no", "b": "x],y", "c": 1}),
        (r'fdg:a=["\\"],b=["x, y"],c="\""', {"a": ["\\"], "b": ["x, y"], "c": '"'}),
    ],
)
def test_values_are_json_or_words(text, wanted):
    assert Named.parse(text) == Named("fdg", wanted)


def test_a_tuple_is_written_as_a_list():
    assert str(Named("Adam", {"betas": (0.9, 0.99)})) == "Adam:betas=[0.9,0.99]"


WRITE = r".*write name:option=value"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"there is no name in ''{WRITE}"),
        (":", f"there is no name in ':'{WRITE}"),
        (":shrink=1", f"cannot read 'shrink=1' in ':shrink=1'{WRITE}"),
        ("fdg:shrink=", f"cannot read 'shrink=' in 'fdg:shrink='{WRITE}"),
        ("fdg:=1", f"cannot read '=1' in 'fdg:=1'{WRITE}"),
        ("fdg:a=1,b", f"cannot read 'b' in 'fdg:a=1,b'{WRITE}"),
        ("fdg:a=1,a=2", "'a' is given twice"),
        ("fdg:a=NaN", "NaN in 'fdg:a=NaN' is not finite"),
        ("fdg:a=[1e999]", "1e999 in .* is not finite"),
        ("fdg:a=no", "no in 'fdg:a=no' may be a name or a switch"),
        ("fdg:a=FALSE", "a switch"),
    ],
)
def test_text_that_is_no_name_with_options_is_refused(text, problem):
    with pytest.raises(OptionError, match=problem):
        Named.parse(text)
