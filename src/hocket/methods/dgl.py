"""DGL: every stage learns from a loss of its own, and no gradient crosses an edge."""

from hocket.methods.method import EpochEnd, Method, Reduce
from hocket.signals import Local, Similarity
from hocket.signals.heads import HeadKind


def DGL(
    *,
    head: HeadKind = "mlp-sr",
    width: float = 1.0,
    depth: int = 3,
    similarity: float = 0.0,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    forward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "dgl",
) -> Method:
    """Decoupled greedy learning; pipelined or not, its trajectory is the same.

    ``width`` is a factor on the width of the heads' hidden layers, ``depth`` their number. A
    head has 1.0 and 3 in the paper. ``similarity`` is the part of the loss of every stage but
    the last that is similarity matching (Nøkland, Eidnes, ICML 2019, arXiv 1901.06656).

    Belilovsky, Eickenberg, Oyallon, ICML 2020, arXiv 1901.08164, algorithm 1.
    """
    local = Local(head, width, depth)
    return Method(
        name=name,
        paper="arXiv 1901.08164",
        signal=Similarity(similarity, local) if similarity else local,
        forward_delay=forward_delay,
        backward_delay=0,
        accumulate=accumulate,
        reduce=reduce,
        epoch_end=epoch_end,
    )


PRESETS = {"dgl": DGL}
