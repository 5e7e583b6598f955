"""The step of an optimizer, without the wrappers that PyTorch puts around it.

PyTorch names each step for its profiler, and calls hooks before and after it. If there are
none, that still takes a third as long as the update of a small network. Only a profiler is
looked for: another observer, such as an execution trace, misses the name.
"""

from collections.abc import Callable
from functools import cache, partial
from types import CodeType
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LambdaLR

_HOOKS_OF_ALL = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"
_OWN_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
"""Tables of hooks, which may fill at any time."""


def bare_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return the step of an optimizer; the whole step if there are hooks or a profiler.

    What others have wrapped around it stays. The wrapper of a scheduler only records that there
    was a step, which an `Updater` has recorded in advance.
    """
    whole: Any = optimizer.step
    outer = bare = getattr(whole, "__func__", whole)
    while getattr(bare, "__code__", None) in _wrappers():
        bare = bare.__wrapped__
    return whole if bare is outer or _is_observed(optimizer) else partial(bare, optimizer)


@cache
def _wrappers() -> frozenset[CodeType]:
    """Return the code of the wrappers: for profiler and hooks, and for a scheduler."""
    wrap: Any = Optimizer.profile_hook_step
    optimizer = SGD([torch.zeros(1)])
    LambdaLR(optimizer, lambda epoch: 1.0)
    return frozenset([wrap(len).__code__, optimizer.step.__code__])


def _is_observed(optimizer: Optimizer) -> bool:
    """Return True if hooks or a profiler see the steps; also if this PyTorch has other tables.

    All these names are PyTorch's own, and no other release promises them.
    """
    hooks = [getattr(torch_optimizer, name, True) for name in _HOOKS_OF_ALL]
    hooks += [getattr(optimizer, name, True) for name in _OWN_HOOKS]
    profiling = getattr(torch._C._autograd, "_profiler_enabled", None)
    return any(hooks) or profiling is None or profiling()


def do_step(optimizer: Optimizer) -> None:
    """Do one step with the gradients of the weights."""
    bare_step(optimizer)()
