"""Goals of speed, met or missed by records."""

from benchmarks.report.goals import goals_table


def row(name, ratio, cpu_ratio=1.0, **more):
    return {"row": name, "ratio": ratio, "cpu_ratio": cpu_ratio} | more


def said(*rows):
    found = goals_table([row("bp", 1.0), row("independent", 1.8), *rows])
    assert found is not None
    _, _, *lines = found.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {what: (value, met) for what, _, value, met in cells}


def test_each_goal_is_met_or_missed():
    peers = row("ddp", 1.8), row("gpipe microbatches=4", 1.2), row("zbv microbatches=2", 1.5)
    found = said(row("fdg", 1.71, cpu_ratio=1.06, of_limit=0.97), *peers)
    assert found == {
        "fdg beside bp": ("1.71", "missed"),
        "fdg beside the limit": ("0.97", "met"),
        "fdg beside the best pipelining, zbv microbatches=2": ("1.14", "missed"),
        "fdg beside ddp": ("0.95", "missed"),
        "processor time of fdg": ("1.06", "missed"),
    }
    found = said(row("fdg", 1.92, cpu_ratio=1.04), *peers)
    assert {met for _, met in found.values()} == {"met"}


def test_other_methods_are_held_against_fdg():
    found = said(row("fdg", 1.8), row("adl accumulate=4", 1.7), row("dgl", 1.72))
    assert found["adl accumulate=4 beside fdg"] == ("0.94", "missed")
    assert found["dgl beside fdg"] == ("0.96", "met")


def test_nothing_is_said_of_rows_without_fdg_or_the_limit():
    assert goals_table([row("bp", 1.0), row("independent", 1.8), row("ddp", 1.8)]) is None
    assert (
        goals_table([row("bp", 1.0), row("fdg", 1.7), row("fdg checksum=false", 1.7)]) is None
    )
