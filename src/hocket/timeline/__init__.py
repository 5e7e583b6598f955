"""Measured time of a training: spans of actions, waits and sends of each stage."""

from hocket.timeline.recorder import Fractions as Fractions
from hocket.timeline.recorder import Recorder as Recorder
from hocket.timeline.recorder import Span as Span
from hocket.timeline.recorder import SpanKind as SpanKind
from hocket.timeline.timeline import Timeline as Timeline
