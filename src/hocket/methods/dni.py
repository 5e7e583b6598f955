"""DNI: every stage learns at once from a predicted gradient, and improves the prediction later.

Reference: Jaderberg et al., Decoupled neural interfaces, ICML 2017, arXiv 1608.05343, section
2.1. Plain version: ``tests/reference/dni.py``. T is the step of a stage's synthesizer, which
learns from the gradient that the next stage computes for the same batch.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(DNI(), stages=3, batches=3), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0 B0 U0 T0 | F0 B0 U0 T0 | F0 B0 U0
   1 | F1 B1 U1 T1 | F1 B1 U1 T1 | F1 B1 U1
   2 | F2 B2 U2 T2 | F2 B2 U2 T2 | F2 B2 U2
"""

from functools import partial

from hocket.methods.method import EpochEnd, Method, preset
from hocket.signals import Synthetic


@preset("arXiv 1608.05343", Synthetic)
def DNI(
    *,
    labels: bool = False,
    forward_delay: int = 0,
    backward_delay: int = 0,
    epoch_end: EpochEnd = "carry",
    name: str = "dni",
) -> Method:
    """Build decoupled neural interfaces.

    Other options: see `Method`.

    Args:
        labels: Let the synthesizers see the targets (cDNI).
        backward_delay: Ticks that a target of a synthesizer travels to the stage before.

    Raises:
        OptionError: An option is out of range.

    >>> DNI().memory(0, stages=4)
    MemoryCount(graphs=1, inputs=1, versions=1)
    """


PRESETS = {"dni": DNI, "cdni": partial(DNI, labels=True, name="cdni")}
