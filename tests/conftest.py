"""What all tests share: one thread, as equal bits need equal thread counts."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
# The same examples in every run, and no failure because a machine is slow.
settings.register_profile("laws", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("laws")
