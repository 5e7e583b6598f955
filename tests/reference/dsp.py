"""DSP, diversely stale parameters (arXiv 1909.02625): FDG's delays, FR's replay.

Every edge takes one tick in both directions; a module keeps inputs only, and back-propagates a
batch through the weights of the tick in which its gradient comes.
"""

from functools import partial

from reference import fdg

train = partial(fdg.train, linearize="recompute", order="forward-first")
