"""Function of the user that an option names: ``own.py:small``, or ``package.module:small``."""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hocket.errors import HocketError, OptionError, unknown_name

FORM = re.compile(
    r"(?P<name>(?P<module>[^:=,]+):(?P<function>[A-Za-z_]\w*))(:(?P<rest>.*))?", re.S
)
"""A function with its module, and perhaps with options."""


@dataclass(frozen=True)
class OwnFunction:
    """Function in a module or in a file of the user.

    Attributes:
        module: The module's dotted name, or a path to a file that ends in ``.py``.
        function: The function's name.

    >>> OwnFunction.parse("nets.py:small:width=3")
    OwnFunction(module='nets.py', function='small')
    >>> OwnFunction.parse("mlp:hidden=[3]")
    """

    module: str
    function: str

    @staticmethod
    def parse(text: str) -> "OwnFunction | None":
        """Parse ``module:function``, with or without options; None for another text."""
        match = FORM.fullmatch(text)
        return None if match is None else OwnFunction(match["module"], match["function"])

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    @property
    def file(self) -> Path:
        """File of the module; if none is found, a path at which there is no file."""
        if self.module.endswith(".py"):
            return Path(self.module)
        self._let_import()
        try:
            spec = importlib.util.find_spec(self.module)
        except Exception:  # of a package above it, which is imported
            spec = None
        return Path(self.module if spec is None or spec.origin is None else spec.origin)

    def load(self, kind: str, result: type) -> Callable[..., Any]:
        """Import the function, and return it with checks of its arguments and its result.

        Args:
            kind: Noun for what it builds, such as "network".
            result: Class of what it builds.

        Raises:
            OptionError: There is no such function.
        """
        import torch  # a command line that only reads names does without it

        # Import its module, or run its file.
        try:
            file = Path(self.module)
            self._let_import()
            with torch.random.fork_rng(devices=[]):
                if file.suffix == ".py":
                    module = _run_file(file.resolve(), file.read_bytes())
                else:
                    module = importlib.import_module(self.module)
        except Exception as error:
            raise OptionError(
                f"cannot import {self.module!r} for the {kind} {str(self)!r}: "
                f"{type(error).__name__}: {error}; name a module, or a file that ends in .py"
            ) from error
        # Find the function in it.
        function = getattr(module, self.function, None)
        if not callable(function):
            functions = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
            raise OptionError(
                unknown_name(f"function of {self.module!r}:", self.function, functions)
            )
        return self._checked(function, result)

    def _checked(self, function: Callable[..., Any], result: type) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def build(**options: Any) -> Any:
            try:
                inspect.signature(function).bind(**options)
            except TypeError as error:
                raise OptionError(f"{self} does not take these options: {error}") from error
            try:
                built = function(**options)
            except HocketError:
                raise
            except Exception as error:
                raise OptionError(
                    f"{self} fails: {type(error).__name__}: {error}; correct the function"
                ) from error
            if not isinstance(built, result):
                raise OptionError(
                    f"{self} returns a {type(built).__name__}; return a "
                    f"{result.__module__}.{result.__name__}"
                )
            return built

        return build

    def _let_import(self) -> None:
        """Let modules of its folder be found, as if it were run as a script."""
        file = Path(self.module)
        folder = str(file.parent.resolve() if file.suffix == ".py" else Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)


@functools.cache
def _run_file(file: Path, content: bytes) -> ModuleType:
    """Run a file as a module, once for each content, so that its classes stay the same."""
    # Dataclasses look their module up by its name, which another one may have.
    name = file.stem
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "any path to a .py file has one"
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_own(kind: str, name: str, known: Iterable[str], result: type) -> Callable[..., Any]:
    """Return the function of the user that a name outside of a table means.

    Args:
        kind: Noun for the named thing, such as "method".
        name: The name, without options.
        known: Names of the table.
        result: Class of what the function builds.

    Raises:
        OptionError: It names none, or one that cannot be imported.
    """
    if name.endswith(".py"):
        raise OptionError(
            f"the {kind} {name!r} is a file; name its function that builds the {kind} as well, "
            f"as in {name}:build"
        )
    own = OwnFunction.parse(name)
    if own is None or own.module in known:
        raise OptionError(unknown_name(kind, name, known))
    return own.load(kind, result)
