"""How far delayed gradients are from the true ones, and what shrinking them does.

What to learn: `gradient_error_every` computes, for every n-th batch, the true gradient at the weights
of now beside the one that is used. The cosine of the angle between them tells how wrong the
direction is; the ratio of their norms shows beta, the shrink factor, once for every edge that
the gradient has crossed. The last stage waits for nothing and is still a little off, because
its inputs come from weights that the stages before it had some ticks ago.
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

    def note(found, cosines=cosines, ratios=ratios):
        cosines[found.stage].append(found.cosine)
        ratios[found.stage].append(found.ratio)

    trainer = hocket.Trainer(
        hocket.zoo.mlp(hidden=[64, 64]),
        stages=STAGES,
        method=hocket.FDG(shrink=shrink),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
        gradient_error_every=4,
        on_gradient_error=note,
    )
    trainer.fit(digits.train, epochs=2, progress=False)
    for stage in range(STAGES):
        print(
            f"{shrink:6}  {stage:5}  {mean(cosines[stage]):6.3f}  {mean(ratios[stage]):10.3f}"
        )
