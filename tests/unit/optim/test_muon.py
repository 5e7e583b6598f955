"""Muon and AdamW as one optimizer do what each of them does alone."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import StepLR

from contract.small import different
from hocket import Trainer, zoo
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.optim.muon import MuonAdamW, hidden_matrices, muon
from hocket.runs.build import build_optimizer_factory
from hocket.runs.config import RunConfig
from unit.stage.small_gpt import gpt, texts


def gradients(network, batch):
    network.zero_grad()
    nn.functional.cross_entropy(network(batch[0]).flatten(0, 1), batch[1].flatten()).backward()


def test_embeddings_norms_biases_and_the_head_are_left_to_adamw():
    hidden = hidden_matrices(gpt())
    assert len(hidden) == 2 * 4
    assert {name.split(".")[0] for name in hidden} == {"block0", "block1"}
    assert all(name.endswith("weight") and "norm" not in name for name in hidden)


def test_a_tied_head_is_an_embedding():
    network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    network[2].weight = network[0].weight
    assert hidden_matrices(network) == {"1.weight"}


def test_steps_are_those_of_muon_and_adamw_alone():
    """Bit-equal, with a scheduler, and after its state was loaded into another one."""
    ours, alone = gpt(), gpt()
    hidden = hidden_matrices(ours)
    build = muon(ours, lr=0.02, weight_decay=0.2, momentum=0.8, betas=(0.8, 0.9))
    optimizer = build(list(ours.named_parameters()))
    named = list(alone.named_parameters())
    both = {"lr": 0.02, "weight_decay": 0.2}
    parts = [
        Muon(
            [p for name, p in named if name in hidden],
            **both,
            momentum=0.8,
            adjust_lr_fn="match_rms_adamw",
        ),
        AdamW([p for name, p in named if name not in hidden], **both, betas=(0.8, 0.9)),
    ]
    schedulers = [StepLR(each, 2, 0.5) for each in (optimizer, *parts)]
    for number, batch in enumerate(texts(6)):
        if number == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = build(list(ours.named_parameters()))
            optimizer.load_state_dict(state)
            schedulers[0].optimizer = optimizer
        gradients(ours, batch)
        gradients(alone, batch)
        for each in (optimizer, *parts, *schedulers):
            each.step()
    assert different(ours.parameters(), alone.parameters()) == []


def test_a_training_on_stages_resumes_also_on_others(tmp_path):
    def build(network, stages):
        optimizer = muon(network, lr=0.02)
        return Trainer(network, stages=stages, method="bp", optimizer=optimizer, resumable=True)

    networks = [gpt(), gpt(), gpt()]
    whole = build(networks[0], 2)
    for number, batch in enumerate(texts(4)):
        if number == 2:
            whole.save(tmp_path)
        whole.step(*batch)
    for network, stages in ((networks[1], 2), (networks[2], 3)):
        resumed = build(network, stages)
        if stages == 2:
            resumed.resume(tmp_path)
        else:
            with pytest.warns(UserWarning, match="are not those of this training"):
                resumed.resume(tmp_path)
        for batch in texts(4)[2:]:
            resumed.step(*batch)
        assert different(networks[0].parameters(), network.parameters()) == []


def test_a_stage_may_have_only_one_of_the_two():
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    for p, optimizer in (
        (matrix, MuonAdamW([matrix], [])),
        (vector, MuonAdamW([], [vector], lr=0.1)),
    ):
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert not torch.equal(p, torch.ones_like(p))
    with pytest.raises(TypeError, match="'rate'"):
        MuonAdamW([], [vector], rate=1)


def test_shrink_under_it_is_warned_of():
    network = gpt()
    trainer = Trainer(network, method=FDG(shrink=0.5), optimizer=muon(network))
    with pytest.warns(UserWarning, match="cancels under MuonAdamW"):
        trainer.prepare(texts(1)[0][0])


@pytest.mark.parametrize("name", ["Muon", "RotatedAdam"])
def test_a_network_without_hidden_matrices_is_refused(name):
    """It would be AdamW under another name, whose options have no effect."""
    with pytest.raises(OptionError, match=f"{name} is for hidden weights of two .* has none"):
        build_optimizer_factory(RunConfig(optimizer=name), zoo.create("resnet8"))


def test_by_name_it_decays_what_it_is_told():
    network = gpt()
    run = RunConfig(optimizer="Muon:lr=0.02,ns_steps=4", weight_decay_on="matrices")
    optimizer = build_optimizer_factory(run, network)(list(network.named_parameters()))
    groups = optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert [group.get("ns_steps") for group in groups] == [4, None, None]
    assert len(groups[0]["params"]) == 8
    assert all(p.dim() == 2 for p in groups[1]["params"])
    assert len(groups[1]["params"]) == 3
