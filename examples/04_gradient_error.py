"""Measure how far delayed gradients are from the exact ones, and what shrinking them does.

What to learn: `gradient_error_every` computes for every n-th batch the exact gradient as well,
at the weights that all stages have when the tick begins, and compares. The cosine of the angle
between the two measures the error of the direction; the ratio of their norms shows the shrink
factor, once for every edge that the gradient has crossed. The gradient of the last stage is not
stale but still not exact: its inputs come from older weights of the stages before it.
"""

from statistics import mean

import hocket
import torch

STAGES = 3

print("shrink  stage  cosine  norm ratio")
for shrink in (1.0, 0.7, 0.4):
    torch.manual_seed(0)
    digits = hocket.data.load("digits", batch_size=64)
    errors = []
    trainer = hocket.Trainer(
        hocket.zoo.mlp(hidden=[64, 64]),
        stages=STAGES,
        method=hocket.FDG(shrink=shrink),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9),
        gradient_error_every=4,
        on_gradient_error=errors.append,
    )
    trainer.fit(digits.train, epochs=2, progress=False)
    for stage in range(STAGES):
        cosine = mean(error.cosine for error in errors if error.stage == stage)
        ratio = mean(error.ratio for error in errors if error.stage == stage)
        print(f"{shrink:6}  {stage:5}  {cosine:6.3f}  {ratio:10.3f}")

# It prints:
#
#   shrink  stage  cosine  norm ratio
#      1.0      0   0.941       0.975
#      1.0      1   0.976       0.970
#      1.0      2   0.999       0.980
#      0.7      0   0.987       0.476
#      0.7      1   0.995       0.691
#      0.7      2   1.000       0.992
#      0.4      0   0.995       0.155
#      0.4      1   0.998       0.397
#      0.4      2   1.000       0.997
