"""Asynchronous DGL: every stage runs at its own pace, on what a buffer holds of its input."""

from dataclasses import replace

from hocket.methods.dgl import DGL
from hocket.methods.method import Method, Reduce, Replay, Sampler
from hocket.signals.heads import HeadKind


def DGLAsync(
    *,
    head: HeadKind = "mlp-sr",
    width: float = 1.0,
    depth: int = 3,
    similarity: float = 0.0,
    buffer: int = 5,
    reuse: int = 0,
    sampler: Sampler = "freshest",
    accumulate: int = 1,
    reduce: Reduce = "mean",
    name: str = "dgl-async",
) -> Method:
    """Decoupled greedy learning with replay buffers; at equal rates it is DGL.

    Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 2; with vector
    quantization arXiv 2106.06401. Heads and losses are those of :func:`DGL`.
    """
    local = DGL(
        head=head,
        width=width,
        depth=depth,
        similarity=similarity,
        accumulate=accumulate,
        reduce=reduce,
        name=name,
    )
    rule = Replay(buffer=buffer, reuse=reuse, sampler=sampler)
    return replace(local, paper="arXiv 2106.06401", replay=rule)


PRESETS = {"dgl-async": DGLAsync}
