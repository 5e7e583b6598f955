"""DDG, decoupled parallel back-propagation with delayed gradients (arXiv 1804.10574, alg. 1).

Activations pass within the iteration, gradients one iteration per edge: module k forwards batch
t and back-propagates batch t - (K-k). The paper's gradient is "stash", its code's "live".
"""

from functools import partial

from reference import fdg

train = partial(fdg.train, forward_delay=0, order="forward-first")
