"""Comparison of stages with the network: outputs, gradients and buffers, bit by bit."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from hocket.errors import CutError, format_problems, warn
from hocket.modes import evaluation_mode, training_mode
from hocket.partition.recording.recorder import call_network, devices_of
from hocket.partition.unfit_network import unfit_error
from hocket.restore import preserve_rng, restore_state
from hocket.tree import Tree, as_leaf, copy_tensors, is_inexact, leaves, map_tensors, tensors

SEED = 0
ROUNDING = 64
"""Machine epsilons by which norms may differ, relatively, if a sum runs in another order."""
NO_NUMBERS = (
    "the output has no numbers, as of something that is kept in a module or by a hook, and "
    "read from there later; let the module that computes it return it"
)
Compare = Callable[[Tensor, Tensor], bool]
"""Function that returns True for two tensors that are equal."""
Result = Tensor | bool | int | float | complex | None
"""Tensor or number of an output, or a gradient."""
T = TypeVar("T")


@dataclass(frozen=True)
class _Pass:
    """Results of a forward and a backward.

    Attributes:
        outputs: Tensors and numbers of the output.
        gradients: Gradient of each parameter; None if it has none.
        buffers: Buffers after the forward.
    """

    outputs: tuple[Result, ...]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def verify_stages(network: nn.Module, stages: Sequence[nn.Module], sample: Tree) -> None:
    """Check that stages in sequence compute the same as the network.

    Both run on the sample in training mode and in evaluation, with the same random state. In
    training mode they forward it once more, as a network may keep something from batch to
    batch. In evaluation without gradients the stages only have to run, if the network does.
    A network without a backward in evaluation is compared there without gradients.
    Layers in evaluation mode stay in it in a network that is in training mode, as in `fit`.
    Gradients, buffers and random state are restored afterwards. On a CPU, results that are not
    equal bit by bit but within the rounding of a sum are warned of: a gradient that crosses a
    cut becomes contiguous, and sums of other strides may run in another order. On a GPU, where
    two runs of one network may differ, results must be nearly equal.

    Args:
        network: The network.
        stages: Its stages.
        sample: A batch of its inputs.

    Raises:
        CutError: Something differs, with all differences; or the network does not take the
            sample, or fails in its backward in training mode.
        OutOfMemoryError: The memory of the GPU was short.
    """
    problems: list[str] = []
    rounded: list[str] = []
    on_gpu = any(device.type == "cuda" for device in devices_of(network))
    compare = _nearly_equal if on_gpu else _equal_but_for_rounding

    # Compare the stages with the whole network, in both modes.
    modes = (("in training mode", training_mode), ("in evaluation", evaluation_mode))
    for name, mode in modes:
        with mode(network, *stages):
            expected, grad = _run_whole(network, sample, learns=mode is training_mode)
            if not tensors(expected.outputs):
                raise CutError(
                    "no tensors are found in the output of the network; return a tuple, list "
                    "or dict of them, or register its class with "
                    "torch.utils._pytree.register_pytree_node"
                )
            actual = _try(partial(_run, network, stages, sample, grad=grad))
            if isinstance(actual, str):
                problems.append(f"{name} the stages fail: {actual}")
                continue
            if any(isinstance(o, FakeTensor) or o.is_meta for o in tensors(actual.outputs)):
                problems.append(f"{name} {NO_NUMBERS}")
                continue
            noise = _noise(expected.gradients)
            found = _differences(expected, actual, compare, noise)
            problems += [f"{name} {text}" for text in found]
            if not on_gpu:
                rounded += _differences(expected, actual, torch.equal)

    # Compare without gradients, and on a second batch.
    _compare_without_gradients(network, stages, sample, problems)
    if not problems:
        _compare_a_second_batch(network, stages, sample, compare, problems)
    if problems:
        problems.append("cut elsewhere, or give the stages as a list of modules")
        title = f"cut into {len(stages)} stages, this network computes something else"
        raise CutError(format_problems(title, problems))
    if rounded:
        warn(
            f"cut into {len(stages)} stages, this network computes the same but for rounding, "
            f"as sums over tensors of other strides run in another order: {rounded[0]}"
        )


def _run_whole(network: nn.Module, sample: Tree, *, learns: bool) -> tuple[_Pass, bool]:
    """Return the pass of a network that is not cut, and whether it has a backward.

    Raises:
        CutError: The network does not take the sample, or learns and has no backward.
    """
    try:
        return _run(network, [network], sample), True
    except Exception as error:
        otherwise = (
            f"cannot cut a {type(network).__name__} whose backward fails without a cut as "
            f"well: {error}; change its forward so that loss.backward() works"
        )
        unfit = unfit_error(network, sample, error, otherwise)
        if learns:
            raise unfit from error
        try:  # cuDNN's recurrent layers have no backward in evaluation
            return _run(network, [network], sample, grad=False), False
        except Exception:
            raise unfit from error


def _try(run: Callable[[], T]) -> T | str:
    """Return what a function computes, or the first line of its error.

    Raises:
        OutOfMemoryError: The memory of the GPU was short.
    """
    try:
        return run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return str(error).partition("\n")[0]


def _compare_a_second_batch(
    network: nn.Module,
    stages: Sequence[nn.Module],
    sample: Tree,
    compare: Compare,
    problems: list[str],
) -> None:
    """Add a difference that only the second of two forwards shows.

    Each stage repeats what the forward of a divided module does with its attributes, so one
    that counts its forwards counts as many for each batch as there are stages.
    """
    with training_mode(network, *stages):
        expected, attributes = _forward_twice(network, [network], sample)
        found = _try(partial(_forward_twice, network, stages, sample))
    if isinstance(found, str):
        problems.append(f"in training mode the stages fail with a second batch: {found}")
        return
    actual, _ = found
    if len(expected) != len(actual) or not all(map(partial(_both, compare), expected, actual)):
        kept = f" in the attribute {' and '.join(attributes)}" if attributes else ""
        problems.append(
            "in training mode the outputs for a second batch differ, as the forward of a "
            f"divided module keeps something from batch to batch{kept}, and each stage repeats "
            "that; keep it in a buffer, or in a module of its own that uses it"
        )


def _forward_twice(
    network: nn.Module, stages: Sequence[nn.Module], sample: Tree
) -> tuple[tuple[Result, ...], list[str]]:
    """Return the results of a second forward, and the names of attributes that changed."""
    with _same_state(network, grad=True):
        before = _named_numbers(network)
        for _ in range(2):
            passed = _forward(network, stages, sample)
        changed = dict(_named_numbers(network) - before)
    return _copy_results(passed[-1][1]), sorted(map(repr, changed))


def _copy_results(output: Tree) -> tuple[Result, ...]:
    """Return the tensors and numbers of an output; the tensors are copies without a graph."""
    return tuple(
        leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
        for leaf in leaves(output)
        if isinstance(leaf, Tensor | int | float | complex)
    )


def _named_numbers(network: nn.Module) -> set[tuple[str, Any]]:
    """Return the numbers and texts among the attributes of all modules, by name."""
    return {
        (f"{path}.{name}".lstrip("."), value)
        for path, module in network.named_modules()
        for name, value in vars(module).items()
        if type(value) in (bool, int, float, str)
    }


def _compare_without_gradients(
    network: nn.Module, stages: Sequence[nn.Module], sample: Tree, problems: list[str]
) -> None:
    """Add the error of stages that fail where no graph is built, and the network does not.

    A network that differentiates in its own forward fails there without a cut as well, and can
    still be trained. Outputs are not compared: PyTorch's own layers may take other ways there.

    Raises:
        OutOfMemoryError: The memory of the GPU was short.
    """
    run = partial(_run, network, sample=sample, grad=False)
    with evaluation_mode(network, *stages):
        failure = _try(partial(run, stages))
        if isinstance(failure, str) and not isinstance(_try(partial(run, [network])), str):
            problems.append(f"in evaluation without gradients the stages fail: {failure}")


@contextmanager
def _same_state(network: nn.Module, *, grad: bool) -> Iterator[None]:
    """Context manager that begins with the same random numbers and without gradients.

    The network has its own gradients and its state again afterwards.
    """
    saved = [(parameter, parameter.grad) for parameter in network.parameters()]
    network.zero_grad(set_to_none=True)
    try:
        with (
            restore_state(network),
            preserve_rng(devices_of(network)),
            torch.set_grad_enabled(grad),
        ):
            torch.default_generator.manual_seed(SEED)  # of no GPU that the network is not on
            for device in devices_of(network):
                if device.type == "cuda":
                    with torch.cuda.device(device):
                        torch.cuda.manual_seed(SEED)
            random.seed(SEED)
            numpy.random.seed(SEED)
            yield
    finally:
        for parameter, gradient in saved:
            parameter.grad = gradient


def _run(
    network: nn.Module, stages: Sequence[nn.Module], sample: Tree, *, grad: bool = True
) -> _Pass:
    """Run forward and backward of the stages, or of the network alone; restore its buffers.

    Each stage has its own graph. Without ``grad`` there is no graph, and no backward.
    """
    with _same_state(network, grad=grad):
        passed = _forward(network, stages, sample)
        outputs = _copy_results(passed[-1][1])
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}

        # Backward, from random gradients of the outputs.
        gradients: list[Tensor | None]
        gradients = [torch.randn(o.shape, device="cpu").to(o) for o in tensors(outputs)]
        for inputs, output in reversed(passed) if grad else ():
            pairs = zip(tensors(output), gradients, strict=True)
            reached = [(o, g) for o, g in pairs if o.requires_grad and g is not None]
            if reached:
                torch.autograd.backward([o for o, _ in reached], [g for _, g in reached])
            gradients = [entry.grad for entry in tensors(inputs)]
        named = network.named_parameters()
        return _Pass(outputs, {name: parameter.grad for name, parameter in named}, buffers)


def _forward(
    network: nn.Module, stages: Sequence[nn.Module], sample: Tree
) -> list[tuple[Tree, Tree]]:
    """Return the input of each stage, as leaves of its graph, and its output."""
    value, passed = sample, []
    for stage in stages:
        inputs = map_tensors(as_leaf, value)
        # Copies, because a stage may change its input in place.
        entered = copy_tensors(inputs)
        value = call_network(stage, entered) if stage is network else stage(entered)
        passed.append((inputs, value))
    return passed


def _differences(
    expected: _Pass, actual: _Pass, compare: Compare, noise: float = 0.0
) -> Iterator[str]:
    """Yield all differences between results of the network and of its stages.

    Args:
        expected: Results of the network.
        actual: Results of its stages.
        compare: Comparison of two tensors.
        noise: Norm up to which two gradients of a parameter are both 0.
    """
    if len(expected.outputs) != len(actual.outputs):
        yield f"there are {len(actual.outputs)} outputs instead of {len(expected.outputs)}"
    elif not all(map(partial(_both, compare), expected.outputs, actual.outputs)):
        yield "the outputs differ"
    for kind, old, new in (
        ("gradient", expected.gradients, actual.gradients),
        ("buffer", expected.buffers, actual.buffers),
    ):
        names = [name for name in old if not _both(compare, old[name], new[name])]
        if kind == "gradient" and noise:
            names = [n for n in names if not max(_norm(old[n]), _norm(new[n])) <= noise]
        if names:
            yield f"the {kind} of {' and '.join(map(repr, names[:3]))} differs"


def _noise(gradients: Mapping[str, Tensor | None]) -> float:
    """Return the norm of gradients that are 0 but for the rounding of larger ones.

    Such a weight adds a constant before a BatchNorm, which removes it.
    """
    found = [(_norm(g), torch.finfo(g.dtype).eps) for g in gradients.values() if g is not None]
    return ROUNDING * max((norm * eps for norm, eps in found if norm < math.inf), default=0.0)


def _norm(gradient: Tensor | None) -> float:
    """Return the norm of a gradient; infinity if there is none."""
    if gradient is None:
        return math.inf
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return float(torch.linalg.vector_norm(dense))


def _both(compare: Compare, one: Result, other: Result) -> bool:
    """Compare two tensors or numbers, or gradients that may be None, which equals None only.

    NaN at the same places is no difference: the batch has it, and training will tell.
    """
    if isinstance(one, int | float | complex) and isinstance(other, int | float | complex):
        one, other = (torch.tensor(number, device="cpu") for number in (one, other))
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other
    if one.layout != other.layout:
        return False
    if one.layout != torch.strided:  # such as the gradient of a sparse embedding
        one, other = one.to_dense(), other.to_dense()
    if one.shape == other.shape and is_inexact(one) and is_inexact(other):
        both_nan = one.isnan() & other.isnan()
        if both_nan.any():
            one, other = one.masked_fill(both_nan, 0), other.masked_fill(both_nan, 0)
    return compare(one, other)


def _equal_but_for_rounding(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype not in (torch.float32, torch.float64):
        return torch.equal(one, other)
    epsilon, differs = torch.finfo(one.dtype).eps, one != other
    # Large numbers that are equal, as in a mask, are not to hide a difference.
    one, other = one[differs].double(), other[differs].double()
    tolerance = ROUNDING * epsilon * one[one.isfinite()].norm()
    return bool((one - other).norm() <= tolerance)


def _nearly_equal(one: Tensor, other: Tensor) -> bool:
    """Return True for what a GPU computes twice: in another order, with fewer digits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not is_inexact(one):
        return torch.equal(one, other)
    wide = torch.promote_types(one.dtype, torch.float64)
    one, other = one.to(wide), other.to(wide)
    difference = torch.where(one == other, 0, one - other)  # infinities may be equal
    size = torch.where(one.isfinite(), one, 0).norm() + 1e-3 * math.sqrt(one.numel())
    return bool(difference.norm() <= 1e-2 * size)
