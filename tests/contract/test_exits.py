"""Heads are early exits: each alone and all together, against a plain evaluation."""

from functools import partial

import pytest
import torch
from torch import nn

from contract.small import CLASSES, conv, data, mlp, sgd, train, wide
from hocket import Trainer, cross_entropy
from hocket.methods import BP, DGL, DNI, FDG, METHODS
from hocket.stage.prediction import add_to_ensemble

WITH_HEADS = {
    "dgl": DGL(),
    "linear": DGL(head="mlp", depth=0),
    "similarity": DGL(similarity=0.9),
}


def head_of(stage):
    """What predicts at a stage, by itself."""
    network = stage.signal_network
    return network["head"] if "head" in dict(network.named_children()) else network


@torch.no_grad()
def by_hand(trainer, batches):
    """Errors of each exit and of the ensemble, with the weights of DGL's code."""
    stages = trainer.stages
    networks = [network for stage in stages for network in (stage.module, head_of(stage))]
    for network in networks:
        network.eval()
    scores, targets = [[] for _ in stages], []
    for x, y in batches:
        value = x.clone()
        for k, stage in enumerate(stages):
            value = stage.module(value)
            scores[k].append(head_of(stage)(value))
        targets.append(y)
    for network in networks:
        network.train()
    whole, target = [torch.cat(own) for own in scores], torch.cat(targets)
    total = sum(2**n for n in range(len(whole)))
    ensemble = sum(2**n / total * s.softmax(-1) for n, s in enumerate(whole))
    return [float((s.argmax(-1) != target).double().mean()) for s in [*whole, ensemble]]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("net", [mlp, conv, wide])
@pytest.mark.parametrize("method", WITH_HEADS.values(), ids=WITH_HEADS.keys())
def test_every_exit_and_the_ensemble_are_those_of_a_plain_evaluation(method, net, stages):
    trainer = train(method, net(stages), data(net, 6)).trainer
    make = torch.Generator().manual_seed(0)
    for stage in trainer.stages:
        for p in [*stage.module.parameters(), *stage.signal_network.parameters()]:
            p.data.normal_(generator=make)  # else all have learnt the same few answers
    batches = data(net, 40, last=3)
    score = trainer.evaluate(batches)
    *exits, ensemble = by_hand(trainer, batches)
    assert (list(score.exits), score.ensemble) == (exits, ensemble)
    assert score.exits[-1] == score.error
    assert len({*exits, ensemble}) > 1, "else nothing is told apart"


@pytest.mark.parametrize("method", [FDG(), BP(), DNI()], ids=["fdg", "bp", "dni"])
def test_without_heads_there_are_no_exits_and_nothing_is_counted_for_them(method):
    trainer = train(method, mlp(3), data(mlp, 2), lr=1e-4).trainer
    score = trainer.evaluate(data(mlp, 2))
    assert (score.exits, score.ensemble) == ((), None)
    assert score.error is not None
    with torch.no_grad():
        answers = list(trainer._rig.engine.predict(data(mlp, 1)))
    assert [(a.prediction, a.ensemble) for a in answers] == [(None, None)] * 3


def test_a_single_stage_has_no_exits():
    score = train(DGL(), mlp(1), data(mlp, 2)).trainer.evaluate(data(mlp, 2))
    assert (score.exits, score.ensemble) == ((), None)


@pytest.mark.parametrize("loss", ["numbers", "structures"])
def test_targets_that_are_no_class_numbers_have_no_exits(loss):
    def squared(output, targets):
        wanted = targets["of"] if loss == "structures" else targets
        return (output[:, 0] - wanted).square().mean()

    inputs = [x for x, _ in data(mlp, 3)]
    batches = [(x, {"of": x.sum(1)} if loss == "structures" else x.sum(1)) for x in inputs]
    trainer = Trainer(mlp(3), method=DGL(), optimizer=partial(sgd, lr=1e-3), loss=squared)
    (epoch,) = trainer.fit(batches, batches, epochs=1, progress=False)
    assert (epoch.evaluation.error, epoch.evaluation.exits, epoch.evaluation.ensemble) == (
        None,
        (),
        None,
    )


class Last(nn.Module):
    """The last token."""

    def forward(self, values):
        return values[:, -1]


def layers():
    """A text of 7 characters, tokens of 6 numbers."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Embedding(7, 6)), nn.Sequential(nn.Linear(6, 6), nn.Tanh())]


def test_tokens_are_counted_one_by_one():
    texts = torch.randint(7, (5, 4, 3), generator=torch.Generator().manual_seed(1))
    batches = [(text, (text + 1) % 7) for text in texts]
    modules = [*layers(), nn.Linear(6, 7)]
    trainer = train(DGL(), modules, batches, epochs=3).trainer
    score = trainer.evaluate(batches)
    assert [*score.exits, score.ensemble] == by_hand(trainer, batches)
    assert len(score.exits) == 3


def test_exits_of_some_stages_only_are_left_out():
    """Heads on tokens have no class number each where the text has one for all."""

    def loss(output, targets):
        return cross_entropy(output if output.dim() == 2 else output[:, -1], targets)

    texts = torch.randint(7, (5, 4, 3), generator=torch.Generator().manual_seed(1))
    batches = [(text, text[:, -1]) for text in texts]
    tokens, mixed = layers()
    modules = [tokens, nn.Sequential(mixed, Last()), nn.Linear(6, 7)]
    score = train(DGL(), modules, batches, loss=loss).trainer.evaluate(batches)
    assert score.error is not None
    assert (score.exits, score.ensemble) == ((), None)


@pytest.mark.parametrize("method", WITH_HEADS.values(), ids=WITH_HEADS.keys())
def test_looking_at_heads_leaves_them_as_they_were(method):
    trainer = train(method, conv(3), data(conv, 3)).trainer
    networks = [stage.signal_network for stage in trainer.stages]
    frozen = head_of(trainer.stages[0]).readout.eval()
    before = [v.clone() for network in networks for v in network.state_dict().values()]
    trainer.evaluate(data(conv, 2))
    after = [v for network in networks for v in network.state_dict().values()]
    assert all(map(torch.equal, before, after))
    off = [layer for network in networks for layer in network.modules() if not layer.training]
    assert off == list(frozen.modules())


def test_votes_are_counted_in_more_digits_than_autocast_leaves():
    modules = [stage.float() for stage in mlp(3)]
    trainer = Trainer(modules, method=DGL(), optimizer=sgd, precision="bf16")
    batches = [(x.float(), y) for x, y in data(mlp, 3)]
    trainer.fit(batches, epochs=1, progress=False)
    with torch.no_grad():
        answers = list(trainer._rig.engine.predict(batches))
    assert {a.prediction.dtype for a in answers} == {torch.bfloat16}
    assert {a.ensemble.dtype for a in answers} == {torch.float32}


def test_an_exit_counts_twice_the_one_before_it():
    scores = list(torch.randn(5, 4, CLASSES, dtype=torch.double))
    votes = None
    for prediction in scores:
        votes = add_to_ensemble(votes, prediction)
    weights = [1, 2, 4, 8, 16]
    wanted = sum(w * s.softmax(-1) for w, s in zip(weights, scores, strict=True)) / 16
    torch.testing.assert_close(votes, wanted)


def test_only_signals_with_heads_predict():
    output = torch.randn(4, 6)
    for name, build in METHODS.items():
        signal = build().signal
        found = signal.predict(signal.build_network((6,), CLASSES), output)
        assert (found is not None) == (name in ("dgl", "dgl-async")), name
