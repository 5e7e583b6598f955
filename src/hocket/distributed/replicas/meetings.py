"""Rare meetings of the replicas of a stage, which train alone in between.

In a meeting the replicas make one outer step from the common weights of the last one. Its
gradient, the outer gradient, is the common weights minus the mean of the replicas' weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hocket.distributed.failures.detector import Operation
from hocket.distributed.replicas.buckets import build_buckets
from hocket.distributed.replicas.exchange import Exchange
from hocket.distributed.replicas.meet import Meet

OWN_PART = 0.5
"""Part of its own weights that a replica keeps where the common ones come some updates later,
the paper's alpha (arXiv 2501.18512, algorithm 2)."""


class Meetings:
    """Meetings of one replica of a stage with the others.

    All replicas do the same updates, so that they meet without asking each other.

    Args:
        parameters: Weights of the stage, the same in all replicas at the beginning.
        meet: Times and outer step of the meetings.
        exchange: Exchange with the other replicas.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], meet: Meet, exchange: Exchange
    ) -> None:
        self._meet = meet
        self._fragments = [
            Fragment(parameters[number :: meet.fragments], meet, exchange)
            for number in range(meet.fragments)
        ]

    def before_update(self) -> None:
        """Keep the weights that all replicas begin with, before the first update."""
        for fragment in self._fragments:
            fragment.begin()

    def begin(self, updates: int) -> None:
        """Let the fragments begin to meet that are due after an update.

        Args:
            updates: Number of updates that the weights have seen.
        """
        every, count = self._meet.every, self._meet.fragments
        for number, fragment in enumerate(self._fragments):
            fragment.count_update()
            # The last fragment meets after `every` updates, and the others evenly before.
            if updates % every == (number + 1) * every // count % every:
                fragment.send()

    def complete(self) -> None:
        """Apply the results that are due after the same update."""
        overlap = self._meet.overlap
        for fragment in self._fragments:
            if fragment.age == overlap:
                fragment.receive(OWN_PART if overlap else 0.0)

    def begin_last(self) -> None:
        """Apply what is under way; let each fragment updated since then begin to meet."""
        for fragment in self._fragments:
            fragment.receive(OWN_PART)
            if fragment.apart:
                fragment.send()

    def complete_last(self) -> None:
        """Apply the results of these meetings."""
        for fragment in self._fragments:
            fragment.receive(0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the common weights, momenta and results that are under way."""
        return {"fragments": [fragment.state_dict() for fragment in self._fragments]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same replica."""
        for fragment, own in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_state_dict(own)


class Fragment:
    """Weights that meet at the same time.

    Attributes:
        age: Updates since the meeting whose result is under way; None if there is none.
        apart: True if the weights may differ between replicas.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], meet: Meet, exchange: Exchange
    ) -> None:
        self._buckets = build_buckets(parameters)
        self._meet = meet
        self._exchange = exchange
        self._common: list[Tensor] = []  # flat weights after the last outer step, by bucket
        self._velocities: list[Tensor] = []
        self._gradients: list[Tensor] = []  # outer ones of this replica, or their sums
        self._works: list[Operation] = []
        self.age: int | None = None
        self.apart = False

    def begin(self) -> None:
        """Keep the common weights, unless they are known."""
        if not self._common:
            self._common = self._weights()
            self._velocities = [torch.zeros_like(common) for common in self._common]

    def count_update(self) -> None:
        """Count an update, after which the weights may differ between replicas."""
        self.apart = True
        if self.age is not None:
            self.age += 1

    @torch.no_grad()
    def send(self) -> None:
        """Begin to add up the outer gradients of all replicas."""
        pairs = zip(self._common, self._weights(), strict=True)
        self._gradients = [common - own for common, own in pairs]
        self._works = [self._exchange.add_up(gradient) for gradient in self._gradients]
        self.age = 0

    @torch.no_grad()
    def receive(self, own_part: float) -> None:
        """Do the outer step that is under way, if there is one, and move the weights.

        Args:
            own_part: Part of its own weights that this replica keeps.
        """
        if self.age is None:
            return
        self._wait()
        for bucket, common, velocity, total in zip(
            self._buckets, self._common, self._velocities, self._gradients, strict=True
        ):
            # The outer step, as torch.optim.SGD(nesterov=True) does it.
            step = total / self._exchange.replicas
            if self._meet.outer_momentum:
                velocity.mul_(self._meet.outer_momentum).add_(step)
                step = step.add(velocity, alpha=self._meet.outer_momentum)
            common.add_(step, alpha=-self._meet.outer_lr)

            # The weights of this replica.
            parts = common.split([weight.numel() for weight in bucket])
            for weight, part in zip(bucket, parts, strict=True):
                new = part.view_as(weight)
                weight.copy_(own_part * weight + (1 - own_part) * new if own_part else new)
        self._gradients, self.age = [], None
        self.apart = own_part > 0

    def _weights(self) -> list[Tensor]:
        """Return the weights of each bucket as one vector (N,)."""
        return [torch.cat([w.detach().flatten() for w in bucket]) for bucket in self._buckets]

    def _wait(self) -> None:
        """Wait until the sums of the outer gradients have arrived."""
        self._exchange.complete(self._works, "a meeting of the replicas")
        self._works = []

    def state_dict(self) -> dict[str, Any]:
        """Return all that is remembered, as plain values."""
        self._wait()
        return {
            "common": list(self._common),
            "velocities": list(self._velocities),
            "ways": list(self._gradients),
            "age": self.age,
            "apart": self.apart,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same fragment."""
        self._common, self._velocities, self._gradients = (
            [
                value.to(bucket[0].device, copy=True)
                for value, bucket in zip(state[name], self._buckets, strict=False)
            ]
            for name in ("common", "velocities", "ways")
        )
        self.age, self.apart = state["age"], state["apart"]
