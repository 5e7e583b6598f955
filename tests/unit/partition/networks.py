"""Networks as users write them, with functions between their layers."""

import torch
from torch import nn
from torch.nn import functional as F

from hocket import cut
from hocket.partition import call_network


class Glued(nn.Module):
    """Network with view, relu and pooling between its layers, as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1)
        self.fc1 = nn.Linear(24, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        x = F.dropout(F.relu(self.fc1(x)), 0.4, training=self.training)
        return self.fc2(x)


class Block(nn.Module):
    """Residual block that uses one ReLU twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.norm1 = nn.BatchNorm1d(width)
        self.relu = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        out = self.relu(self.norm1(self.fc1(x)))
        out = self.fc2(out)
        out += x
        return self.relu(out)


class Skips(nn.Module):
    """Network of residual blocks in a list, with a skip connection over all of them."""

    def __init__(self, blocks: int = 3, width: int = 5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.stem = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x):
        first = self.stem(x) * self.scale
        h = first
        for block in self.blocks:
            h = self.drop(block(h))
        return self.head(torch.cat([h, first], dim=1))


class Words(nn.Module):
    """Network with two keyword inputs, position embeddings, and a tree as output."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 6)
        self.register_buffer("offset", torch.ones(1, dtype=torch.long))
        self.position = nn.Embedding(9, 6)
        self.layer = nn.Linear(6, 6)
        self.mixed = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, ids, mask=None):
        h = self.token(ids) + self.position(torch.arange(ids.shape[1]) + self.offset)
        h = torch.tanh(self.layer(h))
        if mask is not None:
            h = h * mask.unsqueeze(-1)
        h = self.mixed(h)
        if mask is not None:
            h = h.masked_fill(mask.unsqueeze(-1) == 0, 0.0)
        return {"scores": self.head(h), "state": (h, 3)}


class Chain(nn.Module):
    """Layers one after the other, in a forward of the network's own."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Layers(nn.Module):
    """Three layers, for a forward that a test gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))


class Two(Layers):
    """Network of two positional inputs; the second is used at the end only."""

    def forward(self, a, b):
        return self.third(self.second(self.first(a).sigmoid())) + b


def glued():
    return Glued(), torch.randn(3, 1, 8, 8)


def skips():
    return Skips(), torch.randn(3, 4)


def words():
    return Words(), {"ids": torch.randint(0, 11, (3, 5)), "mask": torch.ones(3, 5)}


def two():
    return Two(), (torch.randn(3, 4), torch.randn(3, 4))


def nested():
    inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Block(4)))
    return nn.Sequential(inner, nn.Flatten(), nn.Linear(4, 2)), torch.randn(3, 4)


def assert_same(network, plan, sample, *batches):
    """Cut a network, fail unless its stages give the same bits for batches, and return them."""
    stages = cut(network, stages=plan, sample=sample)
    for batch in batches:
        outputs = nn.Sequential(*stages)(batch), call_network(network, batch)
        torch.testing.assert_close(*outputs, rtol=0, atol=0)
    return stages


NETWORKS = (glued, skips, words, two, nested)
