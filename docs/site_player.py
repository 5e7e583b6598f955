"""Programs of the player on the front page: what the engines execute, and when it repeats."""

from collections.abc import Iterator
from itertools import product

from pictures.programs import in_units

from hocket import Method
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


def programs_of(name: str) -> Iterator[tuple[str, dict]]:
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
    # The starts of each row of a longer training.
    repeats, spans = method.accumulate, in_units(method, stages, BATCHES)
    rows = {
        (kind, stage): [int(s.start_s) for s in spans if (s.kind, s.stage) == (kind, stage)]
        for kind, stage in product("FB", range(stages))
    }
    period = rows["F", 0][-1] - rows["F", 0][-1 - repeats]

    # The first batch from which starts and staleness repeat in all rows, and its time.
    first, full = 0, 0
    for (_, stage), row in rows.items():
        stale = [method.staleness(stage, stages, n) for n in range(BATCHES)]
        odd = [
            n
            for n in range(BATCHES - repeats)
            if row[n] + period != row[n + repeats] or stale[n] != stale[n + repeats]
        ]
        begin = max(odd, default=-1) + 1
        first, full = max(first, begin), max(full, row[begin])

    # What is needed up to there, and once more.
    shown = range(first + repeats)
    made = {kind: [[rows[kind, k][n] for n in shown] for k in range(stages)] for kind in "FB"}
    made |= {"repeats": repeats, "period": period, "full": full}
    made["gradients"] = method.signal.needs_gradient
    if method.holds(stages):
        version = method.forward_versions(0, stages)
        made["versions"] = [version(n) for n in shown]
    return made
