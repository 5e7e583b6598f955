"""Layers of whose forward it is known what it leaves alone.

They are PyTorch's layers, and layers of a class that declares ``plain_forward = True``: its
forward draws no random numbers, leaves its input and its weights as they are, runs no forward
inside the backward, and reads its weights anew each time. The layers inside it have to declare
the same for themselves.

A stage takes precautions for layers of which nothing is known: it seeds random numbers, gives
them a copy of their input, and looks out for a forward inside the backward. Each takes time in
every tick, and none is needed for these layers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.nn.modules import module as torch_module

from hocket.partition.parts.partial_module import PartialModule
from hocket.tree import Tree, copy_tensors

WeightPlace: TypeAlias = tuple[dict[str, Any], str]
"""Parameters of a layer by its own names, and the name of one of them."""

Draws = Literal["nothing", "torch", "anything"]
"""Generators that a forward may draw from: none, torch's, or Python's and NumPy's too."""

_ANY_DIMENSION = [
    getattr(nn, f"{name}{dimensions}d")
    for name in (
        *("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm"),
        *("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"),
    )
    for dimensions in (1, 2, 3)
]
_FEW = [
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Bilinear, nn.Embedding),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.GLU),
    *(nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softmax, nn.LogSoftmax),
    *(nn.ZeroPad2d, nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle),
]
PLAIN_LAYERS: frozenset[type[nn.Module]] = frozenset([*_ANY_DIMENSION, *_FEW])
"""Layers that draw nothing, and edit their input in place only if they are told to."""

_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)

_HOOKS_OF_ALL: Sequence[Mapping[int, Callable[..., Any]]] = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
"""Tables of hooks of all modules, which may fill at any time."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class KnownLayers:
    """Facts about the forwards of a module whose layers stay the same objects.

    Hooks may come at any time, and nothing is known of a forward with hooks.

    Attributes:
        module: The module.
        declared: Names of the classes that declare a plain forward.
        checked: True once a forward has shown that a declaration is right; True without one.
        weight_places: Places of all weights, if it is known of all layers that they take their
            weights from there; none otherwise.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = forwarded_modules(module)
        sends_weights = isinstance(module, PartialModule) and module.shares_weights
        kinds = {type(layer) for layer in layers}
        self.module = module
        self.declared = sorted(kind.__name__ for kind in kinds if declares_plain(kind))
        self.checked = not self.declared
        self._known = all(map(_is_known, layers)) and not sends_weights
        self._plain = self._known and all(map(_is_plain, layers))
        self._hooks = [*hooks_of(module), *_HOOKS_OF_ALL]
        self._optional = [layer for layer in layers if "inplace" in vars(layer)]
        places: list[WeightPlace] = [
            (layer._parameters, name)
            for layer in layers
            for name, parameter in layer._parameters.items()
            if parameter is not None
        ]
        # None if a weight is in several places.
        memory = {weights[name].untyped_storage().data_ptr() for weights, name in places}
        self.weight_places = places if self._plain and len(memory) == len(places) else []

    @property
    def plain(self) -> bool:
        """True if the layers draw nothing, and run no forward inside their backward."""
        return self._plain and not any(self._hooks)

    def distrust(self) -> None:
        """Forget what is known, so that all precautions are taken from now on."""
        self._known = self._plain = False

    @property
    def draws(self) -> Draws:
        """Generators that a forward may draw from."""
        if not self._known or any(self._hooks):
            return "anything"
        return "nothing" if self._plain else "torch"

    def editable(self, inputs: Tree) -> Tree:
        """Return inputs (B, ...) that the module may edit, copies unless it edits none."""
        edits = not self.plain or any([vars(layer)["inplace"] for layer in self._optional])
        return copy_tensors(inputs) if edits else inputs


def hooks_of(module: nn.Module) -> list[Mapping[int, Callable[..., Any]]]:
    """Return the tables of hooks of a module's layers, which may fill at any time."""
    return [getattr(layer, name) for layer in forwarded_modules(module) for name in _HOOKS]


def forwarded_modules(module: nn.Module) -> list[nn.Module]:
    """Return the modules that a module's forward calls, in part or as a whole."""
    if isinstance(module, PartialModule):
        return module.forwarded_modules()
    return list(module.modules())


def _is_known(layer: nn.Module) -> bool:
    """Return True for a layer of PyTorch, a sequence that computes as its own, or a plain one.

    Not one whose forward or call was replaced, in the object or in its class.
    """
    kind = type(layer)
    if not hasattr(kind, "forward"):  # scripted
        return False
    own = kind.__module__.startswith("torch.nn.modules.") or _is_sequence(kind)
    forwards = (own and _is_of_torch(kind.forward)) or declares_plain(kind)
    compiled = layer._compiled_call_impl is not None
    unchanged = _is_of_torch(kind.__call__) and "forward" not in vars(layer) and not compiled
    return forwards and unchanged


def _is_of_torch(method: Callable[..., Any]) -> bool:
    return method.__module__.startswith("torch.nn.modules.")


def declares_plain(kind: type[nn.Module]) -> bool:
    """Return True if the class of the forward declares it plain, and no subclass revokes it."""
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    own = vars(owner).get("plain_forward") is True
    return own and getattr(kind, "plain_forward", False) is True


def _is_sequence(kind: type[nn.Module]) -> bool:
    inherited = getattr(kind, "forward", None) is nn.Sequential.forward
    return inherited and kind.__iter__ is nn.Sequential.__iter__  # type: ignore[attr-defined]


def _is_plain(layer: nn.Module) -> bool:
    kind = type(layer)
    if getattr(layer, "max_norm", None) is not None:  # an embedding that edits its weight
        return False
    listed = kind in PLAIN_LAYERS or kind in _NEVER_CALLED
    return listed or _is_sequence(kind) or declares_plain(kind)
