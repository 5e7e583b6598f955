"""Measured time of a training: spans of actions, waits and sends of each stage."""

from hocket.timeline.recorder import Recorder as Recorder
from hocket.timeline.span import Fractions as Fractions
from hocket.timeline.span import Span as Span
from hocket.timeline.span import SpanKind as SpanKind
from hocket.timeline.span import Totals as Totals
from hocket.timeline.timeline import Timeline as Timeline
