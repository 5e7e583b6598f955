"""A network that a function of the user's own builds: ``nets.py:small:width=3``."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hocket import zoo
from hocket.errors import OptionError, listed, unknown
from hocket.options import Named

_FORM = re.compile(r"(?P<module>[^:=,]+):(?P<made>[A-Za-z_]\w*(:.*)?)", re.DOTALL)


@dataclass(frozen=True)
class UserNetwork:
    """A function in a module or in a file.

    Attributes:
        module: The module's dotted name, or a path to a file that ends in ``.py``.
        function: The function's name, with options for it.

    >>> OwnNetwork.parse("nets.py:small:width=3").function
    Named(name='small', options={'width': 3})
    """

    module: str
    function: Named

    @staticmethod
    def parse(text: str) -> "UserNetwork | None":
        """What the text names; None if it is of the form ``name:option=value``."""
        found = _FORM.fullmatch(text)
        if found is None or found["module"] in zoo.names():
            return None
        return UserNetwork(found["module"], Named.parse(found["made"]))

    def build(self, shape: Sequence[int], classes: int) -> nn.Module:
        """The network.

        The function is called with the options, and with those of `num_classes`, `in_channels`,
        `in_features`, `vocab`, `context` and `image_size` that it takes.

        Args:
            shape: One input without the batch.
            classes: Length of the output's last dimension.

        Raises:
            OptionError: There is no such function, it fails, or gives no network.
        """
        where = f"{self.module}:{self.function.name}"
        make = self._function(where)
        given = zoo.fitting(make, shape, classes) | self.function.options
        try:
            inspect.signature(make).bind(**given)
        except TypeError as error:
            raise OptionError(f"{where} does not take these options: {error}") from error
        try:
            network = make(**given)
        except Exception as error:
            name = type(error).__name__
            raise OptionError(f"{where} fails: {name}: {error}; mend the function") from error
        if not isinstance(network, nn.Module):
            raise OptionError(
                f"{where} gives a {type(network).__name__}; let it return an nn.Module"
            )
        return network

    def _function(self, where: str) -> Callable[..., Any]:
        try:
            module = self._imported()
        except Exception as error:
            name = type(error).__name__
            raise OptionError(
                listed(
                    f"cannot import {self.module!r} for the network {where!r}",
                    [f"{name}: {error}", "name a module, or a file that ends in .py"],
                )
            ) from error
        made = getattr(module, self.function.name, None)
        if not callable(made):
            functions = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
            raise OptionError(
                unknown(f"function of {self.module!r}:", self.function.name, functions)
            )
        found: Callable[..., Any] = made
        return found

    def _imported(self) -> ModuleType:
        file = Path(self.module)
        # Whatever lies beside the file can be imported by it, as if it were run.
        folder = str(file.parent.resolve() if file.suffix == ".py" else Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if file.suffix != ".py":
            return importlib.import_module(self.module)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None, "any path to a .py file has one"
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
