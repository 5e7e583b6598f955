"""Network built by a function of the user: ``nets.py:small:width=3``."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hocket import zoo
from hocket.errors import OptionError, format_problems, unknown_name
from hocket.options import Named

_FORM = re.compile(r"(?P<module>[^:=,]+):(?P<function>[A-Za-z_]\w*(:.*)?)", re.DOTALL)


@dataclass(frozen=True)
class UserNetwork:
    """Function in a module or in a file that builds a network.

    Attributes:
        module: The module's dotted name, or a path to a file that ends in ``.py``.
        function: The function's name, with options for it.

    >>> UserNetwork.parse("nets.py:small:width=3").function
    Named(name='small', options={'width': 3})
    """

    module: str
    function: Named

    @property
    def file(self) -> Path:
        """File of the module; one that does not exist if it is not found or is no file."""
        if self.module.endswith(".py"):
            return Path(self.module)
        self._let_import()
        try:
            spec = importlib.util.find_spec(self.module)
        except Exception:  # of a package above it, which is imported
            spec = None
        return Path(self.module if spec is None or spec.origin is None else spec.origin)

    @staticmethod
    def parse(text: str) -> "UserNetwork | None":
        """Parse ``module:function``; None if the text is of the form ``name:option=value``.

        Raises:
            OptionError: It names a file without a function.
        """
        if text.endswith(".py"):
            raise OptionError(
                f"the network {text!r} is a file; name its function that builds the network as "
                f"well, as in {text}:build"
            )
        match = _FORM.fullmatch(text)
        if match is None or match["module"] in zoo.names():
            return None
        return UserNetwork(match["module"], Named.parse(match["function"]))

    def builder(self) -> Callable[[Sequence[int], int], nn.Module]:
        """Import the function, and return what builds the network for a shape and classes.

        Raises:
            OptionError: There is no such function.
        """
        name = f"{self.module}:{self.function.name}"
        with torch.random.fork_rng(devices=[]):
            function = self._import_function(name)
        return partial(self._build, name, function)

    def _build(
        self, name: str, function: Callable[..., Any], shape: Sequence[int], classes: int
    ) -> nn.Module:
        """Build the network.

        The function is called with the options, and with those of `num_classes`, `in_channels`,
        `in_features`, `vocab`, `context` and `image_size` that it takes.

        Args:
            name: Name of the function with its module, for messages.
            function: The function.
            shape: Shape of one input, without the batch.
            classes: Length of the output's last dimension.

        Raises:
            OptionError: The function fails, or returns no network.
        """
        arguments = zoo.fitting(function, shape, classes) | self.function.options
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise OptionError(f"{name} does not take these options: {error}") from error
        try:
            network = function(**arguments)
        except Exception as error:
            raise OptionError(
                f"{name} fails: {type(error).__name__}: {error}; correct the function"
            ) from error
        if not isinstance(network, nn.Module):
            raise OptionError(f"{name} returns a {type(network).__name__}; return an nn.Module")
        return network

    def _import_function(self, name: str) -> Callable[..., Any]:
        try:
            module = self._import_module()
        except Exception as error:
            raise OptionError(
                format_problems(
                    f"cannot import {self.module!r} for the network {name!r}",
                    [
                        f"{type(error).__name__}: {error}",
                        "name a module, or a file that ends in .py",
                    ],
                )
            ) from error
        function: Callable[..., Any] | None = getattr(module, self.function.name, None)
        if not callable(function):
            functions = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
            raise OptionError(
                unknown_name(f"function of {self.module!r}:", self.function.name, functions)
            )
        return function

    def _let_import(self) -> None:
        """Let modules of its folder be found, as if it were run as a script."""
        file = Path(self.module)
        folder = str(file.parent.resolve() if file.suffix == ".py" else Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def _import_module(self) -> ModuleType:
        file = Path(self.module)
        self._let_import()
        if file.suffix != ".py":
            return importlib.import_module(self.module)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None, "any path to a .py file has one"
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up; one of that name that is there already stays.
        is_new = sys.modules.setdefault(file.stem, module) is module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if is_new:
                del sys.modules[file.stem]
            raise
        return module
