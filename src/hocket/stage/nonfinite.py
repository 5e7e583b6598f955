"""Search for NaN and infinity in the tensors of a stage.

One norm over many tensors is cheap; only if it is not finite is each tensor searched.
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
"""Reaction to a batch with NaN or infinity: stop the training, or skip the batch."""


def first_nonfinite(
    named: Mapping[str, Tensor | None], norm_name: str | None = None
) -> str | None:
    """Describe the first tensor that is not finite; None if all are finite.

    Args:
        named: Tensors by name. Tensors of another kind than floating point are not searched.
        norm_name: Name of the norm of all of them, if it has to be finite as well.

    >>> import torch
    >>> first_nonfinite({"output": torch.ones(2), "loss": torch.tensor([1.0, -torch.inf])})
    'loss became -inf'
    """
    searched = {
        name: tensor.detach()
        for name, tensor in named.items()
        if tensor is not None and tensor.is_floating_point()
    }
    norm = float(total_norm(list(searched.values())))
    if math.isfinite(norm):
        return None
    for name, tensor in searched.items():
        wrong = tensor[~tensor.isfinite()]
        if len(wrong):
            return f"{name} became {float(wrong[0])}"
    return None if norm_name is None else f"{norm_name} became {norm}"


class NonFiniteCheck:
    """Searches all that a stage computes for NaN and infinity, and keeps its buffers finite.

    A fault is described in words, such as ``loss became nan``; None stands for no fault.

    Args:
        module: Layers of the stage. A buffer that is infinite now is so on purpose, as a mask.
        updater: Updater of the stage's weights.
        on_nan: Reaction to a batch with a fault.
    """

    def __init__(self, module: nn.Module, updater: Updater, on_nan: OnNaN) -> None:
        self._module = module
        self._updater = updater
        self._on_nan = on_nan
        self._finite_buffers = [
            name
            for name, buffer in module.named_buffers()
            if first_nonfinite({name: buffer}) is None
        ]
        self._saved_buffers: dict[str, Tensor] = {}
        self._parameter_names = {id(p): repr(name) for name, p in module.named_parameters()}

    def save_buffers(self) -> None:
        """Save the buffers, such as BatchNorm's statistics, before a forward."""
        self._saved_buffers = {
            name: buffer.clone() for name, buffer in self._module.named_buffers()
        }

    def restore_buffers(self) -> None:
        """Restore the buffers, as after a forward with a fault."""
        for name, buffer in self._module.named_buffers():
            # As data, for graphs in flight hold the buffers and no version is to count:
            # BatchNorm's kernels change their statistics in the same way.
            buffer.data.copy_(self._saved_buffers[name])

    def fault_in_output(self, output: Tree) -> str | None:
        """Return the fault of a forward, in its output or in the buffers it has changed."""
        outputs = tensors(output)
        named = (
            {"output": outputs[0]}
            if len(outputs) == 1
            else {f"output {n}": tensor for n, tensor in enumerate(outputs)}
        )
        return first_nonfinite(named) or self.fault_in_buffers()

    def fault_in_buffers(self) -> str | None:
        """Return the fault in the buffers."""
        buffers = dict(self._module.named_buffers())
        return first_nonfinite(
            {f"buffer {name!r}": buffers.get(name) for name in self._finite_buffers}
        )

    def fault_in_gradients(self, leaves: Sequence[Tensor]) -> str | None:
        """Return the fault of a backward, in gradients of weights or of the inputs."""
        weights = {
            f"gradient of {self._parameter_names.get(id(p), f'auxiliary weight {n}')}": p.grad
            for n, p in enumerate(self._updater.parameters)
        }
        inputs = {f"gradient of input {n}": leaf.grad for n, leaf in enumerate(leaves)}
        return first_nonfinite(weights | inputs, "gradient norm")

    def persistent_fault(self) -> str | None:
        """Return the fault in weights, buffers and optimizer state, which outlive a batch."""
        weights = {
            f"weight {self._parameter_names.get(id(p), f'{n} of the auxiliary network')}": p
            for n, p in enumerate(self._updater.parameters)
        }
        return (
            first_nonfinite(weights)
            or self.fault_in_buffers()
            or first_nonfinite(self._updater.optimizer_tensors())
        )

    def require_skippable(self, fault: str | None) -> None:
        """Let a batch with this fault be skipped, if skipping helps and is allowed.

        Raises:
            NonFiniteError: A fault is to stop the training, or weights have one already.
        """
        if fault is None:
            return
        persistent = self.persistent_fault()
        if self._on_nan == "stop" or persistent is not None:
            raise NonFiniteError(
                f"the {persistent or fault}; this stage's weights are those before this batch; "
                "lower the learning rate, warm up, or look at the batch"
            )

    def compute_gradient_norm(self, gradients: Sequence[Tensor | None]) -> float:
        """Return the Euclidean norm of gradients that were reduced over replicas.

        Raises:
            NonFiniteError: It is not finite, because that of another replica was not.
        """
        norm = float(total_norm(gradients))
        self.require_skippable(None if math.isfinite(norm) else f"gradient norm became {norm}")
        return norm
