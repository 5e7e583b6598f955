"""From a method and the stages' modules to an engine that is ready for its first batch."""

from hocket.distributed.world.solo_world import SoloWorld
from hocket.engine.build_here import build_async_simulation, build_replicated, build_serial
from hocket.engine.build_process import build_async_process, build_distributed
from hocket.engine.engine import Engine
from hocket.engine.engine_parts import EngineParts
from hocket.errors import OptionError
from hocket.stage.layers.reversible import require_invertible


def build_engine(parts: EngineParts) -> Engine:
    """Build the engine for these stages, in lockstep or free, in one process or several.

    Raises:
        OptionError: A stage is not compatible with the method, or an option needs ticks.
    """
    # Refuse streams where they would let nothing overlap, graphs where stages wait, and stages
    # that cannot be inverted.
    setup, free = parts.setup, parts.setup.method.free_running
    here = len(parts.modules) if isinstance(parts.world, SoloWorld) else 1
    if setup.streams and (setup.device.type != "cuda" or free or here == 1):
        waits = "run freely" if free else "wait for each other"
        raise OptionError(
            "streams let stages in lockstep overlap on one GPU, and there are "
            f"{here} in this process, which {waits}, on device {str(setup.device)!r}; leave "
            "streams out"
        )
    if setup.cuda_graphs and (free or not isinstance(parts.world, SoloWorld)):
        found = f"free stages of {setup.method.name!r}" if free else "several processes"
        raise OptionError(
            f"cuda_graphs capture the stages of one process in lockstep; here are {found}; "
            "leave cuda_graphs out"
        )
    require_invertible(setup.method, parts.modules, parts.names)

    # Build the engine of the stages here.
    if isinstance(parts.world, SoloWorld) and setup.replicas > 1:
        return build_replicated(parts)
    if isinstance(parts.world, SoloWorld):
        return build_async_simulation(parts) if free else build_serial(parts)
    build = build_async_process if free else build_distributed
    return build(parts, parts.world)
