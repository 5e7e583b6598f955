"""Seed and epoch decide the order of batches; no example is lost, duplicated or shared."""

import threading
from dataclasses import replace
from itertools import chain, islice

import pytest
import torch

from contract.small import different
from hocket.data import Batches, InMemory, load
from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.mixing import Mix, MixedExamples
from hocket.data.randomness import make_generator
from hocket.errors import DataError, OptionError


def numbered(examples: int = 10) -> InMemory:
    """Return examples whose input and target are their number."""
    return InMemory(torch.arange(examples).float()[:, None], torch.arange(examples))


def noisy(examples: int = 10) -> InMemory:
    """Return numbered examples with a transform that adds random numbers."""

    def add_noise(inputs, rng):
        return inputs + torch.rand(inputs.shape, generator=rng)

    return InMemory(*numbered(examples).take(torch.arange(examples), rng=None), add_noise)


def same(one, other) -> bool:
    """Return whether two lists of batches are bit-equal."""
    return not different(chain(*one), chain(*other))


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_example_is_served_once_with_its_own_target(shuffle):
    """In tensors of its own."""
    examples = numbered()
    batches = Batches(examples, 4, shuffle=shuffle)
    served = list(batches)
    targets = torch.cat([targets for _, targets in served])
    assert sorted(targets.tolist()) == list(range(10))
    assert torch.equal(torch.cat([inputs for inputs, _ in served])[:, 0], targets.float())
    assert (targets.tolist() == list(range(10))) is not shuffle
    for tensor in (each for pair in batches for each in pair):
        tensor.fill_(-1)
    assert torch.equal(examples.targets, torch.arange(10))
    assert torch.equal(examples.inputs[:, 0], torch.arange(10).float())


@pytest.mark.parametrize(
    ("examples", "drop_last", "sizes"),
    [(10, False, [4, 4, 2]), (10, True, [4, 4]), (8, False, [4, 4])],
)
def test_only_the_last_batch_may_be_short(examples, drop_last, sizes):
    batches = Batches(numbered(examples), 4, drop_last=drop_last)
    assert [len(inputs) for inputs, _ in batches] == sizes
    assert len(batches) == len(sizes)


def test_equal_seeds_give_equal_batches_and_others_others():
    one, other, third = (Batches(noisy(), 4, seed=s, shuffle=True) for s in (3, 3, 4))
    for _ in range(2):
        batches = list(one)
        assert same(batches, list(other))
        assert not same(batches, list(third))


def test_epochs_differ_and_can_be_repeated_and_resumed_in_the_middle():
    """An epoch counts when its iteration starts."""
    batches = Batches(noisy(), 4, seed=1, shuffle=True)
    epochs = [list(batches) for _ in range(3)]
    assert batches.epoch == 3
    assert not same(epochs[0], epochs[1])
    batches.epoch = 1
    assert same(list(batches), epochs[1])
    assert batches.epoch == 2
    assert same(list(batches.serve(7, first=2)), list(batches.serve(7))[2:])
    assert batches.epoch == 2
    list(islice(batches, 1))
    assert batches.epoch == 3
    first, second = iter(batches), iter(batches)
    assert batches.epoch == 5
    assert not same(list(first), list(second))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_batches_have_the_same_bits_with_any_number_of_workers(workers):
    alone = Batches(noisy(), 3, seed=5, shuffle=True)
    batches = alone.with_options(workers=workers)
    assert all(same(list(batches), list(alone)) for _ in range(2))
    assert same(list(batches.serve(7, first=2)), list(alone.serve(7))[2:])


class Meeting:
    """Examples of which two batches have to be taken at the same time."""

    def __init__(self):
        self.both_are_here = threading.Barrier(2, timeout=60)

    def __len__(self):
        return 8

    def take(self, rows, rng):
        self.both_are_here.wait()
        return rows, rows


def test_workers_prepare_batches_at_the_same_time_and_end():
    before = set(threading.enumerate())
    examples = Meeting()
    batches = iter(Batches(examples, 1, workers=2))
    assert next(batches)[0].tolist() == [0]
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    batches.close()
    examples.both_are_here.abort()  # one of them may be alone
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)


def test_an_error_of_a_worker_comes_when_its_batch_is_due():
    def refuse_five(inputs, rng):
        if 5 in inputs:
            raise DataError("a five")
        return inputs

    batches = Batches(InMemory(torch.arange(8), torch.arange(8), refuse_five), 2, workers=3)
    served = iter(batches)
    assert [next(served)[1].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match="a five"):
        next(served)


def test_the_global_generator_neither_matters_nor_moves():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = Batches(noisy(), 4, seed=1, shuffle=True)
    first = list(batches.serve(0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same(list(batches.serve(0)), first)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: InMemory(torch.zeros(3, 1), torch.zeros(2)), "3 inputs and 2 targets"),
        (lambda: Batches(numbered(0), 4), "0 examples to serve in batches"),
        (lambda: Batches(numbered(), 11, drop_last=True), "none of 10 examples"),
        (
            lambda: Batches(numbered(), 0, seed=-1, workers=-2),
            "(?s)size is 0.*-1.*workers is -2",
        ),
        (lambda: Batches(numbered(), 2.5), "batch_size is 2.5; use a whole number of at"),
        (lambda: make_generator(-1, "order"), "a number is negative"),
        (lambda: make_generator(0, "order", -2), "a number is negative"),
    ],
)
def test_what_cannot_be_served_is_refused(build, said):
    with pytest.raises((DataError, OptionError), match=said):
        build()


@pytest.mark.parametrize("device", ["meta", *["cuda"] * torch.cuda.is_available()])
def test_batches_are_made_on_the_device_of_the_examples_whatever_the_default(device, tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be " * 20)
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    change = Chain((Crop(2), Flip(), Normalise((0.5,) * 3, (0.2,) * 3)))
    letters = load("text", data_dir=tmp_path, batch_size=4, context=5)
    pictures = Batches(InMemory(images, torch.arange(9), change), 4, shuffle=True)
    mixed = Batches(MixedExamples(pictures.examples, Mix(9, cutmix=1.0)), 4)
    moved = replace(letters, train=mixed).to(device).train.examples
    assert moved.examples.inputs.device.type == device
    debug = torch.cuda.set_sync_debug_mode if device == "cuda" else lambda mode: None
    for data in (letters, replace(letters, train=pictures, test=pictures)):
        moved = data.to(device)
        for mode in ("default", "error"):  # once all kernels are loaded, nothing waits
            debug(mode)
            there = [*chain(*moved.train, *moved.test)]
            debug("default")
            with torch.device("meta"):
                here = [*chain(*data.train, *data.test)]
            for one, other in zip(here, there, strict=True):
                assert (other.device.type, other.shape) == (device, one.shape)
                assert one.is_cpu
                assert other.is_meta or torch.equal(other.cpu(), one)


def test_streams_of_different_keys_differ():
    keys = [(0, "order", 0), (0, "order", 1), (0, "augmentation", 0), (1, "order", 0)]
    keys += [(0, "order"), (0, "order", 0, 0), (2**40, "order", 0)]
    draws = [tuple(torch.rand(3, generator=make_generator(*key)).tolist()) for key in keys]
    assert len(set(draws)) == len(keys)
