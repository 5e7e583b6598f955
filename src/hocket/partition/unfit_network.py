"""Errors for networks that do not take a sample, or whose forward cannot be followed."""

import torch
from torch import nn

from hocket.errors import CutError, SampleError
from hocket.modes import evaluation_mode, training_mode
from hocket.partition.recording.recorder import call_network, devices_of
from hocket.partition.sequential import has_plain_forward
from hocket.restore import preserve_rng, restore_state
from hocket.tree import Tree, copy_tensors, tensors


def sample_error(
    network: nn.Module, sample: Tree, error: Exception, where: str = ""
) -> SampleError:
    """Return the error for a network whose forward fails on the sample.

    Args:
        network: The network.
        sample: Its inputs.
        error: Exception of the forward.
        where: Prefix of its message that names the layer, if known.

    Raises:
        OutOfMemoryError: The memory of the GPU was short, which is no matter of the sample.
    """
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    advice = "pass a batch of its inputs"
    if isinstance(error, TypeError) and isinstance(sample, dict | tuple | list):
        kind = type(sample).__name__
        given = "keyword arguments" if isinstance(sample, dict) else "arguments"
        advice += (
            f"; the first layer of an nn.Sequential gets a {kind} whole: give what it takes"
            if has_plain_forward(network)
            else f"; a {kind} is passed as {given}, and whole if it is the only item of a "
            "tuple, which split_batch can make of it"
        )
    shapes = ", ".join(str(tuple(value.shape)) for value in tensors(sample))
    refused = SampleError(
        f"cannot cut a {type(network).__name__} that does not take the sample, of shape "
        f"{shapes or 'none'}: {where}{error}; {advice}"
    )
    refused.reason = f"{where}{error}"
    return refused


def require_unscripted(network: nn.Module) -> None:
    """Refuse a network that was compiled as a whole by torch.jit.

    Raises:
        CutError: It was.
    """
    if isinstance(network, torch.jit.ScriptModule):
        raise CutError(
            "the network was compiled by torch.jit, which hides the calls of its modules; give "
            "the module that it was made from"
        )


def is_compiled(module: nn.Module) -> bool:
    """Return True for a module that torch.compile has compiled, in place or in a wrapper."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or hasattr(module, "_orig_mod")


def require_uncompiled(network: nn.Module) -> None:
    """Refuse a network with compiled modules.

    Raises:
        CutError: A module is compiled, or the network is scripted.
    """
    require_unscripted(network)
    for name, module in network.named_modules():
        if is_compiled(module):
            place = repr(name) if name else "at the top"
            raise CutError(
                f"cannot follow compiled code, and the module {place} is compiled; pass the "
                "network as it was before; the trainer's compile=True compiles stages of a "
                "chain of layers (nn.Sequential), and stages that are given as modules"
            )


def unfit_error(network: nn.Module, sample: Tree, error: Exception, otherwise: str) -> CutError:
    """Return the error for a network that fails without a cut, or while it is recorded.

    Args:
        network: The network.
        sample: Its inputs.
        error: The exception.
        otherwise: Message for a network whose forward alone fails in neither mode.

    Raises:
        OutOfMemoryError: The memory of the GPU was short.
    """
    refused = sample_error(network, sample, error)
    try:
        for mode in (training_mode, evaluation_mode):
            with (
                mode(network),
                restore_state(network),
                preserve_rng(devices_of(network)),
                torch.enable_grad(),
            ):
                call_network(network, copy_tensors(sample))
    except Exception:
        return refused
    return CutError(otherwise)
