"""A transformer with few weights, and texts for it, for optimizers of hidden matrices."""

import torch

from hocket import zoo


def gpt():
    torch.manual_seed(0)
    return zoo.gpt(vocab=7, context=4, width=8, depth=2, heads=2)


def texts(count):
    """Batches of three texts of four characters, each with the next one as its target."""
    make = torch.Generator().manual_seed(1)
    made = [torch.randint(7, (3, 5), generator=make) for _ in range(count)]
    return [(text[:, :-1], text[:, 1:]) for text in made]
