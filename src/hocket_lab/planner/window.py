"""The window law: time of a batch from the batches that stages may begin ahead of a gradient.

Stage i forwards a batch; stage j behind it forwards that batch too and then back-propagates an
older one, whose gradient returns to stage i. Until then stage i begins some batches, its window
towards j: they take at least as long as this round trip. So the law tells the smallest delays,
and with them the smallest staleness, that hide a link. It is a lower bound of the time that
`hocket_lab.planner.simulate.tick_s` simulates.
"""

from collections.abc import Sequence
from math import ceil

from hocket.methods.method import Method
from hocket_lab.planner.simulate import StageTimes

# Waits below this fraction of a batch are not worth older gradients: measured times are off by
# as much.
TOLERANCE = 0.03


def bound_s(method: Method, times: Sequence[StageTimes]) -> float:
    """Return the seconds of a batch that no delay can hide: the longest stage or transfer."""
    stages_s = (stage.total_s - stage.update_s * (1 - 1 / method.accumulate) for stage in times)
    return max([*stages_s, *(stage.transfer_s for stage in times[:-1])])


def least_extra_delay(method: Method, times: Sequence[StageTimes]) -> tuple[int, ...]:
    """Return the extra delay of each edge that hides the link with the least stale gradients.

    Args:
        method: The method, without an extra delay.
        times: Durations of each stage.

    Returns:
        Ticks for each edge; 0 where nothing is to be hidden, or no delay can be extended, or
        the pipeline is flushed.

    >>> from hocket.methods import BP, DDG, FDG
    >>> stage = StageTimes(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=2.0)
    >>> [least_extra_delay(method, [stage] * 4) for method in (BP(), DDG(), FDG())]
    [(0, 0, 0), (2, 2, 2), (1, 1, 1)]
    """
    stages = len(times)
    extra = [0] * (stages - 1)
    if not method.signal.needs_gradient or method.flushes:
        return tuple(extra)
    longest_s = (1 + TOLERANCE) * bound_s(method, times)
    # Batches that a stage begins between forward and backward of a batch.
    missed = [method.batches_between(stage, stages) for stage in range(stages)]
    # Later edges first: their ticks delay the stages before as well.
    for edge in reversed(range(stages - 1)):
        needed = max(
            missed[j] - 1 + ceil(_round_trip_s(method, times, edge, j) / longest_s)
            for j in range(edge + 1, stages)
        )
        gain = sum(delay > 0 for delay in method.edge_delay(edge))
        if gain and needed > missed[edge]:
            extra[edge] = ceil((needed - missed[edge]) / gain)
            for stage in range(edge + 1):
                missed[stage] += gain * extra[edge]
    return tuple(extra)


def _round_trip_s(method: Method, times: Sequence[StageTimes], first: int, last: int) -> float:
    """Return the seconds from the forward of a batch at a stage, to a later one and back.

    An update follows before the next forward.
    """
    passes_s = sum(stage.forward_s + stage.backward_s for stage in times[first : last + 1])
    packets_s = sum(2 * stage.packet_s for stage in times[first:last])
    for stage in range(first + 1, last + 1):
        more = max(method.gradients_sent(stage, len(times)) - 1, 0)  # of one tensor, in a row
        packets_s += more * times[stage - 1].transfer_s
    return passes_s + packets_s + times[first].update_s / method.accumulate
