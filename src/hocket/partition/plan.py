"""Where to cut: the first layer of every stage but the first. A file can hold it."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hocket.errors import CutError, OptionError

FORMAT = "hocket plan 1"


@dataclass(frozen=True)
class Plan:
    """The cuts of a network.

    Attributes:
        cuts: Names of the layers at which stages 1, 2, ... begin.
        signature: Of the network it was made for; empty if it is for any.
    """

    cuts: tuple[str, ...]
    signature: str = field(default="", compare=False)

    @property
    def stages(self) -> int:
        """K."""
        return len(self.cuts) + 1

    def require_for(self, network: nn.Module) -> None:
        """Refuse another network than the one that the plan was made for.

        Raises:
            CutError: The signatures differ.
        """
        if self.signature and (own := network_signature(network)) != self.signature:
            raise CutError(
                f"the plan is for another network: its signature is {self.signature}, that of "
                f"this {type(network).__name__} is {own}; plan again for this one, with the "
                "same options"
            )

    def write(self, file: Path, **more: Any) -> None:
        """Write JSON, with whatever else is to be known; never half of it.

        Raises:
            OptionError: The file cannot be written.
        """
        content = {"format": FORMAT, "cuts": self.cuts, "signature": self.signature} | more
        part = file.with_name(file.name + ".part")
        try:
            part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            raise OptionError(
                f"cannot write the plan to {str(file)!r}: {error.strerror}; name another file"
            ) from error

    @staticmethod
    def read(file: Path) -> "Plan":
        """The plan that :meth:`write` wrote.

        Raises:
            OptionError: The file is missing, damaged, or no plan.
        """
        where = f"cannot read the plan {str(file)!r}"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise OptionError(f"{where}: {error.strerror}; name a file to read") from error
        except ValueError as error:
            raise OptionError(f"{where}: it is not JSON ({error}); plan again") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise OptionError(f"{where}: found no mark {FORMAT!r} in it; plan again")
        cuts, made_for = content.get("cuts"), content.get("signature")
        if (
            not isinstance(cuts, list)
            or not all(isinstance(cut, str) for cut in cuts)
            or not isinstance(made_for, str)
        ):
            raise OptionError(f"{where}: cuts or signature are no texts; plan again")
        return Plan(tuple(cuts), made_for)


def network_signature(network: nn.Module) -> str:
    """What tells networks apart: names, shapes and types of all weights, and of all modules.

    >>> signature(nn.Linear(2, 3)) == signature(nn.Linear(2, 3))
    True
    >>> signature(nn.Linear(2, 3)) == signature(nn.Linear(3, 2))
    False
    """
    words = [f"{name} {type(module).__name__}" for name, module in network.named_modules()]
    words += [
        f"{name} {tuple(tensor.shape)}"
        for entries in (network.named_parameters, network.named_buffers)
        for name, tensor in entries(remove_duplicate=False)
    ]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
