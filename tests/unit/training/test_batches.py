"""What loaders may give, what a network is cut with, and what a batch must be."""

from collections import UserDict, namedtuple
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from contract.small import data, different, mlp, sgd
from hocket import Trainer
from hocket.errors import CutError, DataError
from hocket.methods import BP, FDG
from hocket.training.session.batches import BatchSplitter, Upload, length_of, require_batches

X, Y = torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)
PLAIN = nn.Linear(5, 3)


class WithLabels(nn.Module):
    """A network that computes its own loss if it gets labels, as those of transformers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, values, labels=None):
        logits = self.second(self.first(values).tanh())
        found = {"logits": logits}
        if labels is not None:
            found["loss"] = nn.functional.cross_entropy(logits, labels)
        return found


def split(batch, network=PLAIN, split_batch=None):
    (pair,) = BatchSplitter(network, split_batch).pairs([batch])
    return pair


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], namedtuple("Pair", "x y")(X, Y)])
def test_a_pair_is_inputs_and_targets(batch):
    inputs, targets = split(batch)
    assert inputs is X
    assert targets is Y


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_labels_of_a_mapping_are_targets_and_inputs_too_if_the_network_takes_them(kind):
    """Mappings of any class are passed as dicts."""
    batch = kind(values=X, labels=Y)
    assert split(batch) == ({"values": X}, Y)
    inputs, targets = split(batch, WithLabels())
    assert type(inputs) is dict
    assert inputs["labels"] is targets is Y
    assert [type(part) for part in split((batch, batch))] == [dict, dict]


def test_other_batches_are_split_by_a_function():
    assert split((X, Y, "name"), split_batch=lambda batch: batch[:2]) == (X, Y)
    with pytest.raises(DataError, match="split_batch's result for batch 0 is a tensor"):
        split((X, Y), split_batch=lambda batch: batch[0])


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((X, Y, Y), r"batch 0 is a tuple of 3 values; a batch is a pair"),
        (X, r"batch 0 is a tensor of shape \(4, 5\)"),
        ({"x": X, "y": Y}, "a dict with the keys 'x', 'y'; .*'labels'; "),
        (None, r"batch 0 is a NoneType.*split_batch"),
        ((None, None), "batch 0 has no tensors as inputs: it has a NoneType"),
        ((np.zeros((4, 5)), Y), "has a ndarray; .* torch.as_tensor"),
        ({"labels": Y}, "has a dict with the keys none"),
        ((pack_sequence([X]), Y), "batch 0 has a PackedSequence among its inputs"),
        ((X.to_sparse(), Y), "batch 0 has a sparse or nested tensor among its inputs"),
    ],
)
def test_what_is_no_batch_is_refused(batch, said):
    with pytest.raises(DataError, match=said):
        split(batch)


def test_a_batch_without_inputs_is_refused_in_the_middle_of_an_epoch_and_by_a_step():
    trainer = Trainer(mlp(2), optimizer=sgd)
    with pytest.raises(DataError, match="batch 2 has no tensors as inputs"):
        trainer.fit([*data(mlp, 2), (None, None)], epochs=1, progress=False)
    with pytest.raises(DataError, match="the batch has no tensors as inputs"):
        trainer.step(None, None)
    with pytest.raises(DataError, match="the batch has no tensors as inputs"):
        Trainer(mlp(2), optimizer=sgd).prepare(None)


def test_batches_of_numbers_have_no_samples_and_are_batches():
    numbers = [(torch.tensor(1), torch.ones(3))] * 3
    stages = [nn.Embedding(5, 4), nn.Linear(4, 3)]
    trainer = Trainer(stages, loss=nn.MSELoss(), optimizer=sgd)
    (epoch,) = trainer.fit(numbers, epochs=1, progress=False)
    assert (epoch.samples, epoch.updates) == (0, 3)


class Stream(IterableDataset):
    def __iter__(self):
        for x, y in data(mlp, 3):
            yield from zip(x, y, strict=True)


def test_a_loader_that_does_not_know_its_length_is_trained_on():
    loader = DataLoader(Stream(), batch_size=4)
    assert (length_of(loader), length_of(iter([])), length_of([1, 2])) == (None, None, 2)
    streamed, listed = (Trainer(mlp(2), optimizer=sgd) for _ in range(2))
    streamed.fit(loader, loader, epochs=2, progress=False)
    listed.fit(data(mlp, 3), epochs=2, progress=False)
    assert not different(streamed.state_dict().values(), listed.state_dict().values())
    history = Trainer(mlp(2), optimizer=sgd).fit(loader, updates=7, progress=False)
    assert [epoch.updates for epoch in history] == [3, 6, 7]


def mappings(count=3):
    return [UserDict(values=x.float(), labels=y) for x, y in data(mlp, count)]


def test_mappings_with_labels_train_with_the_networks_own_loss_or_another():
    losses = [
        lambda output, targets: output["loss"],
        lambda output, targets: nn.functional.cross_entropy(output["logits"], targets),
    ]
    states, results = [], []
    for loss in losses:
        trainer = Trainer(WithLabels(), method=FDG(), optimizer=sgd, loss=loss)
        (epoch,) = trainer.fit(mappings(), mappings(), epochs=1, progress=False)
        states.append(trainer.state_dict().values())
        results.append(epoch.evaluation)
    assert not different(*states)
    assert results[0] == results[1]
    assert (results[0].samples, results[0].error) == (12, None)


class Graph(nn.Module):
    """Layers of a graph network, whose inputs have a row for each node."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, nodes, adjacency):
        return adjacency @ self.second((adjacency @ self.first(nodes)).relu())


def graphs(nodes):
    return (torch.randn(nodes, 5), torch.eye(nodes)), torch.zeros(nodes, dtype=torch.long)


class First(nn.Module):
    """Stage that takes the whole batch only, too."""

    def forward(self, inputs):
        nodes, adjacency = inputs
        return adjacency @ nodes


class Queue(Graph):
    """Layers that take two samples in evaluation mode only."""

    def forward(self, nodes, adjacency):
        outputs = self.second(self.first(nodes))
        if self.training:
            assert len(nodes) > 2, "there are too few for the queue"
        return outputs


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("build", [Graph, Queue, lambda: [First(), nn.Linear(5, 3)]])
def test_a_network_that_takes_no_two_samples_is_cut_with_the_whole_batch(build, prepared):
    trainer = Trainer(build(), method=BP(), optimizer=sgd)
    inputs, targets = graphs(6)
    if prepared:
        trainer.prepare(inputs)
    before = [weight.clone() for weight in trainer.network.parameters()]
    trainer.step(inputs, targets)
    trainer.step(*graphs(9))
    trainer.finish()
    assert len(trainer.stages) == 2
    assert not any(map(torch.equal, before, trainer.network.parameters()))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"y": torch.zeros(4, 6)}, "a dict is passed as keyword arguments"),
        ((torch.zeros(4, 6), 1, 2), "a tuple is passed as arguments"),
    ],
)
def test_a_sample_of_other_arguments_is_refused_with_how_it_is_passed(inputs, said):
    with pytest.raises(CutError, match=said):
        Trainer(Graph(), optimizer=sgd).step(inputs, Y)


@pytest.mark.parametrize("method", ["bp", "dgl"])
def test_batches_that_are_computed_with_a_graph_are_data(method):
    """Of `dgl`, two stages go backward from the same targets."""
    encoder, teacher = nn.Linear(5, 5), nn.Linear(5, 3)
    trainer = Trainer([nn.Linear(5, 5), nn.Linear(5, 3)], optimizer=sgd, method=method)
    inputs = torch.randn(4, 5)
    with pytest.warns(UserWarning, match="graph of autograd") as warned:
        trainer.step(encoder(inputs), teacher(inputs).softmax(1))
    assert len(warned) == 1
    trainer.step(encoder(inputs), teacher(inputs).softmax(1))  # without another one
    trainer.finish()
    assert encoder.weight.grad is None
    assert teacher.weight.grad is None


class BatchSamplerShard(BatchSampler):
    """A sampler with the attribute by which those of accelerate divide the batches."""

    def __init__(self, num_processes):
        super().__init__(SequentialSampler(ROWS), 2, drop_last=False)
        self.num_processes = num_processes


ROWS = TensorDataset(torch.zeros(4, 5), Y)


def divided(parts):
    sampler = DistributedSampler(ROWS, num_replicas=parts, rank=0)
    yield DataLoader(ROWS, batch_size=2, sampler=sampler)
    yield DataLoader(ROWS, batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    yield DataLoader(ROWS, batch_sampler=BatchSamplerShard(parts))
    dispatched = DataLoader(ROWS, batch_size=2)
    dispatched.state = SimpleNamespace(num_processes=parts)  # as accelerate's dispatcher has it
    yield dispatched


@pytest.mark.parametrize("place", ["training data", "validation data"])
def test_a_loader_that_leaves_out_samples_is_refused(place):
    whole = DataLoader(ROWS, batch_size=2)
    for loader, undivided in zip(divided(2), divided(1), strict=True):
        data = (loader, whole) if place == "training data" else (whole, loader)
        with pytest.raises(DataError, match=f"{place} are divided by .* into 2 parts.*without"):
            Trainer(mlp(2), optimizer=sgd).fit(*data, epochs=1)
        require_batches("data", undivided)


def test_a_data_set_where_a_loader_belongs_is_refused():
    trainer = Trainer(mlp(2), optimizer=sgd)
    for use in (partial(trainer.fit, epochs=1), trainer.evaluate, trainer.predict):
        with pytest.raises(DataError, match=r"a data set, TensorData.*DataLoader\(dataset, b"):
            use(ROWS)


def test_a_batch_that_is_in_place_is_not_copied():
    values = torch.ones(2, 3, 4, 4)
    assert Upload(torch.device("cpu"), channels_last=False)(values) is values
