"""FR, features replay (arXiv 1807.04511, algorithm 1): DDG's delays, inputs kept, not graphs.

Play: every module k < K forwards batch t without a graph and stores its *input*. Replay: the
input of batch t - (K-k) goes through the current weights, and meets the gradient of that batch.
"""

from functools import partial

from reference import ddg

train = partial(ddg.train, linearize="recompute")
