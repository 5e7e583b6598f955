"""Asynchronous DGL: every stage runs at its own speed, on inputs drawn from a buffer.

Reference: Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 2;
with vector quantization arXiv 2106.06401. Plain version: ``tests/reference/dgl_async.py``.
Stages of equal speed have the ticks of DGL; others have none, as no stage waits for another.

>>> from hocket.program import unroll
>>> list(unroll(DGLAsync(), stages=3, batches=4)) == list(unroll(DGL(), stages=3, batches=4))
True
"""

from collections.abc import Sequence
from dataclasses import replace

from hocket.methods.dgl import DGL
from hocket.methods.method import Method, Replay
from hocket.options.common_options import Reduce
from hocket.signals.heads import HeadKind


def DGLAsync(
    *,
    head: HeadKind = "mlp-sr",
    width: float = 1.0,
    depth: int = 3,
    similarity: float = 0.0,
    infopro: Sequence[float] = (),
    buffer: int = 5,
    reuse: int = 0,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    name: str = "dgl-async",
) -> Method:
    """Build decoupled greedy learning with replay buffers.

    Other options: see `DGL`.

    Args:
        buffer: Number of the last arrived batches that a stage keeps (the paper's M).
        reuse: Limit on the uses of each batch; 0 for no limit.

    Raises:
        OptionError: An option is out of range.

    >>> DGLAsync().memory(0, stages=4)
    MemoryCount(graphs=1, inputs=1, versions=1)
    """
    synchronous = DGL(
        head=head,
        width=width,
        depth=depth,
        similarity=similarity,
        infopro=infopro,
        accumulate=accumulate,
        reduce=reduce,
        name=name,
    )
    replay = Replay(buffer=buffer, reuse=reuse)
    return replace(synchronous, paper="arXiv 2106.06401", replay=replay)


PRESETS = {"dgl-async": DGLAsync}
