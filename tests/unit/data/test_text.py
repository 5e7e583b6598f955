"""Targets of text windows are the next characters; no window crosses the split."""

import pytest
import torch

from hocket.data import Batches, load
from hocket.data.text import Windows
from hocket.errors import DataError, OptionError


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "alphabet.txt"
    file.write_text("abcdefghij" * 100, encoding="utf-8")
    return file


def test_targets_are_the_next_characters(path):
    data = load("text", data_dir=path, batch_size=8, context=16)
    assert (data.classes, data.shape, data.kind) == (10, (16,), "tokens")
    for batches in (data.train, data.test):
        for inputs, targets in batches:
            assert inputs.shape == targets.shape == (len(inputs), 16)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal((inputs + 1) % 10, targets)


def test_split_is_nine_to_one(path):
    data = load("text", data_dir=path, batch_size=8, context=16)
    assert len(data.train.examples) == (900 - 1) // 16
    assert len(data.test.examples) == (100 - 1) // 16


def test_windows_without_jitter_tile_the_text():
    windows = Windows(torch.arange(11), 5, jitter=False)
    inputs, targets = windows.take(torch.arange(len(windows)), rng=None)
    assert inputs.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert targets.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_windows_with_jitter_stay_near_their_position_and_inside_the_text():
    batches = Batches(Windows(torch.arange(23), 5, jitter=True), 4)
    starts = torch.stack([next(batches.serve(epoch))[0][:, 0] for epoch in range(200)])
    for row in range(4):
        last = min(5 * row + 4, 23 - 6)
        assert sorted(set(starts[:, row].tolist())) == list(range(5 * row, last + 1))


def test_inputs_and_targets_share_no_memory(path):
    inputs, targets = next(iter(load("text", data_dir=path, batch_size=8, context=4).train))
    kept = targets.clone()
    inputs.fill_(-1)
    assert torch.equal(targets, kept)


def test_characters_beyond_ascii_are_one_token_each(tmp_path):
    (tmp_path / "a.txt").write_text("aé😀" * 40, encoding="utf-8")
    data = load("text", data_dir=tmp_path, batch_size=4, context=4)
    assert data.classes == 3
    assert next(iter(data.test))[0][0].tolist() == [0, 1, 2, 0]


def test_ends_of_lines_stay_as_they_are_and_a_mark_of_the_encoding_is_no_character(tmp_path):
    (tmp_path / "text.txt").write_bytes("ab\r\ncd\r".encode("utf-8-sig") + b"ab\n" * 40)
    data = load("text", data_dir=tmp_path, batch_size=2, context=4)
    assert data.classes == 6
    assert len(data.train.examples.tokens_N) == (7 + 120) * 9 // 10


def test_missing_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no text at .*nowhere; give a text file or a folder"):
        load("text", data_dir=tmp_path / "nowhere", batch_size=4)


def test_a_folder_must_have_exactly_one_text(tmp_path):
    with pytest.raises(DataError, match=r"has 0 text files \(none\), wanted exactly 1"):
        load("text", data_dir=tmp_path, batch_size=4)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"has 2 text files \(a.txt, b.txt\), wanted exactly 1"):
        load("text", data_dir=tmp_path, batch_size=4)


@pytest.mark.parametrize(("length", "tenth"), [(0, 0), (100, 10)])
def test_a_short_text_is_refused(tmp_path, length, tenth):
    (tmp_path / "a.txt").write_text("x" * length)
    expected = (
        rf"has {length} characters, of which a tenth, {tenth}, is the test: too short .* 64"
    )
    with pytest.raises(DataError, match=expected):
        load("text", data_dir=tmp_path, batch_size=4)


def test_other_encodings_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("é".encode("latin-1") * 999)
    with pytest.raises(DataError, match=r"is not UTF-8 \(.*\); convert it to UTF-8"):
        load("text", data_dir=tmp_path, batch_size=4)


def test_context_must_be_positive(path):
    with pytest.raises(OptionError, match=r"context is 0; give 1 or more characters"):
        load("text", data_dir=path, batch_size=4, context=0)
