"""Muon for the hidden matrices of a network and AdamW for all else, as one optimizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import AdamW, Muon, Optimizer

from hocket.errors import OptionError
from hocket.optim.factory import NamedParameters, OptimizerFactory


class MuonAdamW(Optimizer):
    """PyTorch's Muon and AdamW side by side, with one learning rate that schedulers see.

    Jordan et al., Muon, 2024 (kellerjordan.github.io/posts/muon). Updates of matrices are
    scaled so that rate and weight decay of AdamW hold for both, unless ``adjust_lr_fn`` says
    otherwise (Liu et al., arXiv 2502.16982, section 2.2).

    Args:
        matrices: Hidden matrices, each of two dimensions.
        others: All other weights, or groups of them as AdamW takes them.
        lr: Learning rate of both.
        weight_decay: Weight decay of both, except for groups with their own.
        betas: Decay rates of AdamW's moments.
        eps: Term that AdamW adds to denominators.
        muon: Further options of ``torch.optim.Muon``, such as ``momentum`` and ``ns_steps``.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter] | Sequence[dict[str, Any]],
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **muon: Any,
    ) -> None:
        muon = {"adjust_lr_fn": "match_rms_adamw"} | muon
        both: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        # Built for a weight of no stage if there are none, so that the options are checked.
        of_matrices = Muon(matrices or [nn.Parameter(torch.zeros(1, 1))], **both, **muon)
        of_others = AdamW(others or [torch.zeros(1)], **both, betas=betas, eps=eps)
        self._parts = [*([of_matrices] if matrices else []), *([of_others] if others else [])]
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Let both make their step, with the groups and the state that are here.

        A closure computes the gradients first; its loss is returned.
        """
        loss = None if closure is None else closure()
        for part in self._parts:
            # Anew each time, as loading a state replaces groups and state.
            part.param_groups = [g for g in self.param_groups if self.class_of(g) is type(part)]
            part.state = self.state
            part.step()
        return loss

    def class_of(self, group: Mapping[str, Any]) -> type[Optimizer]:
        """Return the class of the optimizer that steps the weights of a group."""
        return Muon if "ns_steps" in group else AdamW


def hidden_matrices(network: nn.Module) -> frozenset[str]:
    """Return the names of the weights of two dimensions between embeddings and the last layer.

    The last layer is the last linear one, or embedding, that the network has registered. A
    matrix of one row or column is a vector, such as the magnitudes of weight_norm.

    Raises:
        OptionError: The shape of a weight is not known yet.

    >>> from hocket import zoo
    >>> sorted(hidden_matrices(zoo.mlp(in_features=2, hidden=[3, 3], num_classes=2)))
    ['hidden0.1.weight', 'hidden1.0.weight']
    """
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise OptionError(
                f"{name!r} has no shape before the first batch, and hidden matrices are found "
                "by their shapes; run the network once before you build the optimizer"
            )
    # By class, as a layer may be parametrized, and reading its weight then changes buffers.
    embeddings = (nn.Embedding, nn.EmbeddingBag)
    layers = [m for m in network.modules() if isinstance(m, (nn.Linear, *embeddings))]
    outer = [layer for layer in layers if isinstance(layer, embeddings)] + layers[-1:]
    left_out = {parameter for layer in outer for parameter in layer.parameters()}
    return frozenset(
        name
        for name, parameter in network.named_parameters()
        if parameter.dim() == 2 and min(parameter.shape) > 1 and parameter not in left_out
    )


def require_hidden_matrices(network: nn.Module, optimizer: str) -> frozenset[str]:
    """Return the names of the hidden matrices of a network that has some.

    Args:
        network: The network.
        optimizer: Name of the optimizer that treats them in its own way.

    Raises:
        OptionError: There is none, so that the optimizer would be AdamW under another name.
    """
    if not (hidden := hidden_matrices(network)):
        raise OptionError(
            f"{optimizer} is for hidden weights of two dimensions, and this network has none: "
            "all its weights (kernels of convolutions, embeddings, the last layer) would be "
            "trained by AdamW; choose AdamW"
        )
    return hidden


def muon(
    network: nn.Module, group: Callable[[list[nn.Parameter]], Any] = list, **options: Any
) -> OptimizerFactory:
    """Return a function that builds a stage's optimizer, for ``Trainer(optimizer=)``.

    Args:
        network: The network, whose names decide.
        group: Makes groups of the weights that AdamW trains, for decay of some of them.
        options: Options of `MuonAdamW`.

    Raises:
        OptionError: The network has no hidden matrix, or weights without a shape yet.
    """
    hidden = require_hidden_matrices(network, "Muon")

    def build(named_parameters: NamedParameters) -> MuonAdamW:
        matrices = [p for name, p in named_parameters if name in hidden]
        others = [p for name, p in named_parameters if name not in hidden]
        return MuonAdamW(matrices, group(others), **options)

    return build
