"""Named data sets and loaders that serve them in batches."""

from hocket.data.batches import Batches, Examples, InMemory, Transform
from hocket.data.dataset import Data, check_targets
from hocket.data.registry import DATA, check, load, options

__all__ = [
    "DATA",
    "Batches",
    "Data",
    "Examples",
    "InMemory",
    "Transform",
    "check",
    "check_targets",
    "load",
    "options",
]
