"""Leaves of a stage's graph, built from the packet that it has received."""

import subprocess
import sys

import pytest
import torch

from hocket.errors import PacketError
from hocket.stage.passes.edges import graph_leaves
from hocket.transport.packet import Activation


@pytest.mark.parametrize("flags", [(), (True,), (True, False, True)])
def test_an_activation_that_does_not_tell_of_each_tensor_is_refused(flags):
    packet = Activation(7, 0, (torch.ones(2), torch.ones(2)), flags, None)
    words = f"activation 7 has 2 tensors, and tells of {len(flags)} whether they are diff"
    with pytest.raises(PacketError, match=words):
        graph_leaves(packet)


TRAINING = """
import sys
import torch, hocket
from hocket.distributed.launching.deferred_compiler import defer_compiler

defer_compiler()  # as the command line does
torch.manual_seed(0)
trainer = hocket.Trainer(
    hocket.zoo.mlp(in_features=4, hidden=[4, 4], num_classes=2),
    stages=3,
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
)
inputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
trainer.prepare(inputs)
before = set(sys.modules)
for _ in range(6):
    trainer.step(inputs, targets)
imported = set(sys.modules) - before
print([name for name in imported if name.startswith(("sympy", "torch.fx", "torch._dynamo"))])
"""


def test_no_tick_imports_what_a_backward_needs():
    """It would count as work of the stage whose action comes first."""
    run = subprocess.run(
        [sys.executable, "-c", TRAINING], check=True, capture_output=True, text=True
    )
    assert run.stdout == "[]\n"
