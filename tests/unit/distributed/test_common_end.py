"""The batch before which all replicas stop."""

import random

import pytest
from torch.distributed import HashStore

from hocket.distributed.world.common_end import CommonEnd


@pytest.mark.parametrize("seed", range(20))
def test_replicas_stop_at_the_same_batch_however_far_apart_they_are(seed):
    """It is none that one of them has begun."""
    draw, store = random.Random(seed), HashStore()
    ends = [CommonEnd(store, replica, 3) for replica in range(3)]
    batches, asked, ended = [draw.randrange(100) for _ in ends], draw.randrange(3), set()
    furthest = max(batches)
    while len(ended) < 3:
        k = draw.choice(sorted({0, 1, 2} - ended))
        if ends[k].reached(batches[k], asked=k == asked):
            ended.add(k)
        else:
            batches[k] += 1
    assert len(set(batches)) == 1
    assert batches[0] >= furthest
