"""Write your own method: its delays, and a signal that says which gradient a stage gets.

What to learn: a method is data. Program, memory and staleness follow from its delays and its
signal, and every engine executes it. This method is FDG on a link that takes two ticks. Its
signal bounds the gradient from the next stage: no sample has more than `limit` times the mean
norm.
"""

from dataclasses import dataclass, replace

import hocket
import torch
from hocket import format_program
from hocket.signals import Delayed


@dataclass(frozen=True)
class Bounded(Delayed):
    """The gradient of the next stage, bounded for each sample."""

    limit: float = 1.5

    def backward_roots(self, network, inputs):
        roots = super().backward_roots(network, inputs)
        return replace(roots, gradients=tuple(map(self.bound, roots.gradients)))

    def bound(self, gradient):
        norms = gradient.flatten(1).norm(dim=1)
        factors = (self.limit * norms.mean() / norms.clamp(min=1e-12)).clamp(max=1)
        return gradient * factors.reshape(-1, *[1] * (gradient.dim() - 1))


method = hocket.Method(
    name="bounded",
    paper="none yet",
    signal=Bounded(limit=1.5),
    forward_delay=2,  # ticks that an activation travels to the next stage
    backward_delay=2,
)
print(format_program(hocket.unroll(method, 2, 6), 2))
print(f"staleness {[method.staleness(stage, 2) for stage in range(2)]}, {method.memory(0, 2)}")

torch.manual_seed(0)
digits = hocket.data.load("digits", batch_size=32)
trainer = hocket.Trainer(
    hocket.zoo.mlp(hidden=[64, 64]),
    stages=2,
    method=method,
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
)
for epoch in trainer.fit(digits.train, digits.test, epochs=2, progress=False):
    print(f"epoch {epoch.number}: test error {epoch.evaluation.error:.1%}")

# It prints:
#
#   tick | stage 0     | stage 1
#      0 | F0          |
#      1 | F1          |
#      2 | F2          | F0 B0 U0
#      3 | F3          | F1 B1 U1
#      4 | F4 B0 U0    | F2 B2 U2
#      5 | F5 B1 U1    | F3 B3 U3
#      6 | B2 U2       | F4 B4 U4
#      7 | B3 U3       | F5 B5 U5
#      8 | B4 U4       |
#      9 | B5 U5       |
#   staleness [4.0, 0.0], MemoryCount(graphs=5, inputs=5, versions=5)
#   epoch 0: test error 22.5%
#   epoch 1: test error 12.8%
