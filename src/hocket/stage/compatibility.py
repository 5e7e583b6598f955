"""Check that the layers of a stage are compatible with the linearization of late gradients.

Some layers save more than their weights and activations, or run again in the backward. Which
of them are incompatible with `stash` and `live` was found by comparing gradients with
references.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from hocket.errors import LinearizeError, OptionError, format_problems
from hocket.methods.method import Linearize


def check_compatible(
    module: nn.Module, linearize: Linearize, delay: int, stage: int, precision: str
) -> None:
    """Refuse a stage whose late gradients would not be those of ``linearize``.

    Args:
        module: Layers of the stage.
        linearize: Weights that a late gradient is applied at.
        delay: Ticks between a forward and its backward.
        stage: Number of the stage, for the message.
        precision: Name of the precision, such as ``fp32``.

    Raises:
        OptionError: There are incompatible layers; the message lists all of them.
    """
    if delay == 0 or linearize == "recompute":
        return
    problems = []
    for name, layer in module.named_modules():
        owner = f"layer {name!r}" if name else "the stage"
        if _is_compiled(layer):
            problems.append(f"{owner} is compiled, which may recompute parts at other weights")
        if linearize == "live" and _uses_derived_weights(layer):
            problems.append(
                f"{owner} ({type(layer).__name__}) computes with copies of its weights, "
                "which stay those of the forward"
            )
    if linearize == "live" and precision != "fp32":
        problems.append(
            f"precision {precision!r} computes with copies of the weights made in the forward"
        )
    if problems:
        stash = " or 'stash'" if not any(map(_is_compiled, module.modules())) else ""
        problems.append(f"use linearize='recompute'{stash if linearize == 'live' else ''}")
        raise OptionError(
            format_problems(
                f"stage {stage} is not compatible with linearize={linearize!r}", problems
            )
        )


def _is_compiled(layer: nn.Module) -> bool:
    compiled_call = getattr(layer, "_compiled_call_impl", None)
    return compiled_call is not None or type(layer).__name__ == "OptimizedModule"


def _uses_derived_weights(layer: nn.Module) -> bool:
    """Return True if a layer computes with tensors made from its parameters, not with them."""
    hooks = layer._forward_pre_hooks.values()
    normed = any(type(hook).__name__ in ("WeightNorm", "SpectralNorm") for hook in hooks)
    return normed or isinstance(layer, nn.RNNBase) or parametrize.is_parametrized(layer)


class ForbidForward(TorchFunctionMode):
    """Context manager for a backward in which a forward is an error.

    Activation checkpointing does such a forward: it recomputes at the current weights. The
    backward itself, and a custom autograd function in it, runs without gradients; a forward
    that is to be differentiated enables them, or is followed by a backward of its own.

    The mode sees the calls of Python only, not the operations of autograd: a dispatch mode
    would take every operation of the backward through Python. A call with tensors is handed to
    the mode, which is off during that call; so the backward has to be called with edges of the
    graph.

    Args:
        stage: Number of the stage, for the message.

    Raises:
        LinearizeError: There was a forward.
    """

    def __init__(self, stage: int) -> None:
        super().__init__()
        self._stage = stage

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.is_grad_enabled() or func is torch.autograd.backward:
            raise LinearizeError(
                f"stage {self._stage}: something was forwarded again inside the backward, as "
                "activation checkpointing does, at other weights than linearize asks for; "
                "use linearize='recompute', or remove the checkpointing"
            )
        return func(*args, **(kwargs or {}))
