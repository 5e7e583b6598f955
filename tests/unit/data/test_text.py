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


def test_targets_are_the_next_characters_in_memory_of_their_own(path):
    data = load("text", data_dir=path, batch_size=8, context=16)
    assert (data.classes, data.shape, data.kind) == (10, (16,), "tokens")
    assert len(data.train.examples) == (900 - 1) // 16
    assert len(data.test.examples) == (100 - 1) // 16
    for batches in (data.train, data.test):
        for inputs, targets in batches:
            assert inputs.shape == targets.shape == (len(inputs), 16)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal((inputs + 1) % 10, targets)
            kept = targets.clone()
            inputs.fill_(-1)
            assert torch.equal(targets, kept)


def test_windows_with_jitter_stay_near_their_position_and_inside_the_text():
    batches = Batches(Windows(torch.arange(23), 5, jitter=True), 4)
    starts = torch.stack([next(batches.serve(epoch))[0][:, 0] for epoch in range(200)])
    for row in range(4):
        last = min(5 * row + 4, 23 - 6)
        assert sorted(set(starts[:, row].tolist())) == list(range(5 * row, last + 1))


def test_every_character_is_one_token_but_a_mark_of_the_encoding(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("aé😀" * 40, encoding="utf-8")
    data = load("text", data_dir=tmp_path, batch_size=4, context=4)
    assert data.classes == 3
    assert next(iter(data.test))[0][0].tolist() == [0, 1, 2, 0]
    # Ends of lines stay as they are.
    file.write_bytes("ab\r\ncd\r".encode("utf-8-sig") + b"ab\n" * 40)
    data = load("text", data_dir=tmp_path, batch_size=2, context=4)
    assert data.classes == 6
    assert len(data.train.examples.tokens_N) == (7 + 120) * 9 // 10


@pytest.mark.parametrize(
    ("files", "below", "options", "said"),
    [
        ([], "nowhere", {}, "no text at .*nowhere"),
        ([], "", {}, r"has 0 text files \(none\), wanted exactly 1"),
        ([b"x", b"x"], "", {}, r"has 2 text files \(0.txt, 1.txt\), wanted exactly 1"),
        ([b""], "", {}, "has 0 characters, of which a tenth, 0, .* too short .* 64"),
        ([b"x" * 100], "", {}, "has 100 characters, of which a tenth, 10, .* too short .* 64"),
        (["é".encode("latin-1") * 999], "", {}, "is not UTF-8"),
        ([b"x" * 999], "", {"context": 0}, "context is 0"),
    ],
    ids=["missing", "none", "two", "empty", "short", "encoding", "context"],
)
def test_a_text_that_cannot_be_read_is_refused(tmp_path, files, below, options, said):
    for number, content in enumerate(files):
        (tmp_path / f"{number}.txt").write_bytes(content)
    with pytest.raises((DataError, OptionError), match=said):
        load("text", data_dir=tmp_path / below, batch_size=4, **options)
