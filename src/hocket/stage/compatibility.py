"""What a stage must not contain for a late gradient to mean what was asked for.

Some layers save more than their weights and activations, or run again in the backward. Which
of them `stash` and `live` cannot honour was found by comparing gradients with references.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from hocket.errors import LinearizeError, OptionError, listed
from hocket.methods.method import Linearize


def check_compatible(
    module: nn.Module, linearize: Linearize, delay: int, stage: int, precision: str
) -> None:
    """Refuse a stage whose late gradients would not be those of ``linearize``.

    Raises:
        OptionError: With every layer that stands in the way.
    """
    if delay == 0 or linearize == "recompute":
        return
    problems = []
    for name, layer in module.named_modules():
        here = f"layer {name!r}" if name else "the stage"
        if _compiled(layer):
            problems.append(f"{here} is compiled, which may recompute parts at other weights")
        if linearize == "live" and _derived(layer):
            problems.append(
                f"{here} ({type(layer).__name__}) computes with copies of its weights, "
                "which stay those of the forward"
            )
    if linearize == "live" and precision != "fp32":
        problems.append(
            f"precision {precision!r} computes with copies of the weights made in the forward"
        )
    if problems:
        stash = " or 'stash'" if not any(map(_compiled, module.modules())) else ""
        problems.append(f"use linearize='recompute'{stash if linearize == 'live' else ''}")
        raise OptionError(
            listed(f"stage {stage} cannot honour linearize={linearize!r}", problems)
        )


def _compiled(layer: nn.Module) -> bool:
    compiled_call = getattr(layer, "_compiled_call_impl", None)
    return compiled_call is not None or type(layer).__name__ == "OptimizedModule"


def _derived(layer: nn.Module) -> bool:
    """Whether the layer computes with tensors made from its parameters, not with them."""
    hooks = layer._forward_pre_hooks.values()
    normed = any(type(hook).__name__ in ("WeightNorm", "SpectralNorm") for hook in hooks)
    return normed or isinstance(layer, nn.RNNBase) or parametrize.is_parametrized(layer)


class ForwardForbidden(TorchFunctionMode):
    """Inside, during a backward, a forward is an error.

    Activation checkpointing does that: it recomputes at the weights of now. A backward itself,
    and what a custom autograd function computes in it, runs without gradients; a forward that
    is to be differentiated switches them on, or is followed by a backward of its own.

    It looks at what Python calls, not at what autograd does by itself: a dispatch mode would
    take every operation of the backward through Python. A call with tensors is handed to the
    mode, which is off while that call lasts; so the backward itself is to be given edges of
    the graph.

    Args:
        stage: The stage, for the message.

    Raises:
        LinearizeError: Something was forwarded.
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
