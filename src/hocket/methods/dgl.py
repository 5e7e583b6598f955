"""DGL: every stage learns from its own loss, and no gradient crosses an edge.

Reference: Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 1. Plain
version: ``tests/reference/dgl.py``. An activation takes one tick per edge; without delay the
weights would be the same. The loss can include similarity matching (Nøkland, Eidnes, ICML 2019,
arXiv 1901.06656; plain version: ``tests/reference/predsim.py``).

It can also include InfoPro's reconstruction of the input (Wang et al., ICLR 2021, arXiv
2101.10832; plain version: ``tests/reference/infopro.py``).

With ``reach=r`` stages also learn from the losses of the next r stages, by gradients that take
the ticks of FDG. Reference: overlapping local updates of Laskin et al., arXiv 2012.03837. Plain
version: ``tests/reference/reach.py``.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(DGL(), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0 B0 U0    |             |
   1 | F1 B1 U1    | F0 B0 U0    |
   2 | F2 B2 U2    | F1 B1 U1    | F0 B0 U0
   3 | F3 B3 U3    | F2 B2 U2    | F1 B1 U1
   4 |             | F3 B3 U3    | F2 B2 U2
   5 |             |             | F3 B3 U3
"""

from collections.abc import Sequence

from hocket.errors import OptionError
from hocket.methods.method import EpochEnd, Method
from hocket.options.common_options import Reduce
from hocket.options.require import require_list
from hocket.signals import InfoPro, Local, Reach, Signal, Similarity
from hocket.signals.heads import HeadKind


def DGL(
    *,
    head: HeadKind = "mlp-sr",
    width: float = 1.0,
    depth: int = 3,
    similarity: float = 0.0,
    infopro: Sequence[float] = (),
    reach: int = 0,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "dgl",
) -> Method:
    """Build decoupled greedy learning.

    Other options: see `Method`.

    Args:
        head: Kind of auxiliary network: ``mlp-sr``, ``mlp``, ``cnn`` or ``aug``.
        width: Factor on the width of the heads' hidden layers; 1.0 in the paper.
        depth: Number of the heads' hidden layers; 3 in the paper.
        similarity: Weight in [0, 1) of similarity matching in the loss of every stage but the
            last.
        infopro: Weights of the reconstruction of the input and of the prediction; four for the
            first stage and the last one with a head; none for the prediction alone.
        reach: Number of next stages from whose losses a stage learns as well; 0 for none.
        backward_delay: Ticks that a gradient travels to the stage before, if ``reach`` is
            above 0.

    Raises:
        OptionError: An option is out of range, or has no effect.

    >>> DGL().memory(0, stages=4)
    MemoryCount(graphs=1, inputs=1, versions=1)
    >>> [DGL(reach=1).staleness(stage, stages=4) for stage in range(4)]
    [5.0, 3.0, 1.0, 0.0]
    """
    if reach == 0 and backward_delay != 1:
        raise OptionError(
            f"backward_delay={backward_delay!r} with reach=0 delays nothing, as no gradient "
            "crosses an edge; leave it out, or raise reach"
        )
    if similarity and infopro:
        raise OptionError(
            f"similarity={similarity!r} with infopro={infopro!r}: a stage has one local loss; "
            "leave one of them out"
        )
    local = Local(head, width, depth)
    signal: Signal = Similarity(similarity, local) if similarity else local
    if infopro:
        signal = InfoPro(tuple(require_list("infopro", infopro)), local)
    return Method(
        name=name,
        paper="arXiv 1901.08164",
        signal=Reach(reach, signal) if reach else signal,
        forward_delay=forward_delay,
        backward_delay=backward_delay if reach else 0,
        order="backward-first" if reach else "forward-first",
        accumulate=accumulate,
        reduce=reduce,
        epoch_end=epoch_end,
    )


PRESETS = {"dgl": DGL}
