"""Compare the methods on one network and one data set.

What to learn: a method is a value. It decides how old its gradients are (staleness), and what a
stage keeps until they arrive: graphs of activations, inputs, versions of its weights. Six
epochs at one small rate show that all of them learn, not which is best: a study (12_study.py)
gives each its best rate.
"""

import hocket
import torch

STAGES = 3
METHODS = [
    hocket.BP(),
    hocket.DDG(),
    hocket.FR(),
    hocket.FDG(),
    hocket.ADL(accumulate=2),
    hocket.DSP(),
    hocket.DGL(),
    hocket.DNI(),
]

print("method  test error  staleness of stage 0  it keeps graphs, inputs, versions")
for method in METHODS:
    torch.manual_seed(0)
    digits = hocket.data.load("digits", batch_size=32)
    trainer = hocket.Trainer(
        hocket.zoo.mlp(hidden=[64, 64]),
        stages=STAGES,
        method=method,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    )
    last = trainer.fit(digits.train, digits.test, epochs=6, progress=False)[-1]
    memory = method.memory(0, STAGES)
    print(
        f"{method.name:6}  {last.evaluation.error:10.1%}  {last.staleness[0]:20.2f}  "
        f"{memory.graphs:15} {memory.inputs:7} {memory.versions:9}"
    )

# It prints:
#
#   method  test error  staleness of stage 0  it keeps graphs, inputs, versions
#   bp            2.8%                  0.00                1       1         1
#   ddg           3.9%                  2.00                3       3         3
#   fr            3.6%                  2.00                1       3         1
#   fdg           3.3%                  3.00                4       4         4
#   adl           8.6%                  1.49                4       4         3
#   dsp           3.3%                  3.00                1       4         1
#   dgl           7.5%                  0.00                1       1         1
#   dni          10.0%                  0.00                1       1         1
