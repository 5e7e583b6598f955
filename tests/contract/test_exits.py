"""Exits: every head of a stage, and all of them together, predict as in a plain evaluation."""

from functools import partial

import pytest
import torch
from torch import nn

from contract.small import conv, data, mlp, sgd, train, wide
from hocket import Trainer
from hocket.methods import BP, DGL, DNI, FDG

WITH_HEADS = {
    "dgl": DGL(),
    "linear": DGL(head="mlp", depth=0),
    "similarity": DGL(similarity=0.9),
}


def get_head(stage):
    """Return the module that predicts at a stage."""
    network = stage.signal_network
    return network["head"] if "head" in dict(network.named_children()) else network


@torch.no_grad()
def reference_errors(trainer, batches):
    """Return the errors of each exit and of the ensemble, with the weights of DGL's code."""
    stages = trainer.stages
    networks = [network for stage in stages for network in (stage.module, get_head(stage))]
    networks = nn.ModuleList(networks).eval()
    scores, targets = [[] for _ in stages], []
    for x, y in batches:
        value = x.clone()
        for k, stage in enumerate(stages):
            value = stage.module(value)
            scores[k].append(get_head(stage)(value))
        targets.append(y)
    networks.train()
    exits, target = [torch.cat(parts) for parts in scores], torch.cat(targets)
    total = sum(2**n for n in range(len(exits)))
    ensemble = sum(2**n / total * s.softmax(-1) for n, s in enumerate(exits))
    return [float((s.argmax(-1) != target).double().mean()) for s in [*exits, ensemble]]


@pytest.mark.parametrize(
    ("method", "net", "stages"),
    [
        *((name, net, 3) for name in WITH_HEADS for net in (mlp, conv, wide)),
        *(("linear", mlp, stages) for stages in (2, 4)),
    ],
)
def test_every_exit_and_the_ensemble_have_the_errors_of_a_plain_evaluation(method, net, stages):
    trainer = train(WITH_HEADS[method], net(stages), data(net, 6)).trainer
    make = torch.Generator().manual_seed(0)
    for stage in trainer.stages:
        for p in [*stage.module.parameters(), *stage.signal_network.parameters()]:
            p.data.normal_(generator=make)  # else all predict the same few classes
    batches = data(net, 40, last=3)
    result = trainer.evaluate(batches)
    *exits, ensemble = reference_errors(trainer, batches)
    assert (list(result.exits), result.ensemble) == (exits, ensemble)
    assert result.exits[-1] == result.error
    assert len({*exits, ensemble}) > 1, "else the test compares nothing"


@pytest.mark.parametrize(
    ("method", "stages"),
    [(FDG(), 3), (BP(), 3), (DNI(), 3), (DGL(), 1)],
    ids=["fdg", "bp", "dni", "one stage"],
)
def test_without_heads_there_are_no_exits(method, stages):
    trainer = train(method, mlp(stages), data(mlp, 2), lr=1e-4).trainer
    result = trainer.evaluate(data(mlp, 2))
    assert (result.exits, result.ensemble) == ((), None)
    assert result.error is not None
    with torch.no_grad():
        predictions = list(trainer.engine.predict(data(mlp, 1)))
    assert [(p.prediction, p.ensemble) for p in predictions] == [(None, None)] * stages


@pytest.mark.parametrize("loss", ["numbers", "structures"])
def test_targets_that_are_not_class_indices_give_no_exits(loss):
    def squared(output, targets):
        values = targets["sums"] if loss == "structures" else targets
        return (output[:, 0] - values).square().mean()

    inputs = [x for x, _ in data(mlp, 3)]
    batches = [(x, {"sums": x.sum(1)} if loss == "structures" else x.sum(1)) for x in inputs]
    trainer = Trainer(mlp(3), method=DGL(), optimizer=partial(sgd, lr=1e-3), loss=squared)
    (epoch,) = trainer.fit(batches, batches, epochs=1, progress=False)
    found = epoch.evaluation
    assert (found.error, found.exits, found.ensemble) == (None, (), None)


TEXTS = torch.randint(7, (5, 4, 3), generator=torch.Generator().manual_seed(1))


class LastToken(nn.Module):
    """Selects the last token."""

    def forward(self, values):
        return values[:, -1]


def layers():
    """Return two stages for texts of 7 characters, with tokens of 6 numbers."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Embedding(7, 6)), nn.Sequential(nn.Linear(6, 6), nn.Tanh())]


def test_errors_are_counted_per_token():
    batches = [(text, (text + 1) % 7) for text in TEXTS]
    modules = [*layers(), nn.Linear(6, 7)]
    trainer = train(DGL(), modules, batches, epochs=3).trainer
    result = trainer.evaluate(batches)
    assert [*result.exits, result.ensemble] == reference_errors(trainer, batches)
    assert len(result.exits) == 3


def test_heads_on_tokens_predict_one_class_of_a_text_if_the_network_does():
    batches = [(text, text[:, -1]) for text in TEXTS]
    tokens, mixed = layers()
    modules = [tokens, nn.Sequential(mixed, LastToken()), nn.Linear(6, 7)]
    trainer = train(DGL(), modules, batches).trainer
    head = get_head(trainer.stages[0]).eval()
    with torch.no_grad():
        assert torch.equal(head(tokens(TEXTS[0])), head[1](tokens(TEXTS[0]).mean(1)))
    assert len(trainer.evaluate(batches).exits) == 3


def test_the_ensemble_has_more_digits_than_autocast():
    modules = [stage.float() for stage in mlp(3)]
    trainer = Trainer(modules, method=DGL(), optimizer=sgd, precision="bf16")
    batches = [(x.float(), y) for x, y in data(mlp, 3)]
    trainer.fit(batches, epochs=1, progress=False)
    with torch.no_grad():
        predictions = list(trainer.engine.predict(batches))
    assert {p.prediction.dtype for p in predictions} == {torch.bfloat16}
    assert {p.ensemble.dtype for p in predictions} == {torch.float32}
