"""Stages that are parts of a network's own forward compute the same as the network."""

import copy
import sys

import pytest
import torch
from torch import nn

from contract.small import different, sgd
from hocket import Plan, Trainer, cut
from hocket.errors import CutError
from hocket.partition import divide
from hocket.partition.cut_points import find_cut_points
from hocket.partition.parts import meta_functions, meta_tensors
from hocket.partition.parts.partial_module import build_partial_modules
from hocket.partition.recording.recording import TRAINING
from hocket.partition.verify import verify_stages
from hocket.tree import map_tensors
from unit.partition.networks import NETWORKS, Skips, assert_same, glued, skips, words

every = pytest.mark.parametrize("make", NETWORKS)


@every
def test_a_network_can_be_cut_at_any_cut_point_and_at_all_at_once(make):
    """Stages hold every parameter and buffer once under its name."""
    network, sample = make()
    graph = find_cut_points(network, sample)
    every_position = range(len(graph.cut_points))
    assert every_position
    for positions in (every_position, *([position] for position in every_position)):
        stages = build_partial_modules(graph, positions)
        verify_stages(network, stages, sample)
        assert len(stages) == len(positions) + 1
        for stage in stages:
            for name, weight in stage.named_parameters():
                assert weight is network.get_parameter(name)
        names = [name for stage in stages for name in stage.state_dict()]
        assert sorted(names) == sorted(network.state_dict())


def test_a_layer_named_as_an_attribute_of_stages_is_refused():
    network, sample = skips()
    network.add_module("_sample", nn.Linear(4, 4))
    with pytest.raises(CutError, match="attributes named _sample; rename"):
        cut(network, stages=2, sample=sample)


def test_the_search_for_cut_points_takes_time_in_proportion_to_the_calls():
    def count_steps(blocks):
        network, steps = Skips(blocks), []
        sys.setprofile(lambda frame, event, argument: steps.append(event))
        try:
            find_cut_points(network, torch.randn(3, 4))
        finally:
            sys.setprofile(None)
        return steps.count("call")

    count_steps(1)  # and import what it needs
    assert count_steps(40) < 2.1 * count_steps(20)


@every
def test_batches_can_have_another_size_than_the_sample(make):
    network, sample = make()
    one, four = (
        map_tensors(lambda v, times=times: v[:1].repeat_interleave(times, 0), sample)
        for times in (1, 4)
    )
    assert_same(network.eval(), 2, sample, one, four)


def test_cuts_inside_a_block_carry_the_skip():
    network, sample = skips()
    stages = cut(network, stages=Plan(("blocks.1.fc2",)), sample=sample)
    sent = stages[0](sample)
    assert [tuple(value.shape) for value in sent] == [(3, 5), (3, 5), (3, 5)]
    assert "blocks.1.fc1.weight" in stages[0].state_dict()
    assert "blocks.1.fc2.weight" in stages[1].state_dict()


def test_a_plan_may_give_a_module_any_of_its_names():
    network, sample = skips()
    network.last = network.head
    plan, _ = divide(network, Plan(("last",)), sample)
    assert plan == Plan(("head",))


def test_a_module_may_be_named_network():
    network = nn.Module()
    network.network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    network.forward = lambda x: network.network(x).relu()
    stages = cut(network, stages=2, sample=torch.ones(3, 4))
    assert list(stages[1].state_dict()) == ["network.1.weight", "network.1.bias"]


def test_hooks_of_the_user_run_once_and_in_their_stage():
    network, sample = skips()
    called = []
    network.blocks[1].fc1.register_forward_hook(lambda *_: called.append("fc1"))
    network.head.register_forward_pre_hook(lambda *_: called.append("head"))
    stages = cut(network, stages=Plan(("blocks.1", "head")), sample=sample)
    called.clear()
    value = stages[0](sample)
    assert called == []
    value = stages[1](value)
    assert called == ["fc1"]
    stages[2](value)
    assert called == ["fc1", "head"]


@pytest.mark.parametrize("target", ["stages", "network"])
def test_evaluation_mode_is_checked_at_every_forward(target):
    """Functional dropout in a forward follows the mode of its module."""
    network, sample = glued()
    stages = cut(network, stages=Plan(("fc1",)), sample=sample)
    modules = stages if target == "stages" else [network]
    assert not torch.equal(nn.Sequential(*stages)(sample), nn.Sequential(*stages)(sample))
    for module in modules:
        module.eval()
    assert torch.equal(nn.Sequential(*stages)(sample), nn.Sequential(*stages)(sample))
    assert network.training == (target == "stages")
    for module in modules:
        module.train()
    assert not torch.equal(nn.Sequential(*stages)(sample), nn.Sequential(*stages)(sample))
    network.eval()  # in which it is cut, and stays
    stages = cut(network, stages=2, sample=sample)
    assert not any(module.training for module in network.modules())
    assert torch.equal(nn.Sequential(*stages)(sample), network(sample))


def test_cutting_does_not_change_the_network():
    network, sample = skips()
    network(sample).sum().backward()
    network.blocks[0].norm1.eval()
    before = copy.deepcopy(network)
    gradients = [weight.grad.clone() for weight in network.parameters()]
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    cut(network, stages=2, sample=sample)
    assert torch.equal(torch.rand(1), wanted)
    assert not different(network.state_dict().values(), before.state_dict().values())
    assert not different([weight.grad for weight in network.parameters()], gradients)
    assert [m.training for m in network.modules()] == [m.training for m in before.modules()]
    assert not hasattr(nn.Module.__call__, "__wrapped__")
    assert type(network) is Skips


def test_what_is_remembered_of_steps_before_a_stage_stays_small(monkeypatch):
    for module in (meta_functions, meta_tensors):
        monkeypatch.setattr(module, "MOST_KNOWN", 3)
    outputs, layer = meta_tensors.MetaModules(), nn.Linear(4, 4)
    for size in range(1, 9):
        x, device = torch.empty(size, 4, device="meta"), torch.device("cpu")
        shape = outputs.output(layer, (x,), {}, device, "layer", TRAINING).shape
        (doubled, _) = outputs.functions.run(torch.mul, (x, 2), {}, [x], device)
        assert doubled.shape == shape == x.shape
    assert len(outputs._builders) <= 3 >= len(outputs.functions._known)


def test_stages_can_be_copied_and_moved():
    network, sample = words()
    stages = copy.deepcopy(cut(network, stages=2, sample=sample))
    for stage in stages:
        stage.double()
    assert all(p.dtype == torch.float32 for p in network.parameters())
    ids = sample["ids"]
    scores = nn.Sequential(*stages)({"ids": ids, "mask": sample["mask"].double()})["scores"]
    assert torch.equal(scores, network.double()(ids, sample["mask"].double())["scores"])


def test_evaluating_before_the_first_batch_cuts_in_training_mode():
    network, sample = glued()
    trainer = Trainer(network, stages=2, optimizer=sgd)
    trainer.evaluate([(sample, torch.tensor([0, 1, 2]))])
    assert all(stage.module.training for stage in trainer.stages)
