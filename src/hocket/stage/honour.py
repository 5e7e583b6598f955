"""What a stage must not contain for a late gradient to mean what was asked for.

Some layers save more than their weights and activations, or run again in the backward. Which
of them `stash` and `live` cannot honour was found by comparing gradients with references.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import parametrize

from hocket.errors import LinearizeError, OptionError, listed
from hocket.method import Linearize


def require_honoured(
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
        problems.append("use linearize='recompute'" + (" or 'stash'" * (linearize == "live")))
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


@contextmanager
def no_layer_runs(stage: int) -> Iterator[None]:
    """Inside, during a backward, a layer that runs again is an error.

    Activation checkpointing does that: it recomputes at the weights of now.

    Raises:
        LinearizeError: A layer ran.
    """

    def refuse(layer: nn.Module, _: object) -> None:
        raise LinearizeError(
            f"stage {stage}: a {type(layer).__name__} was forwarded again inside the backward, "
            f"as activation checkpointing does, at other weights than linearize asks for; "
            "use linearize='recompute', or remove the checkpointing"
        )

    handle = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
