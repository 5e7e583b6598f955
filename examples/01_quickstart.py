"""Train a network in two stages that work at the same time: the shortest program.

What to learn: a trainer takes a network, a method and an optimizer for each stage, and `fit`
trains. Compare its output with that of `method=hocket.BP()`, plain back-propagation.
"""

import hocket
import torch

torch.manual_seed(0)
digits = hocket.data.load("digits", batch_size=32)
network = hocket.zoo.mlp(in_features=64, hidden=[64, 64, 64], num_classes=digits.classes)

trainer = hocket.Trainer(
    network,
    stages=2,
    method=hocket.FDG(),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
)
history = trainer.fit(digits.train, digits.test, epochs=4)

error = history[-1].evaluation.error
print(f"test error after {len(history)} epochs: {error:.1%}")
for stage in trainer.stages:
    staleness = history[-1].staleness[stage.index]
    print(f"stage {stage.index}: gradients were {staleness:.2f} updates old")

# It prints:
#
#   test error after 4 epochs: 7.2%
#   stage 0: gradients were 1.00 updates old
#   stage 1: gradients were 0.00 updates old
