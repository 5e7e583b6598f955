"""ADL, accumulated decoupled learning (arXiv 2012.03747): FDG's ticks, an update every M.

Each module counts its own backward passes. The official code has reduce="sum".
"""

from reference import fdg

train = fdg.train
