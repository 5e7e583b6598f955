"""Train a small GPT on the source of a Python module, with Muon and predicted weights.

What to learn: you can write a method as text, with its options and remedies. ADL makes one
update from four gradients, so they are stale by fewer updates. With `predict` a stage forwards
with the weights that it expects at the backward. Muon trains the hidden matrices, and AdamW
everything else. The names in the whole network decide which is which, wherever it is cut.
"""

import argparse
from pathlib import Path

import hocket
import torch
from hocket.optim import muon

for method in ("bp:accumulate=4", "adl:accumulate=4", "adl:accumulate=4+predict"):
    torch.manual_seed(0)
    # Any text will do, and this one is on every machine that has Python.
    text = hocket.data.load("text", data_dir=Path(argparse.__file__), batch_size=8, context=32)
    network = hocket.zoo.gpt(vocab=text.classes, context=32, depth=3, width=32, heads=2)
    trainer = hocket.Trainer(
        network,
        stages=hocket.Plan(("block1", "block2")),
        method=method,
        optimizer=muon(network, lr=1e-2, weight_decay=0.01),
        warmup_updates=5,
        clip="batch:1.0",
    )
    history = trainer.fit(text.train, updates=20, progress=False)
    print(
        f"{method:25} training loss {history[-1].loss:.3f} per character, "
        f"staleness of stage 0: {history[-1].staleness[0]:.2f}"
    )

# It prints:
#
#   bp:accumulate=4           training loss 3.174 per character, staleness of stage 0: 0.00
#   adl:accumulate=4          training loss 3.244 per character, staleness of stage 0: 0.71
#   adl:accumulate=4+predict  training loss 3.217 per character, staleness of stage 0: 0.71
