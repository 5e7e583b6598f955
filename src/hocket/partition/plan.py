"""The cuts of a network, and the file format for them."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hocket.errors import CutError, OptionError
from hocket.files import read_json, write_text_atomically
from hocket.options.hints import matches_hint

FORMAT = "hocket plan 1"


@dataclass(frozen=True)
class Plan:
    """Cuts of a network.

    Attributes:
        cuts: Names of the layers at which stages 1, 2, ... begin.
        signature: Signature of the network it was made for; empty if it fits any network.

    >>> Plan(("layer2_1", "layer3_0")).stages
    3
    """

    cuts: tuple[str, ...]
    signature: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Take a list of names, and the name of a single layer, as well.

        Raises:
            OptionError: Names are given one by one, or are no texts.
        """
        if isinstance(self.cuts, str) and self.signature:
            raise OptionError(
                "a plan takes the names of its layers as one tuple; write "
                f"Plan(({self.cuts!r}, {self.signature!r}))"
            )
        several = isinstance(self.cuts, Iterable) and not isinstance(self.cuts, str)
        cuts = tuple(self.cuts) if several else (self.cuts,)
        if not matches_hint(cuts, tuple[str, ...]):
            raise OptionError(
                f"the cuts of a plan are {self.cuts!r}; give the names of the layers at which "
                "stages 1, 2, ... begin, such as Plan(('layer2', 'layer3'))"
            )
        object.__setattr__(self, "cuts", cuts)

    @property
    def stages(self) -> int:
        """Number of stages K."""
        return len(self.cuts) + 1

    def require_for(self, network: nn.Module) -> None:
        """Check that the plan was made for this network.

        Raises:
            CutError: The signatures differ.
        """
        if self.signature and (actual := network_signature(network)) != self.signature:
            raise CutError(
                f"the plan is for another network: its signature is {self.signature}, that of "
                f"this {type(network).__name__} is {actual}; plan again for this one, with the "
                "same options"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the content of its file."""
        return {"format": FORMAT, "cuts": list(self.cuts), "signature": self.signature}

    def write(self, file: Path | str, **more: Any) -> None:
        """Write the plan as JSON, atomically.

        Args:
            file: File to write.
            more: Further entries of the JSON object.

        Raises:
            OptionError: The file cannot be written.
        """
        text = json.dumps(self.as_dict() | more, indent=2) + "\n"
        try:
            write_text_atomically(Path(file), text)
        except OSError as error:
            raise OptionError(
                f"cannot write the plan to {str(file)!r}: {error.strerror}; name another file"
            ) from error

    @staticmethod
    def read(file: Path | str) -> "Plan":
        """Read a plan that :meth:`write` wrote.

        Raises:
            OptionError: The file is missing, damaged, or not a plan.
        """
        where = f"cannot read the plan {str(file)!r}"
        try:
            content = read_json(Path(file))
        except OSError as error:
            raise OptionError(f"{where}: {error.strerror}; name a file to read") from error
        except ValueError as error:
            raise OptionError(f"{where}: it is not JSON ({error}); plan again") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise OptionError(f"{where}: it has no entry 'format': {FORMAT!r}; plan again")
        signature = content.get("signature")
        if not matches_hint(content.get("cuts"), list[str]) or not isinstance(signature, str):
            raise OptionError(f"{where}: cuts or signature are not strings; plan again")
        return Plan(content["cuts"], signature)


def network_signature(network: nn.Module) -> str:
    """Hash the names and types of all modules, and the names and shapes of all weights.

    >>> network_signature(nn.Linear(2, 3)) == network_signature(nn.Linear(2, 3))
    True
    >>> network_signature(nn.Linear(2, 3)) == network_signature(nn.Linear(3, 2))
    False
    """
    words = [f"{name} {type(module).__name__}" for name, module in network.named_modules()]
    words += [
        f"{name} {tuple(tensor.shape)}"
        for entries in (network.named_parameters, network.named_buffers)
        for name, tensor in entries(remove_duplicate=False)
    ]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
