"""Search for NaN and infinity in the tensors of a stage.

One norm over many tensors is cheap; only if it is not finite is each tensor searched, and only
then are names put together.
"""

import cmath
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress

import torch
from torch import Tensor, nn

from hocket.errors import NonFiniteError
from hocket.options.common_options import OnNaN
from hocket.stage.finite.late_check import LateCheck
from hocket.stage.layers.module_tensors import (
    BufferCopies,
    FindFlow,
    ModuleTensors,
    NetworkNames,
    present_buffer,
    restore_buffers,
)
from hocket.stage.report import Number
from hocket.stage.update.norms import (
    dense_values,
    largest_values,
    norm_of_norms,
    tensor_norms,
    total_norm,
)
from hocket.stage.update.updater import Updater
from hocket.tree import is_inexact


def first_nonfinite(
    named: Mapping[str, Tensor | None], norm_name: str | None = None
) -> str | None:
    """Describe the first tensor that is not finite; None if all are finite.

    Args:
        named: Tensors by name. Integers and booleans are not searched.
        norm_name: Name of the norm of all of them, if it has to be finite as well.

    >>> import torch
    >>> first_nonfinite({"output": torch.ones(2), "loss": torch.tensor([1.0, -torch.inf])})
    'loss became -inf'
    """
    searched = {
        name: dense_values(tensor.detach())
        for name, tensor in named.items()
        if tensor is not None and is_inexact(tensor)
    }
    if not searched:
        return None

    # One norm over all of them is cheap.
    norm = float(total_norm(list(searched.values())))
    if math.isfinite(norm):
        return None

    # Find the first tensor that has made it infinite.
    for name, tensor in searched.items():
        wrong = tensor[~tensor.isfinite()]
        if len(wrong):
            return f"{name} became {wrong[0].item()}"
    return None if norm_name is None else f"{norm_name} became {norm}"


def _read_norms(norms: list[Tensor]) -> list[float]:
    """Return norms as numbers; on a CPU by the shortest way, as this is done in every tick."""
    on_gpu = norms and not norms[0].is_cpu
    return torch.stack(norms).tolist() if on_gpu else [norm.item() for norm in norms]


def _are_moderate(norms: list[Tensor], values: list[float]) -> bool:
    """Return True if all norms are finite, and the norm of them as well.

    It may be False for finite norms whose types differ.
    """
    return math.hypot(*values) <= torch.finfo(norms[0].dtype).max


def are_finite(values: Sequence[Tensor]) -> bool:
    """Return True if no number is NaN or infinite; False may mean that a norm overflowed."""
    inexact = [value for value in values if is_inexact(value)]
    if len(inexact) == 1:
        return math.isfinite(torch.linalg.vector_norm(dense_values(inexact[0].detach())).item())
    norms = tensor_norms(inexact)
    return not norms or _are_moderate(norms, _read_norms(norms))


def _output_names(count: int) -> list[str]:
    return [f"output {n}" for n in range(count)] if count > 1 else ["output"]


class NonFiniteCheck:
    """Searches everything that a stage computes for NaN and infinity, and keeps buffers finite.

    A fault is a description, such as ``loss became nan``; None if there is no fault.

    Args:
        module: Layers of the stage. A buffer that is infinite now is so on purpose, as a mask.
        updater: Updater of the stage's weights.
        on_nan: Reaction to a batch with a fault.
        late: Check that finds the faults later, if it postpones them. Then nothing that is
            computed is read here, and no fault is returned.
        names: Names of buffers in the network.
    """

    def __init__(
        self,
        module: nn.Module,
        updater: Updater,
        on_nan: OnNaN,
        late: LateCheck,
        names: NetworkNames,
    ) -> None:
        self._late = late
        self._tensors = ModuleTensors(module)
        self._updater = updater
        self._on_nan = on_nan
        buffer_names = {id(buffer): name for name, buffer in names.of_buffers(module)}
        self._finite_buffers = [
            (buffer_names[id(buffer)], buffers, key)
            for buffers, key, buffer in self._tensors.buffers()
            if is_inexact(buffer) and first_nonfinite({key: buffer}) is None
        ]
        self._saved_buffers: BufferCopies = ()

    def save_buffers(self) -> None:
        """Save the buffers, such as BatchNorm's statistics, before a forward."""
        if not self._late.postpones:  # it has copies
            self._saved_buffers = self._tensors.copy_buffers()

    def restore_buffers(self) -> None:
        """Restore the buffers, as after a forward with a fault."""
        restore_buffers(self._saved_buffers)

    def fault_in_output(
        self, outputs: Sequence[Tensor], needs_gradient: FindFlow
    ) -> tuple[str | None, list[bool]]:
        """Look for a fault of a forward, in its output or in the buffers it has changed.

        Args:
            outputs: Tensors of the output.
            needs_gradient: Returns for each tensor of the output whether a gradient is to flow
                through it. In others infinity is no fault, as in a mask.

        Returns:
            The fault, and for each tensor of the output whether it is such a mask.
        """
        # Leave the norms to the late check, if it postpones. An output that no gradient flows
        # through then counts as a mask, without a look at it.
        if self._late.postpones:
            masks = [
                not flows and is_inexact(tensor)
                for tensor, flows in zip(outputs, needs_gradient(), strict=True)
            ]
            searched = [
                tensor.detach().masked_fill(tensor.isinf(), 0) if mask else tensor.detach()
                for tensor, mask in zip(map(dense_values, outputs), masks, strict=True)
            ]
            buffers = self._described_buffers()
            named = [*_output_names(len(outputs)), *buffers]
            self._late.add(lambda: named, largest_values([*searched, *buffers.values()]))
            return None, masks

        # Look at all of it at once.
        masks = [False] * len(outputs)
        if are_finite(outputs):
            return self.fault_in_buffers(), masks

        # Infinity is allowed where no gradient flows.
        names, outputs = _output_names(len(outputs)), list(map(dense_values, outputs))
        fault = first_nonfinite(dict(zip(names, outputs, strict=True)))
        if fault is not None:
            pairs = zip(outputs, needs_gradient(), strict=True)
            masks = [not needed and bool(tensor.isinf().any()) for tensor, needed in pairs]
            searched = [
                tensor[~tensor.isinf()] if mask else tensor
                for tensor, mask in zip(outputs, masks, strict=True)
            ]
            fault = first_nonfinite(dict(zip(names, searched, strict=True)))
        return fault or self.fault_in_buffers(), masks

    def fault_in_loss(self, loss: Tensor | None) -> str | None:
        """Return the fault of a loss of one number; None also if there is no loss."""
        if self._late.postpones and loss is not None:
            self._late.add(lambda: ["loss"], largest_values([loss.detach()]))
            return None
        value = 0.0 if loss is None else loss.item()
        return None if cmath.isfinite(value) else f"loss became {value}"

    def fault_in_buffers(self) -> str | None:
        """Return the fault in the buffers."""
        if not self._finite_buffers:
            return None
        if self._late.postpones:
            named = self._described_buffers()
            names = list(named)
            self._late.add(lambda: names, largest_values(list(named.values())))
            return None
        present = [present_buffer(buffers, key) for _, buffers, key in self._finite_buffers]
        if are_finite([buffer for buffer in present if buffer is not None]):
            return None
        return first_nonfinite(self._described_buffers())

    def _described_buffers(self) -> dict[str, Tensor]:
        """Return the buffers in which infinity is a fault, by descriptions."""
        present = [
            (name, present_buffer(buffers, key)) for name, buffers, key in self._finite_buffers
        ]
        return {f"buffer {name!r}": b for name, b in present if b is not None and is_inexact(b)}

    def fault_in_gradients(
        self, input_gradients: Sequence[Tensor | None]
    ) -> tuple[str | None, Number]:
        """Look for a fault of a backward, in gradients of weights or of the inputs.

        Args:
            input_gradients: Gradient of each input of the stage, (B, ...); None for none.

        Returns:
            The fault, and the Euclidean norm of the gradients of the weights; if the late check
            looks for faults, a scalar that is computed when it is read.
        """
        # Norms of all gradients; of the weights' ones a norm for the report.
        of_weights = [g for p in self._updater.parameters if (g := p.grad) is not None]
        of_inputs = [gradient for gradient in input_gradients if gradient is not None]
        norms = tensor_norms(of_weights + of_inputs)

        # Read them now, or leave that to the late check.
        if self._late.postpones and norms:
            trained = [p.grad is not None for p in self._updater.parameters]
            inputs_count = len(of_inputs)

            def names() -> list[str]:
                of_trained = compress(self._gradient_names(), trained)
                return [*of_trained, *(f"gradient of input {n}" for n in range(inputs_count))]

            self._late.add(names, norms)
            return None, partial(norm_of_norms, norms[: len(of_weights)])
        values = _read_norms(norms)
        norm = math.hypot(*values[: len(of_weights)])
        if not norms or _are_moderate(norms, values):
            return None, norm

        # Find the first gradient that is not finite.
        weights = {
            name: p.grad
            for name, p in zip(self._gradient_names(), self._updater.parameters, strict=True)
        }
        inputs = {f"gradient of input {n}": grad for n, grad in enumerate(input_gradients)}
        return first_nonfinite(weights | inputs, "gradient norm"), norm

    def _gradient_names(self) -> list[str]:
        return [f"gradient of {name!r}" for name in self._updater.names]

    def persistent_fault(self) -> str | None:
        """Return the fault in weights, buffers and optimizer state, which outlive a batch."""
        named = zip(self._updater.names, self._updater.parameters, strict=True)
        weights = {f"weight {name!r}": p for name, p in named}
        return (
            first_nonfinite(weights)
            or first_nonfinite(self._described_buffers())
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

    def norm_over_replicas(self, norm: Number, gradients: Sequence[Tensor | None]) -> Number:
        """Return the norm of a batch's gradients, over all replicas, which have been reduced.

        Raises:
            NonFiniteError: It is not finite, because a gradient of another replica was not.
        """
        if not self._updater.reduces:
            return norm
        whole = total_norm(gradients)
        if self._late.postpones:
            self._late.add(lambda: ["gradient norm"], [whole])
            return whole
        value = whole.item()
        self.require_skippable(
            None if math.isfinite(value) else f"gradient norm became {value}"
        )
        return whole
