"""One stage from the options that all stages share and its parts."""

from dataclasses import replace

from hocket.codecs.stateless import Exact
from hocket.stage.layers.compatibility import check_compatible
from hocket.stage.parts import StageParts
from hocket.stage.passes.back_propagate import load_backward
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.transport.encoded import EncodedPort


def build_stage(setup: Setup, parts: StageParts) -> Stage:
    """Build one stage on its device; a codec is put between its ports and its neighbours.

    Raises:
        OptionError: Its layers are not compatible with the method.
    """
    method = setup.method
    parts.module.to(setup.device)
    parts.signal_network.to(setup.device)
    delay = setup.graph_delay(parts.index, parts.count)
    check_compatible(
        parts.module,
        method.linearize,
        delay,
        parts.index,
        setup.precision,
        names=parts.names,
        resumable=setup.resumable,
    )
    if parts.signal.needs_gradient:
        load_backward()
    if setup.codec == Exact():
        return Stage(setup, parts)

    # Ports that encode what is sent, where there is a neighbour.
    codec, index = setup.codec, parts.index
    seed = setup.seed + parts.seed_offset
    to_previous, to_next = parts.to_previous, parts.to_next
    if index > 0:
        edge = f"the edge from stage {index} to stage {index - 1}"
        to_previous = EncodedPort(to_previous, codec.gradients, codec, seed, edge=edge)
    if index < parts.count - 1:
        to_next = EncodedPort(
            to_next,
            codec,
            codec.gradients,
            seed + index,
            parts.send_stats,
            self_contained=setup.method.free_running,
            edge=f"the edge from stage {index} to stage {index + 1}",
        )
    return Stage(setup, replace(parts, to_previous=to_previous, to_next=to_next))
