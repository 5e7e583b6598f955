"""Whether stages compute what the network does: outputs, gradients, statistics, to the bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.errors import CutError, listed
from hocket.modes import evaluation_mode
from hocket.partition.recorder import call_network, sample_error
from hocket.tree import Tree, as_leaf, copy_tensors, map_tensors, tensors

SEED = 0
Same = Callable[[Tensor | None, Tensor | None], bool]


@dataclass(frozen=True)
class _Pass:
    """What came of a forward and a backward.

    Attributes:
        outputs: The tensors of the output.
        gradients: Of each parameter, None where there is none.
        buffers: As they are afterwards.
    """

    outputs: tuple[Tensor, ...]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def verify_stages(network: nn.Module, stages: Sequence[nn.Module], sample: Tree) -> None:
    """Refuse stages that, one behind the other, are not the network.

    Both run on the sample in the mode they are in and in evaluation, with the same random
    numbers. Afterwards weights, gradients, buffers and random numbers are as they were. On a
    CPU outputs and gradients must be equal bit by bit; on a GPU, where two runs of one network
    may differ, close.

    Raises:
        CutError: With everything that differs; or the network does not take the sample.
    """
    problems: list[str] = []
    same = _close if _cuda(network) else _equal
    modes: tuple[tuple[str, list[nn.Module]], ...] = (
        ("in its present mode", []),
        ("in evaluation", [network, *stages]),
    )
    for words, modules in modes:
        with evaluation_mode(*modules), _gradients_kept(network):
            try:
                wanted = _pass(network, [network], sample)
            except Exception as error:
                raise sample_error(network, sample, error) from error
            try:
                found = _pass(network, stages, sample)
            except CutError:
                raise
            except Exception as error:
                problems.append(f"{words} the stages fail: {error}".partition("\n")[0])
                continue
            problems += [f"{words} {text}" for text in _differences(wanted, found, same)]
    if problems:
        problems.append("cut elsewhere, or give the stages as a list of modules")
        raise CutError(
            listed(f"cut into {len(stages)} stages, this network is not what it was", problems)
        )


@contextmanager
def _gradients_kept(network: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.grad) for parameter in network.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def _pass(network: nn.Module, stages: Sequence[nn.Module], sample: Tree) -> _Pass:
    """Forward and backward through the stages, with a graph of its own in each."""
    network.zero_grad(set_to_none=True)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with torch.random.fork_rng(devices=_cuda(network)), torch.enable_grad():
        torch.manual_seed(SEED)
        value: Tree = copy_tensors(sample)
        passed: list[tuple[Tree, Tree]] = []
        for number, stage in enumerate(stages):
            given = map_tensors(as_leaf, value) if number else value
            # Copies, as a stage may change in place what it was given.
            entered = copy_tensors(given)
            value = call_network(stage, entered) if stage is network else stage(entered)
            passed.append((given, value))
        outputs = tuple(output.detach().clone() for output in tensors(value))
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        gradients: list[Tensor | None] = [torch.randn(o.shape).to(o) for o in outputs]
        for given, output in reversed(passed):
            pairs = zip(tensors(output), gradients, strict=True)
            live = [(o, g) for o, g in pairs if o.requires_grad and g is not None]
            if live:
                torch.autograd.backward([o for o, _ in live], [g for _, g in live])
            gradients = [entry.grad for entry in tensors(given)]
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(before[name])
    weights = {name: parameter.grad for name, parameter in network.named_parameters()}
    return _Pass(outputs, weights, buffers)


def _differences(wanted: _Pass, found: _Pass, same: Same) -> Iterator[str]:
    """What is not the same."""
    if len(wanted.outputs) != len(found.outputs):
        yield f"there are {len(found.outputs)} outputs instead of {len(wanted.outputs)}"
    elif not all(map(same, wanted.outputs, found.outputs)):
        yield "the outputs differ"
    for kind, old, new in (
        ("gradient", wanted.gradients, found.gradients),
        ("buffer", wanted.buffers, found.buffers),
    ):
        names = [name for name in old if not same(old[name], new[name])]
        if names:
            yield f"the {kind} of {' and '.join(map(repr, names[:3]))} differs"


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def _cuda(network: nn.Module) -> list[int]:
    """The GPUs that the network is on."""
    return sorted({p.device.index for p in network.parameters() if p.is_cuda})
