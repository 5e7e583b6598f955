"""Asynchronous DGL: every stage runs at its own pace, on what a buffer holds of its input."""

from hocket.method import Method, Reduce, Replay, Sampler
from hocket.signals import Local
from hocket.signals.heads import HeadKind


def DGLAsync(
    *,
    head: HeadKind = "mlp-sr",
    buffer: int = 5,
    reuse: int = 0,
    sampler: Sampler = "freshest",
    accumulate: int = 1,
    reduce: Reduce = "mean",
    name: str = "dgl-async",
) -> Method:
    """Decoupled greedy learning with replay buffers; at equal rates it is DGL.

    Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 2; with vector
    quantization arXiv 2106.06401.
    """
    return Method(
        name=name,
        paper="arXiv 2106.06401",
        signal=Local(head),
        forward_delay=1,
        backward_delay=0,
        accumulate=accumulate,
        reduce=reduce,
        replay=Replay(buffer=buffer, reuse=reuse, sampler=sampler),
    )


PRESETS = {"dgl-async": DGLAsync}
