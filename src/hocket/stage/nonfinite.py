"""Numbers of a stage that are NaN or infinite: which tensor has them, and what becomes of it.

One norm over many tensors is cheap; only where that is not finite is each one looked at.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from hocket.errors import NonFiniteError
from hocket.stage.accumulate import total_norm
from hocket.stage.optimizer import Updater
from hocket.tree import Tree, tensors

OnNaN = Literal["stop", "skip"]
"""What a batch whose numbers are not finite comes to: it stops the training, or is skipped."""


def first_nonfinite(named: Mapping[str, Tensor | None], norm: str | None = None) -> str | None:
    """What the first tensor that is not finite became, in words; None if all are finite.

    Args:
        named: Tensors by what to call them; of others than floating point nothing is asked.
        norm: What to call the norm of all of them, if that has to be finite as well.

    >>> import torch
    >>> fault_in({"output": torch.ones(2), "loss": torch.tensor([1.0, -torch.inf])})
    'loss became -inf'
    """
    found = {
        name: tensor.detach()
        for name, tensor in named.items()
        if tensor is not None and tensor.is_floating_point()
    }
    size = float(total_norm(list(found.values())))
    if math.isfinite(size):
        return None
    for name, tensor in found.items():
        wrong = tensor[~tensor.isfinite()]
        if len(wrong):
            return f"{name} became {float(wrong[0])}"
    return None if norm is None else f"{norm} became {size}"


class NonFiniteCheck:
    """Looks at what a stage computes, and keeps its buffers clean.

    Args:
        module: The stage's layers; a buffer that is infinite now is so on purpose, as a mask.
        updater: What their gradients go to.
        on_nan: What becomes of a batch whose numbers are not finite.
    """

    def __init__(self, module: nn.Module, updater: Updater, on_nan: OnNaN) -> None:
        self._module = module
        self._updater = updater
        self._non_finite = on_nan
        buffers = module.named_buffers()
        self._finite = [name for name, own in buffers if first_nonfinite({name: own}) is None]
        self._kept: dict[str, Tensor] = {}
        self._names = {id(p): repr(name) for name, p in module.named_parameters()}

    def keep(self) -> None:
        """Remember the buffers, such as BatchNorm's statistics, before a forward."""
        self._kept = {name: own.clone() for name, own in self._module.named_buffers()}

    def restore(self) -> None:
        """Make them what they were, as after a forward that was not finite."""
        for name, own in self._module.named_buffers():
            # As data, for graphs in flight hold them and no version is to count: BatchNorm's
            # kernels change their statistics in the same way.
            own.data.copy_(self._kept[name])

    def output(self, output: Tree) -> str | None:
        """What is not finite of a forward: its output, or what it left in the buffers."""
        found = {f"output {n}": each for n, each in enumerate(tensors(output))}
        return first_nonfinite({"output": found["output 0"]} if len(found) == 1 else found) or (
            self.buffers()
        )

    def buffers(self) -> str | None:
        """What is not finite of the buffers."""
        own = dict(self._module.named_buffers())
        return first_nonfinite({f"buffer {name!r}": own.get(name) for name in self._finite})

    def gradients(self, leaves: Sequence[Tensor]) -> str | None:
        """What is not finite of a backward: gradients of weights, or of the inputs."""
        own = {
            f"gradient of {self._names.get(id(p), f'auxiliary weight {n}')}": p.grad
            for n, p in enumerate(self._updater.parameters)
        }
        inputs = {f"gradient of input {n}": leaf.grad for n, leaf in enumerate(leaves)}
        return first_nonfinite(own | inputs, "gradient norm")

    def persistent_fault(self) -> str | None:
        """What is not finite of all that stays from batch to batch."""
        own = {
            f"weight {self._names.get(id(p), f'{n} of the auxiliary network')}": p
            for n, p in enumerate(self._updater.parameters)
        }
        return (
            first_nonfinite(own)
            or self.buffers()
            or first_nonfinite(self._updater.optimizer_tensors())
        )

    def require_skippable(self, fault: str | None) -> None:
        """Let a batch with this fault be skipped.

        Raises:
            NonFiniteError: A fault stops the training, or one lasts that no skipping mends.
        """
        if fault is None:
            return
        lasting = self.persistent_fault()
        if self._non_finite == "stop" or lasting is not None:
            raise NonFiniteError(
                f"the {lasting or fault}; this stage's weights are those before this batch; "
                "lower the learning rate, warm up, or look at the batch"
            )

    def norm(self, gradients: Sequence[Tensor | None]) -> float:
        """The Euclidean norm of gradients, as they are after replicas have added them up.

        Raises:
            NonFiniteError: It is not finite, as one of another replica was not.
        """
        size = float(total_norm(gradients))
        self.require_skippable(None if math.isfinite(size) else f"gradient norm became {size}")
        return size
