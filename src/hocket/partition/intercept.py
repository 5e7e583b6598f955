"""Interception of a forward: every call of a module and every PyTorch function in it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]


class Interceptor(Protocol):
    """Handler that computes the result of each step of a forward in place of PyTorch."""

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a module; `call_intercepted` computes its normal output.

        Args:
            name: Name of the module in the network.
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a PyTorch function; ``function`` computes its normal result.

        Args:
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """


@contextmanager
def intercept(names: Mapping[nn.Module, str], interceptor: Interceptor) -> Iterator[None]:
    """Context manager that passes all steps of these modules in this thread to a handler."""
    outer = _thread.interception
    with _patch_module_call(), _FunctionMode(interceptor):
        _thread.interception = names, interceptor
        try:
            yield
        finally:
            _thread.interception = outer


class _FunctionMode(TorchFunctionMode):
    """Torch function mode that passes PyTorch functions on to an interceptor."""

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._interceptor.function(func, args, kwargs or {})


class _ThreadState(threading.local):
    interception: tuple[Mapping[nn.Module, str], Interceptor] | None = None


_thread = _ThreadState()
_lock = threading.Lock()
_users = 0
_original_call = nn.Module.__call__


@contextmanager
def _patch_module_call() -> Iterator[None]:
    """Context manager that replaces `nn.Module.__call__`, as torch.fx does while it traces.

    A hook would not be enough: modules that are left out must not run, nor their hooks.
    """
    global _users  # noqa: PLW0603  # all threads share nn.Module
    with _lock:
        _users += 1
        nn.Module.__call__ = _call  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                nn.Module.__call__ = _original_call  # type: ignore[method-assign]


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _thread.interception is not None:
        names, interceptor = _thread.interception
        name = names.get(module)
        if name is not None:
            return interceptor.call(name, module, args, kwargs)
    return _original_call(module, *args, **kwargs)


def call_intercepted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module with its hooks; steps inside it are still intercepted.

    Args:
        module: The module.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    return _original_call(module, *args, **kwargs)
