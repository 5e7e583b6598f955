"""Asynchronous DGL: every stage runs at its own speed, on inputs drawn from a buffer.

Reference: Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 2;
with vector quantization arXiv 2106.06401. Plain version: ``tests/reference/dgl_async.py``.
Stages of equal speed have the ticks of DGL; others have none, as no stage waits for another.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(DGLAsync(), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0 B0 U0    |             |
   1 | F1 B1 U1    | F0 B0 U0    |
   2 | F2 B2 U2    | F1 B1 U1    | F0 B0 U0
   3 | F3 B3 U3    | F2 B2 U2    | F1 B1 U1
   4 |             | F3 B3 U3    | F2 B2 U2
   5 |             |             | F3 B3 U3
"""

from dataclasses import replace

from hocket.methods.dgl import DGL
from hocket.methods.method import Method
from hocket.methods.replay import Replay
from hocket.options.common_options import Reduce
from hocket.signals.heads import HeadKind


def DGLAsync(
    *,
    head: HeadKind = "mlp-sr",
    width: float = 1.0,
    depth: int = 3,
    similarity: float = 0.0,
    buffer: int = 5,
    reuse: int = 0,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    name: str = "dgl-async",
) -> Method:
    """Build decoupled greedy learning with replay buffers.

    Other options: see `Method`.

    Args:
        head: Kind of auxiliary network: ``mlp-sr``, ``mlp``, ``cnn`` or ``aug``.
        width: Factor on the width of the heads' hidden layers.
        depth: Number of the heads' hidden layers.
        similarity: Weight in [0, 1) of similarity matching, as of :func:`DGL`.
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
        accumulate=accumulate,
        reduce=reduce,
        name=name,
    )
    replay = Replay(buffer=buffer, reuse=reuse)
    return replace(synchronous, paper="arXiv 2106.06401", replay=replay)


PRESETS = {"dgl-async": DGLAsync}
