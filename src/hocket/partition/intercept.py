"""Following a forward from outside: every call of a module, every function of PyTorch."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode

Go = Callable[..., Any]


class Interceptor(Protocol):
    """What is asked, in place of PyTorch, for the result of each step of a forward."""

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a module; `called` has what it gives by itself."""

    def function(self, go: Go, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function of PyTorch; ``go`` is it."""


@contextmanager
def intercept(names: Mapping[nn.Module, str], guide: Interceptor) -> Iterator[None]:
    """Inside, in this thread, the guide has a say in all that these modules do."""
    before = _here.following
    with _patched(), _Functions(guide):
        _here.following = names, guide
        try:
            yield
        finally:
            _here.following = before


class _Functions(TorchFunctionMode):
    """Passes functions of PyTorch on to the guide."""

    def __init__(self, guide: Interceptor) -> None:
        super().__init__()
        self._guide = guide

    def __torch_function__(
        self,
        func: Go,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._guide.function(func, args, kwargs or {})


class _Here(threading.local):
    following: tuple[Mapping[nn.Module, str], Interceptor] | None = None


_here = _Here()
_lock = threading.Lock()
_users = 0
_unpatched = nn.Module.__call__


@contextmanager
def _patched() -> Iterator[None]:
    """Inside, calls of modules pass here first, as they do in torch.fx while it traces.

    A hook would not do: what is to be left out must not run, nor its hooks.
    """
    global _users  # noqa: PLW0603  # one class of modules, however many threads
    with _lock:
        _users += 1
        nn.Module.__call__ = _call  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                nn.Module.__call__ = _unpatched  # type: ignore[method-assign]


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _here.following is not None:
        names, guide = _here.following
        name = names.get(module)
        if name is not None:
            return guide.call(name, module, args, kwargs)
    return _unpatched(module, *args, **kwargs)


def call_intercepted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the module gives, its hooks included; the guide is asked about those inside."""
    return _unpatched(module, *args, **kwargs)
