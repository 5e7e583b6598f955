"""What one would use instead of Hocket, each as quick as it can be made, to be timed beside it.

A peer says how many processes it takes and, in each of them, prepares a training.
"""

from benchmarks.peers.peer import Baseline as Baseline
from benchmarks.peers.peer import Training as Training
from benchmarks.peers.rows import peer_of as peer_of
