"""Train a small GPT on the source of a Python module, with Muon and predicted weights.

What to learn: a method is also text, with its options and its remedies. ADL updates once in
four batches, so that gradients are late by fewer updates; `predict` lets a stage forward with
the weights that it expects at the backward. Muon trains hidden matrices, AdamW all else; what
a stage has of each is decided by the names of the whole network.
"""

import argparse
from pathlib import Path

import torch

import hocket
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
        f"stage 0 late by {history[-1].staleness[0]:.2f} updates"
    )

# It prints:
#
#   bp:accumulate=4           training loss 3.174 per character, stage 0 late by 0.00 updates
#   adl:accumulate=4          training loss 3.244 per character, stage 0 late by 0.71 updates
#   adl:accumulate=4+predict  training loss 3.217 per character, stage 0 late by 0.71 updates
