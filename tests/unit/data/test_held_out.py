"""Held-out examples are training examples that train no more, served as the test is."""

import pytest
import torch

from hocket.data import Batches, Data, InMemory, Mix, MixedExamples, load
from hocket.data.dataset import hold_out
from hocket.errors import DataError, OptionError

SYNTHETIC = {"shape": [5], "classes": 3, "examples": 40, "test_examples": 8}


def rows_of(batches):
    """Return inputs and targets of each example, in any order."""
    return sorted(
        (*inputs.flatten().tolist(), int(target))
        for batch in batches
        for inputs, target in zip(*batch, strict=True)
    )


def test_examples_are_divided_and_the_test_is_left_out():
    """Neither the seed nor a default device chooses which, and they are not mixed."""
    whole = load("synthetic", batch_size=8, **SYNTHETIC)
    with torch.device("meta"):
        divided = load("synthetic", batch_size=8, hold_out=0.25, **SYNTHETIC)
    assert [len(each.examples) for each in (divided.train, divided.test)] == [30, 10]
    assert sorted(rows_of(divided.train) + rows_of(divided.test)) == rows_of(whole.train)
    first, last = whole.train.examples.inputs[:10], whole.train.examples.inputs[-10:]
    assert not any(torch.equal(divided.test.examples.inputs, each) for each in (first, last))
    held_out = [
        rows_of(load("digits", batch_size=64, seed=seed, hold_out=0.5).test) for seed in (0, 1)
    ]
    assert held_out[0] == held_out[1]
    mixed = load("synthetic", batch_size=8, hold_out=0.25, mixup=0.5, **SYNTHETIC)
    assert next(iter(mixed.train))[1].shape == (8, 3)
    assert next(iter(mixed.test))[1].dtype == torch.int64


def test_held_out_examples_are_transformed_as_the_test_is():
    images = torch.arange(6.0)[:, None]
    train = InMemory(images, torch.zeros(6).long(), lambda inputs, rng: inputs + 100)
    test = InMemory(images, torch.zeros(6).long(), lambda inputs, rng: inputs + 200)
    data = Data("own", Batches(train, 6, shuffle=True), Batches(test, 6), 1, (1,), "vectors")
    divided = hold_out(data, 1 / 3)
    inputs, held = (
        [number for number, _ in rows_of(batches)] for batches in (divided.train, divided.test)
    )
    assert all(100 <= x < 200 for x in inputs)
    assert all(x >= 200 for x in held)
    assert sorted([x - 100 for x in inputs] + [x - 200 for x in held]) == [0, 1, 2, 3, 4, 5]


def test_the_end_of_a_text_is_held_out(tmp_path):
    file = tmp_path / "numbers.txt"
    file.write_text("".join(chr(0x4E00 + number) for number in range(1000)))
    divided = load("text", data_dir=file, batch_size=4, context=10, hold_out=0.2)
    # 900 characters make 89 windows, of which 18 are held out, with the last target.
    assert [len(each.examples) for each in (divided.train, divided.test)] == [71, 18]
    inputs, targets = zip(*divided.test, strict=True)
    assert torch.cat(inputs).flatten().tolist() == list(range(719, 899))
    assert torch.equal(torch.cat(targets), torch.cat(inputs) + 1)
    seen = torch.cat([targets for _ in range(30) for _, targets in divided.train])
    assert int(seen.max()) < 719


@pytest.mark.parametrize(("share", "count"), [(0.01, 0), (0.99, 40)])
def test_a_share_of_no_example_or_all_is_refused(share, count):
    with pytest.raises(OptionError, match=f"hold_out is {share} of 40 .* which is {count};"):
        load("synthetic", batch_size=8, hold_out=share, **SYNTHETIC)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "0.2"])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(OptionError, match=rf"hold_out is {share!r}; use a number in \(0, 1\)"):
        load("synthetic", batch_size=8, hold_out=share, **SYNTHETIC)


def test_a_text_of_which_no_whole_window_would_be_left_is_refused(tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("ab" * 51)
    # 91 characters make 10 windows; without 9 of them and a target 9 characters are left.
    assert len(load("text", data_dir=file, batch_size=1, context=9, hold_out=0.8).train) == 1
    with pytest.raises(OptionError, match=r"hold_out is 0.9 of 10 .*, which is 9; choose"):
        load("text", data_dir=file, batch_size=1, context=9, hold_out=0.9)


def test_examples_of_another_class_cannot_be_divided():
    own = MixedExamples(InMemory(torch.zeros(4, 1), torch.zeros(4)), Mix(2, mixup=1.0))
    data = Data("own", Batches(own, 2), Batches(own, 2), 2, (1,), "vectors")
    with pytest.raises(DataError, match=r"examples of 'own' cannot be divided; give .* divide"):
        hold_out(data, 0.5)
