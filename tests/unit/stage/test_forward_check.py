"""A class that wrongly declares a plain forward is refused with its first batch."""

import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from contract.small import sgd
from hocket import Trainer
from hocket.errors import LinearizeError

BATCHES = [(torch.ones(4, 6), torch.arange(4) % 3) for _ in range(4)]


class Declared(nn.Module):
    """Base of modules that declare a plain forward, rightly or wrongly."""

    plain_forward = True

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, inputs):
        return self.inner(inputs)


class Draws(Declared):
    plain_forward = True

    def forward(self, inputs):
        return self.inner(inputs) * torch.rand(())


class DrawsOfPython(Declared):
    plain_forward = True

    def forward(self, inputs):
        return self.inner(inputs) * random.random()


class Edits(Declared):
    plain_forward = True

    def forward(self, inputs):
        return self.inner(inputs.mul_(2))


class Repeats(Declared):
    plain_forward = True

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=False)


def train(*stages, method="fdg"):
    Trainer(stages, method=method, optimizer=sgd).fit(BATCHES, epochs=1, progress=False)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (Edits, "stage 0: a forward edits its input in place; .* is declared by Edits; take"),
        (Repeats, "stage 0: something was forwarded again inside the backward"),
    ],
)
def test_a_wrong_declaration_is_refused(first, text):
    with pytest.raises(LinearizeError, match=text):
        train(first(), nn.Linear(6, 3))


@pytest.mark.parametrize("first", [Draws, DrawsOfPython])
def test_precautions_are_taken_after_all_if_numbers_were_drawn(first):
    text = f"stage 0: random numbers were drawn in a forward, .* by {first.__name__}; all"
    stages = first(), nn.Linear(6, 3)
    trainer = Trainer(stages, method="fdg", optimizer=sgd)
    with pytest.warns(UserWarning, match=text):
        trainer.fit(BATCHES, epochs=1, progress=False)
    trainer.fit(BATCHES, epochs=1, progress=False)  # without a warning
    assert trainer.stages[0].core.layers.draws == "anything"


class Routed(Declared):
    """A forward that calls other layers with other batches."""

    plain_forward = True

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.either = nn.ModuleList([nn.Linear(6, 6)])

    def forward(self, inputs):
        layer = self.inner if inputs.sum() > 0 else self.other
        return self.either[0](layer(inputs))


class RoutedUnknown(Routed):
    def forward(self, inputs):
        return super().forward(inputs)


@pytest.mark.parametrize("method", ["fdg", "ddg", "fdg:linearize=live", "fr"])
def test_a_declared_forward_may_call_other_layers_with_other_batches(method):
    signs = [1, 1, -1, 1, -1, -1]
    batches = [(sign * torch.rand(4, 6), torch.arange(4) % 3) for sign in signs]
    trained = []
    for kind in (Routed, RoutedUnknown):
        torch.manual_seed(0)
        stages = kind(), nn.Linear(6, 3)
        trainer = Trainer(stages, method=method, optimizer=sgd)
        trainer.fit(batches, epochs=2, progress=False)
        assert trainer.stages[0].core.layers.plain == (kind is Routed)
        trained.append([weight for stage in stages for weight in stage.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_a_wrong_declaration_beside_layers_that_need_precautions_does_no_harm():
    for first in (Draws, Edits):
        train(nn.Sequential(first(), nn.Dropout(0.5)), nn.Linear(6, 3))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        train(nn.Linear(6, 6), nn.Sequential(Edits(), nn.Linear(6, 3)))
