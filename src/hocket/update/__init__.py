"""How gradients become weights."""

from hocket.update.accumulate import Accumulate as Accumulate
from hocket.update.step import Updater as Updater
