"""Measure how far delayed gradients are from the exact ones, and what shrinking them does.

What to learn: `gradient_error_every` computes for every n-th batch the exact gradient as well,
at the weights that all stages have when the tick begins, and compares. The cosine of the angle
between the two measures the error of the direction; the ratio of their norms shows the shrink
factor, once for every edge that the gradient has crossed. The gradient of the last stage is not
late and still not exact, because its inputs come from older weights of the stages before it.
"""

from collections import defaultdict
from statistics import mean

import torch

import hocket

STAGES = 3

print("shrink  stage  cosine  norm ratio")
for shrink in (1.0, 0.7, 0.4):
    torch.manual_seed(0)
    digits = hocket.data.load("digits", batch_size=64)
    cosines, ratios = defaultdict(list), defaultdict(list)

    def record(error, cosines=cosines, ratios=ratios):
        cosines[error.stage].append(error.cosine)
        ratios[error.stage].append(error.ratio)

    trainer = hocket.Trainer(
        hocket.zoo.mlp(hidden=[64, 64]),
        stages=STAGES,
        method=hocket.FDG(shrink=shrink),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
        gradient_error_every=4,
        on_gradient_error=record,
    )
    trainer.fit(digits.train, epochs=2, progress=False)
    for stage in range(STAGES):
        print(
            f"{shrink:6}  {stage:5}  {mean(cosines[stage]):6.3f}  {mean(ratios[stage]):10.3f}"
        )
