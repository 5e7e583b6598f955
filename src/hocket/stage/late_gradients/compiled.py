"""Layers of a stage as one compiled function of their weights and their input.

Hooks on saved tensors cannot be relied on in compiled graphs, which choose what they save. A
function of the weights needs none: it is called with the weights of the version.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import LinearizeError, OptionError, format_problems
from hocket.options.common_options import Compiler
from hocket.partition.parts.partial_module import PartialModule
from hocket.stage.layers.known_layers import hooks_of
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.tree import Tree, tensors


class CompiledLayers:
    """Layers of a stage, compiled at their first forward for each shape of their input.

    All of them are one graph. A graph holds for one shape: one for several shapes would round
    differently, and would depend on the order in which the shapes came.

    Args:
        compiler: Backend of torch.compile.
        setup: Options that all stages share.
        parts: Layers of the stage.

    Raises:
        OptionError: The layers cannot be compiled.
    """

    def __init__(self, compiler: Compiler, setup: Setup, parts: StageParts) -> None:
        self._module = parts.module
        self._stage = parts.index
        self._hooks = hooks_of(parts.module)
        self._weights = [*parts.module.parameters()]
        self._seen: set[object] = set()  # shapes, frozen weights and modes, as compiled
        self._require_compilable()
        # To save memory a backward may compute parts again, unless the weights are others then.
        late = setup.graph_delay(parts.index, parts.count) > 0
        recomputes = not late or setup.method.linearize != "live"
        backend: str | Callable[..., Any] = compiler
        options: dict[str, Any] | None = None
        if compiler == "inductor":
            # Random numbers of PyTorch's generators, as in stages that are not compiled.
            options = {"fallback_random": True}
            if not recomputes:
                options["custom_partitioner_fn"] = _inductor_partitioner()
        elif not recomputes:
            backend = _aot_eager_without_recomputation()
        # A copy of the function: the compiler keeps its graphs, and their limit, by code.
        code = _call_layers.__code__.replace()
        self._compiled = torch.compile(
            FunctionType(code, globals(), _call_layers.__name__),
            fullgraph=True,
            dynamic=False,
            backend=backend,
            options=options,
        )

    def __call__(self, inputs: Tree, weights: Mapping[str, Tensor] | None = None) -> Tree:
        """Return the output of the layers.

        Args:
            inputs: Their input, with tensors of shape (B, ...).
            weights: Tensors to compute with instead of weights, by the weights' names.

        Raises:
            OptionError: The layers cannot be compiled, have got hooks, or met too many shapes.
        """
        if any(self._hooks):
            self._require_compilable()

        # Compile at the first forward for a shape, and compute.
        try:
            with self._quiet_when_new(inputs):
                output: Tree = self._compiled(self._module, weights or {}, inputs)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise OptionError(
                f"stage {self._stage} met inputs of more shapes than graphs are kept for "
                f"({torch._dynamo.config.recompile_limit}); use batches of fewer shapes, raise "
                "torch._dynamo.config.recompile_limit, or leave compile out"
            ) from error
        except torch._dynamo.exc.TorchDynamoException as error:
            # What it says before its advice and its traces.
            said = " ".join(str(error).split("\n\n")[0].split())
            raise OptionError(
                f"stage {self._stage} cannot be compiled as one graph: {said}; "
                "change that layer, or leave compile out"
            ) from error
        return output

    @contextmanager
    def _quiet_when_new(self, inputs: Tree) -> Iterator[None]:
        """Context manager in which the compiler may read ``grad`` of what is no leaf."""
        shapes = tuple([tensor.shape for tensor in tensors(inputs)])
        frozen = tuple([not weight.requires_grad for weight in self._weights])
        key = shapes, frozen, torch.is_grad_enabled(), self._module.training
        if key in self._seen:
            yield
            return
        self._seen.add(key)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not")
            yield

    def _require_compilable(self) -> None:
        problems = []
        if any(isinstance(layer, PartialModule) for layer in self._module.modules()):
            problems.append(
                "it is a part of the network's own forward, which is followed call by call; "
                "use a chain of layers (nn.Sequential), or give the stages as modules"
            )
        if any(self._hooks):
            problems.append(
                "it has layers with hooks, which a compiled graph may leave out; remove them"
            )
        if problems:
            message = f"stage {self._stage} cannot be compiled; leave compile out, or"
            raise OptionError(format_problems(message, problems))


def _call_layers(module: nn.Module, weights: dict[str, Tensor], inputs: Tree) -> Tree:
    """Return the output of a module with these weights; this is what is compiled."""
    return torch.func.functional_call(module, weights, (inputs,))


def _divide_without_recomputation(
    graph: torch.fx.GraphModule, inputs: Sequence[object], **options: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Divide a graph into forward and backward, so that the backward forwards nothing again.

    Raises:
        LinearizeError: Layers ask for a recomputation, as activation checkpointing does.
    """
    from torch._functorch.partitioners import default_partition, has_recomputable_ops

    if has_recomputable_ops(graph):
        raise LinearizeError(
            "something is forwarded again inside the backward, as activation checkpointing "
            "does, at other weights than linearize='live' asks for; use linearize='stash' or "
            "'recompute', or remove the checkpointing"
        )
    return default_partition(graph, inputs, num_fwd_outputs=options["num_fwd_outputs"])


def _aot_eager_without_recomputation() -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    return aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        partition_fn=_divide_without_recomputation,
        keep_inference_input_mutations=True,
    )


def _inductor_partitioner() -> object:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class WithoutRecomputation(CustomPartitionerFn):
        def __call__(
            self, gm: torch.fx.GraphModule, joint_inputs: Sequence[object], **options: Any
        ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
            return _divide_without_recomputation(gm, joint_inputs, **options)

        def uuid(self) -> str:
            return "hocket: the backward forwards nothing again"

        def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
            return _inductor_partitioner, ()  # written by inductor into keys of its cache

    return WithoutRecomputation()
