"""A small network and a batch, for rehearsals in this process or in others."""

import torch
from torch import nn

BATCH, WIDTH = 32, 64
FLOAT = 4


def build_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(2)
        ]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 5))


NETWORK = build_network()


def build_workload():
    return NETWORK, torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.long)
