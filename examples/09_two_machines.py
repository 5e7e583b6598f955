"""Train one network on two machines; 09_two_machines.sh starts this script on each of them.

What to learn: the script is the one that trains in one process. Under torchrun each process
takes one stage; all build the same network and the same loader, and only the first stage reads
the batches. `fit` returns the same results everywhere and leaves all weights in every process;
one of them prints and writes files.
"""

import sys

import hocket
import torch

torch.set_num_threads(1)  # equal bits need equal numbers of threads
torch.manual_seed(0)
digits = hocket.data.load("digits", batch_size=32)
network = hocket.zoo.mlp(in_features=64, hidden=[64, 64], num_classes=digits.classes)
with hocket.Trainer(
    network,
    stages=2,
    # Forward first, so that a stage works on another batch while a packet crosses the link.
    method=hocket.FDG(order="forward-first"),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
) as trainer:
    history = trainer.fit(digits.train, digits.test, epochs=2, progress=False)
    if trainer.is_main_process:
        print(f"test error {history[-1].evaluation.error:.1%}, one stage on each machine")
        if len(sys.argv) > 1:
            torch.save(network.state_dict(), sys.argv[1])

# It prints:
#
#   test error 20.6%, one stage on each machine
