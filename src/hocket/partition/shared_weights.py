"""Parameters that are used on both sides of a cut, such as an embedding tied to the head.

The stage of the first use owns such a parameter. It sends a copy along with each batch to the
later stages that use it, as one more activation, and their gradient comes back with the others.
Every use of a batch therefore sees the weights of one moment, and the owner trains them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hocket.partition.recording.recording import Recording


class SharedWeights:
    """Parameters and buffers of a network that several of its parts use.

    Attributes:
        aliases: All names of each of its parameters and buffers, by the first one.
    """

    def __init__(self, network: nn.Module) -> None:
        self._parameters = {name for name, _ in network.named_parameters()}
        by_id: dict[int, list[str]] = {}
        for entries in (network.named_parameters, network.named_buffers):
            for name, tensor in entries(remove_duplicate=False):
                by_id.setdefault(id(tensor), []).append(name)
        self.aliases = {names[0]: names for names in by_id.values()}
        self._scripted = {
            name
            for name, module in network.named_modules()
            if isinstance(module, torch.jit.ScriptModule)
        }

    def find_problem(self, name: str, recording: Recording) -> str | None:
        """Return the reason, if any, why a weight cannot be used on both sides of a cut.

        Its name is the first one of the parameter or buffer.
        """
        if name not in self._parameters:
            return f"buffer {name!r} is used on both sides; keep its uses in one stage"
        owners = {alias.rpartition(".")[0] for alias in self.aliases[name]}
        # A block has more than weights, such as a mode, and is in one stage as a whole.
        calls = [call for call in recording.calls if call.name in owners]
        blocks = {block for call in calls for block in call.callers}
        # Calls inside a scripted module are not seen.
        blocks |= {
            block for block in self._scripted if any(o.startswith(f"{block}.") for o in owners)
        }
        for block in sorted(blocks):
            if (times := recording.call_counts[block]) > 1:
                return f"module {block!r} is used {times} times; keep its uses in one stage"
        return None


@contextmanager
def replace_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Context manager that replaces parameters, under all of their names, by ``weights``.

    These are tensors by any one of the names.
    """
    by_id = {id(network.get_parameter(name)): tensor for name, tensor in weights.items()}
    replaced = [
        (module, key, parameter)
        for module in (network.modules() if weights else ())
        for key, parameter in module._parameters.items()
        if id(parameter) in by_id
    ]
    for module, key, parameter in replaced:
        # A tensor that is no parameter: its gradient belongs to the stage that owns it.
        module._parameters[key] = by_id[id(parameter)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, key, parameter in replaced:
            module._parameters[key] = parameter


def untie(network: nn.Module) -> list[str]:
    """Give each module that shares a parameter its own copy.

    The copies are equal at first and trained apart.

    Args:
        network: The network, which is changed.

    Returns:
        Names of the parameters that are new.

    >>> import torch
    >>> network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    >>> network[1].weight = network[0].weight
    >>> untie(network)
    ['1.weight']
    """
    seen: set[int] = set()
    untied = []
    for path, module in network.named_modules():  # each once, under any name
        for last, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) in seen:
                copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                module.register_parameter(last, copy)
                untied.append(f"{path}.{last}" if path else last)
            seen.add(id(parameter))
    return untied
