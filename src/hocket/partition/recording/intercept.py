"""Interception of a forward: every call of a module and every PyTorch function in it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

Function = Callable[..., Any]
_ATTRIBUTE = "_compiled_call_impl"
"""Attribute that a module calls, if it is not None; it is neither copied nor pickled."""


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
    """Context manager that passes all steps of these modules in this thread to a handler.

    While the handler itself runs, nothing is intercepted.
    """
    interception = _Interception(names, interceptor)
    outer = _thread.interception, _thread.suspended
    with _lock:
        calls = [_find_call(module) or _InterceptedCall(module) for module in names]
        for call in calls:
            call.users += 1
    try:
        with interception:
            _thread.interception, _thread.suspended = interception, None
            try:
                yield
            finally:
                _thread.interception, _thread.suspended = outer
    finally:
        with _lock:
            for call in calls:
                call.release()


class _Interception(TorchFunctionMode):
    """Interception of a forward in one thread; as a mode it gets all functions of PyTorch."""

    def __init__(self, names: Mapping[nn.Module, str], interceptor: Interceptor) -> None:
        super().__init__()
        self._names = names
        self._interceptor = interceptor

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._interceptor.function(func, args, kwargs or {})

    def call(
        self, call: "_InterceptedCall", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a call, from the handler if the module is one of these."""
        name = self._names.get(call.module)
        if name is None:
            return call.original(*args, **kwargs)
        suspended = self.suspend()
        try:
            return self._interceptor.call(name, call.module, args, kwargs)
        finally:
            if suspended:
                self.resume()

    def suspend(self) -> bool:
        """Intercept nothing from now on; return False if that cannot be.

        A forward may itself have entered a mode, which has to be left first.
        """
        if _get_current_function_mode() is not self:
            return False
        self.__exit__(None, None, None)
        _thread.interception, _thread.suspended = None, self
        return True

    def resume(self) -> None:
        """Intercept again."""
        _thread.interception, _thread.suspended = self, None
        self.__enter__()  # type: ignore[no-untyped-call]


class _ThreadState(threading.local):
    interception: _Interception | None = None
    suspended: _Interception | None = None


_thread = _ThreadState()
_lock = threading.Lock()


class _InterceptedCall:
    """A module's call while it is intercepted, in one thread or in several.

    A hook would not be enough: modules that are left out must not run, nor their hooks. It is
    an attribute of the object: after a change of `nn.Module` itself, Python looks up anew all
    that is read of any module, which takes longer than all the calls. It is the attribute of a
    module that was compiled, as copies of a module have none.

    Attributes:
        module: The module.
        original: Calls the module, with its hooks.
        users: Number of forwards that intercept the module now.
    """

    __slots__ = ("_compiled", "module", "original", "users")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._compiled = module._compiled_call_impl
        self.original: Callable[..., Any] = (
            module._call_impl if self._compiled is None else self._compiled
        )
        self.users = 0
        vars(module)[_ATTRIBUTE] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Pass the call to the handler of this thread, if it has one."""
        interception = _thread.interception
        if interception is None:
            return self.original(*args, **kwargs)
        return interception.call(self, args, kwargs)

    def release(self) -> None:
        """Count a forward less; after the last one, the module is called as before."""
        self.users -= 1
        if self.users == 0:
            del vars(self.module)[_ATTRIBUTE]
            if self._compiled is not None:
                vars(self.module)[_ATTRIBUTE] = self._compiled


def _find_call(module: nn.Module) -> _InterceptedCall | None:
    """Return the call of a module that is intercepted; None for another module."""
    call = vars(module).get(_ATTRIBUTE)
    return call if type(call) is _InterceptedCall else None


def call_intercepted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module with its hooks; steps inside it are intercepted. See the protocol."""
    suspended = _thread.suspended
    if suspended is None:
        return call_whole(module, args, kwargs)
    suspended.resume()
    try:
        return call_whole(module, args, kwargs)
    finally:
        suspended.suspend()


def call_whole(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module with its hooks; steps inside it are intercepted only if they must be.

    They must be if the forward itself has entered a mode for functions around the call. A
    handler that wants none of them has to let them pass. See the protocol for the arguments.
    """
    call = _find_call(module)
    return module(*args, **kwargs) if call is None else call.original(*args, **kwargs)
