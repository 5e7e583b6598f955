"""Signals: the sources of a stage's error."""

from hocket.signals.delayed import Delayed as Delayed
from hocket.signals.infopro import InfoPro as InfoPro
from hocket.signals.local import Local as Local
from hocket.signals.local import Objective as Objective
from hocket.signals.reach import Reach as Reach
from hocket.signals.signal import Signal as Signal
from hocket.signals.similarity import Similarity as Similarity
from hocket.signals.synthetic import Synthetic as Synthetic
