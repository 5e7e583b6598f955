"""PyTorch's compiler, imported only when something uses it.

``torch.optim`` imports ``torch._dynamo``, which takes as long as ``import torch``, and
``torch.distributed`` uses it where it is imported, only to call functions that do nothing in a
program that compiles nothing. `defer_compiler` puts a stand-in with these functions in its
place. Any other use, such as ``torch.compile``, replaces the stand-in by the compiler. The
command line does this in its own process and in those that it launches; the library does not.
"""

import sys
from collections.abc import Callable, MutableSequence, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def defer_compiler() -> None:
    """Replace ``torch._dynamo`` by a stand-in, unless it is imported already."""
    import torch

    if NAME not in sys.modules:
        stand_in = _StandIn(NAME)
        sys.modules[NAME] = stand_in
        torch._dynamo = stand_in
        sys.meta_path.insert(0, _SubmoduleFinder(stand_in))


class _StandIn(ModuleType):
    """The functions of ``torch._dynamo`` that PyTorch itself calls; all others import it."""

    __path__: MutableSequence[str] = []  # noqa: RUF012
    """Marks a package, whose submodules `_SubmoduleFinder` finds."""

    def graph_break(self) -> None:
        """Do nothing: there is no graph while nothing is compiled."""

    def disable(
        self, function: Callable[..., Any] | None = None, recursive: bool = True, **options: Any
    ) -> Any:
        """Return a function that, once the compiler is imported, is not compiled."""
        if function is None or options != {"wrapping": False}:  # not called by torch itself
            return self.load().disable(function, recursive, **options)
        disabled = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal disabled
            if sys.modules.get(NAME) is self:
                return function(*args, **kwargs)
            disabled = disabled or self.load().disable(function, recursive, **options)
            return disabled(*args, **kwargs)

        return call

    @property
    def trace_rules(self) -> Any:
        """The compiler's rules, none of which is in its cache yet."""
        return _TraceRules(self)

    def load(self) -> Any:
        """Replace this stand-in by the compiler, and return it."""
        if sys.modules.get(NAME) is self:
            import torch

            del sys.modules[NAME], torch._dynamo
        import torch._dynamo as compiler

        return compiler

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # code that goes through all modules reads it
            raise AttributeError(f"{NAME} is not imported yet, and has no attribute {name!r}")
        return getattr(self.load(), name)


class _TraceRules:
    """The function of ``torch._dynamo.trace_rules`` that ``torch.distributed`` calls."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def clear_lru_cache(self) -> None:
        """Do nothing: the cache is empty until the compiler is imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stand_in.load().trace_rules, name)


class _SubmoduleFinder(MetaPathFinder):
    """Imports the compiler when one of its submodules is imported first."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}.") or sys.modules.get(NAME) is not self._stand_in:
            return None
        self._stand_in.load()
        if name in sys.modules:
            return spec_from_loader(name, _Imported(sys.modules[name]))
        return find_spec(name)


class _Imported(Loader):
    """Gives a module that was imported meanwhile."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
