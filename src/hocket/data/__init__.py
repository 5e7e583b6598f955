"""Named data sets and loaders that serve them in batches."""

from hocket.data.batches import Batches, Examples, InMemory, Transform
from hocket.data.dataset import Data, check_targets
from hocket.data.mixing import Mix, MixedExamples
from hocket.data.registry import DATA, check_data, load, options

__all__ = [
    "DATA",
    "Batches",
    "Data",
    "Examples",
    "InMemory",
    "Mix",
    "MixedExamples",
    "Transform",
    "check_data",
    "check_targets",
    "load",
    "options",
]
