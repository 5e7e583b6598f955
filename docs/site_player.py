"""Programs of the player on the front page: what the engines execute, and when it repeats."""

from itertools import product

from pictures.programs import in_units

from hocket import Method, unroll
from hocket.errors import OptionError
from hocket.methods.registry import method_options, parse_method

STAGES, ACCUMULATE = (2, 3, 4), (1, 2, 4)
BATCHES = 32  # enough to see each program repeat
METHODS = {
    "bp": "Back-propagation: one stage works, the others wait.",
    "gpipe": "GPipe: exact gradients, and a wait at the end of each group.",
    "1f1b": "1F1B: as GPipe, with fewer batches in flight.",
    "ddg": "DDG: stale gradients, and forwards that wait for each other.",
    "fr": "Features Replay: as DDG, but a stage keeps inputs instead of graphs.",
    "pipedream-2bw": "PipeDream-2BW: every gradient is one update old.",
    "paci": "PACI: a pipeline with several gradients per update.",
    "fdg": "FDG: stale gradients, and no stage waits.",
    "adl": "ADL: FDG with several gradients per update.",
    "dsp": "DSP: as FDG, but a stage keeps inputs instead of graphs.",
    "dgl": "DGL: local losses. No stage waits, and nothing is stale.",
}


def programs() -> dict[str, dict]:
    """Return the text of each method, and its programs by stages and gradients per update."""
    return {
        name: {"says": says, "programs": dict(programs_of(name))}
        for name, says in METHODS.items()
    }


def programs_of(name: str):
    """Yield each program of a method that is allowed, as ``K,M`` and a table."""
    for stages, accumulate in product(STAGES, ACCUMULATE):
        if accumulate > 1 and "accumulate" not in method_options(name):
            continue
        try:
            method = method_of(name, accumulate)
            method.require_stages(stages)
        except OptionError:
            continue
        yield f"{stages},{accumulate}", table(method, stages)


def method_of(name: str, accumulate: int) -> Method:
    """Return a method that updates after so many gradients."""
    takes = "accumulate" in method_options(name)
    return parse_method(f"{name}:accumulate={accumulate}" if takes else name)


def table(method: Method, stages: int) -> dict:
    """Return a program until it repeats.

    The table has the start of the forward and of the backward of each batch at each stage, in
    forwards. From the time ``full`` on, batch ``n + repeats`` starts ``period`` later than
    batch n. ``versions`` are the updates that the weights of a forward have seen, where these
    are not the newest. ``gradients`` says whether gradients cross the edges.
    """
    repeats = method.accumulate
    spans = in_units(method, stages, BATCHES)
    starts = {
        kind: [
            [int(s.start_s) for s in spans if (s.kind, s.stage) == (kind, stage)]
            for stage in range(stages)
        ]
        for kind in "FB"
    }
    period = starts["F"][0][-1] - starts["F"][0][-1 - repeats]
    # The first batch of each row from which starts and staleness repeat.
    first, full = 0, 0
    for kind, stage in product("FB", range(stages)):
        row = starts[kind][stage]
        stale = [method.staleness(stage, stages, n) for n in range(BATCHES)]
        odd = [
            n
            for n in range(BATCHES - repeats)
            if row[n] + period != row[n + repeats] or stale[n] != stale[n + repeats]
        ]
        begin = max(odd, default=-1) + 1
        first, full = max(first, begin), max(full, row[begin])
    made = {kind: [row[: first + repeats] for row in starts[kind]] for kind in "FB"}
    made |= {"repeats": repeats, "period": period, "full": full}
    made["gradients"] = method.signal.needs_gradient
    if method.holds(stages):
        seen = {
            a.batch: a.version
            for tick in unroll(method, stages, BATCHES)
            for a in tick
            if a.kind == "F"
        }
        made["versions"] = [seen[n] for n in range(first + repeats)]
    return made
