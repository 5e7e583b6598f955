"""The step of an optimizer without what PyTorch wraps around it, as long as nobody uses that.

PyTorch names each step for its profiler, and calls hooks before and after it. If there are
none, that still takes a third as long as the update of a small network.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import CodeType
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LambdaLR

_HOOKS_OF_ALL: tuple[Mapping[int, Callable[..., Any]], ...] = (
    torch_optimizer._global_optimizer_pre_hooks,
    torch_optimizer._global_optimizer_post_hooks,
)
"""Tables of hooks of all optimizers, which may fill at any time."""


def bare_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return the step of an optimizer; all of it while somebody profiles it or has hooks.

    What others have wrapped around it stays. The wrapper of a scheduler takes note that there
    was a step, which an `Updater` has noted in advance.
    """
    whole: Any = optimizer.step
    outer = bare = getattr(whole, "__func__", whole)
    while getattr(bare, "__code__", None) in _wrappers():
        bare = bare.__wrapped__
    return whole if bare is outer or _is_observed(optimizer) else partial(bare, optimizer)


@cache
def _wrappers() -> frozenset[CodeType]:
    """Return the code of the wrappers: of the one for profiler and hooks, and a scheduler's."""
    optimizer = SGD([torch.zeros(1)])
    LambdaLR(optimizer, lambda epoch: 1.0)
    return frozenset([SGD.step.__code__, optimizer.step.__code__])


def _is_observed(optimizer: Optimizer) -> bool:
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return any([*_HOOKS_OF_ALL, *own]) or torch._C._autograd._profiler_enabled()
