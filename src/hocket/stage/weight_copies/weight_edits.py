"""Weights that layers change in their own forward, as embeddings with ``max_norm`` do."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from hocket.stage.weight_copies.version_copies import version_key


class WeightEdits(TorchFunctionMode):
    """Finds the weights that are changed, or are given another memory, from now on.

    As a context manager it sees edits of ``weight.data`` as well. These raise the version of
    that tensor alone, which is kept until then.

    Args:
        weights: Weights by name.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._weights = weights
        self._keys = {name: version_key(weight) for name, weight in weights.items()}
        self._data: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            self._data.append(result)
        return result

    def names(self) -> list[str]:
        """Return the names of these weights."""
        edited = {data.untyped_storage().data_ptr() for data in self._data if data._version}
        return [
            name
            for name, weight in self._weights.items()
            if version_key(weight) != self._keys[name] or self._keys[name][0] in edited
        ]
