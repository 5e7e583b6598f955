"""A stream that cannot be written ends nothing, and no letter is too strange for it."""

import io
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from hocket.standard_stream import StandardStream, fill_standard_streams
from hocket.training.results.plain_console import plain_console
from hocket.training.results.progress_bar import progress_bar


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def closed():
    stream = open(os.devnull, "w")  # noqa: SIM115  # closed at once
    stream.close()
    return stream


BAD = {
    "a pipe without a reader": broken_pipe,
    "a full disk": partial(Path("/dev/full").open, "w"),
    "a closed file": closed,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
@pytest.mark.parametrize("terminal", [False, True])
def test_progress_that_nobody_can_read_is_dropped(make, terminal, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(2, 6, shown=True) as bar:
        for number in (0, 1):
            bar.batch(lambda: "loss 1.000")
            bar.epoch(number, 1.0)
    if stream is not None:
        stream.close()  # what it has buffered is gone, or this would fail


def test_a_stream_that_failed_fails_no_more(monkeypatch):
    stream = broken_pipe()
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in range(2):
        print("text", file=StandardStream("stdout"), flush=True)
    stream.write("more")
    stream.flush()
    stream.close()


def test_letters_that_an_encoding_lacks_are_escaped_and_columns_stay(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    plain_console("stdout").print("ä ─ [a]")
    StandardStream("stdout").write("0.2… é")
    stream.flush()
    assert stream.buffer.getvalue() == b"\\xe4 \\u2500 [a]\n0.2~ \\xe9"
    monkeypatch.setattr(sys, "stdout", None)
    nothing = StandardStream("stdout")
    assert not nothing.isatty()
    assert nothing.encoding == "utf-8"


def test_a_closed_standard_input_is_replaced_by_nothing():
    kept = os.dup(0)
    try:
        os.close(0)
        fill_standard_streams()
        assert os.path.samestat(os.fstat(0), os.stat(os.devnull))
        assert os.get_inheritable(0)
        fill_standard_streams()
    finally:
        os.dup2(kept, 0)
        os.close(kept)
