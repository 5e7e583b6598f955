"""Write a remedy of your own: trust a late gradient less where the weights have moved since.

What to learn: a remedy is a frozen dataclass that posts an object at every stage whose
gradients are late. The hooks of that object (see `hocket.remedies.Aid`) are called around the
updates; this one multiplies the gradient of a weight tensor by 1 / (1 + strength * d), where d
is the distance moved since the forward, relative to the norm of the weights.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import hocket
from hocket.remedies import Aid, Remedy


@dataclass(frozen=True, kw_only=True)
class Trust(Remedy):
    name: ClassVar[str] = "trust"
    paper: ClassVar[str] = "none yet"
    compares: ClassVar[bool] = True  # it needs the weights of the forward
    strength: float = 10.0

    def posted(self, post, weights):
        return Doubt(self.strength, weights.parameters)


class Doubt(Aid):
    wants_then = True

    def __init__(self, strength, parameters):
        self.strength, self.parameters = strength, parameters

    def correct(self, then):
        if then is None:  # the weights are still those of the forward
            return
        for weight, old in zip(self.parameters, then, strict=True):
            moved = (weight.detach() - old).norm() / old.norm().clamp(min=1e-12)
            weight.grad /= 1 + self.strength * moved


plain = hocket.FDG()
for method in (plain, plain.with_remedies(Trust(strength=10.0))):
    torch.manual_seed(0)
    digits = hocket.data.load("digits", batch_size=32)
    trainer = hocket.Trainer(
        hocket.zoo.mlp(hidden=[64, 64]),
        stages=3,
        method=method,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
    )
    last = trainer.fit(digits.train, digits.test, epochs=2, progress=False)[-1]
    names = [remedy.name for remedy in method.remedies] or "no remedy"
    print(f"{method.name} with {names}: test error {last.evaluation.error:.1%}")
