from dataclasses import replace
from functools import partial
from operator import attrgetter

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from benchmarks.harness.allocations import trace_allocations
from benchmarks.harness.memory import (
    count_allocated,
    measure_peak_mib,
    predicted_memory,
)
from benchmarks.harness.record import Record
from benchmarks.harness.rounds import summarize_pairs, time_turns
from benchmarks.harness.workload import PLAIN, Workload
from benchmarks.overhead import ROWS, OverheadSettings, measure_overhead, time_row
from benchmarks.peers.by_hand import step_by_hand
from benchmarks.short_steps import (
    SHORT_ROWS,
    ShortRow,
    short_step_row,
    short_trainer,
    short_workload,
)
from hocket.options import Named

WORK = Workload(
    network="mlp", shape=(64,), batch=8, stages=2, threads=1, channels_last=False, rate=0.01
)
SMALL = {"network": "mlp", "shape": (64,), "batch": 8, "pairs": 1, "steps": 1}


def test_ratios_are_taken_pair_by_pair():
    summary = summarize_pairs([1.0, 10.0, 4.0], [1.1, 13.0, 4.8], samples=2)
    assert summary["ratios"] == pytest.approx([1.1, 1.3, 1.2])
    assert summary["ratio"] == pytest.approx(1.2)
    assert (summary["ratio_min"], summary["ratio_max"]) == pytest.approx((1.1, 1.3))
    assert (summary["plain_sample_s"], summary["sample_s"]) == pytest.approx((2.0, 2.4))


def test_both_sides_take_turns_and_equally_many_steps():
    turns: list[str] = []
    loops = {"plain": lambda: turns.append("p"), "other": lambda: turns.append("o")}
    times = time_turns(loops, rounds=3, steps=2)
    assert "".join(turns) == "pppooo" + "oooppp" + "pppooo"
    assert [len(seconds) for seconds in times.values()] == [3, 3]


@pytest.mark.parametrize(
    ("row", "base", "goal"),
    [
        ("adl:accumulate=4+staleness-rate", "adl accumulate=4", 1.03),
        ("ddg:linearize=live+predict(direction=last)", "ddg linearize=live", 1.12),
        ("ddg+t1+predict", "ddg", None),
        ("ddg+spike-compensation", "ddg", None),
    ],
)
def test_remedies_are_timed_beside_their_method(row, base, goal, monkeypatch):
    turns = []

    def blocks(loops, rounds, steps):
        turns.append((list(loops), rounds, steps))
        return {"plain": [1.0, 1.0], "row": [2.2, 2.4], "base": [2.0, 2.0]}

    monkeypatch.setattr("benchmarks.overhead.time_turns", blocks)
    found = time_row(WORK, row, pairs=2, steps=3)
    assert turns == [(["plain", "row", "base"], 2, 3)]
    assert (found["base"], found["base_goal"], found["goal"]) == (base, goal, None)
    assert (found["ratio"], found["base_ratio"]) == pytest.approx((2.3, 1.15))
    assert (found["base_ratio_min"], found["base_ratio_max"]) == pytest.approx((1.1, 1.2))
    assert found["base_sample_s"] == pytest.approx(2.0 / 3 / WORK.batch)


def test_both_sides_are_compiled_where_that_is_asked_for(tmp_path, monkeypatch):
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: compiled.append(f) or f)
    measure_overhead(OverheadSettings(out=tmp_path, rows=("fdg",), compile=True, **SMALL))
    assert len(compiled) == 1 + 2  # the plain loop, and two stages
    (row,) = Record.read(tmp_path).rows
    assert "peak_mib" not in row


def test_a_compiled_plain_loop_is_one_graph(monkeypatch):
    """Also of a chain, whose layers `network.compile()` compiles one by one."""
    graphs = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs))
    network = WORK.build_network()
    assert isinstance(network, nn.Sequential)
    step = replace(WORK, compile=True).plain_step()
    plain = WORK.plain_step()
    assert [step(), step()] == pytest.approx([plain(), plain()])
    assert graphs.frame_count == 1


@pytest.mark.parametrize("row", SHORT_ROWS, ids=attrgetter("name"))
def test_a_row_of_short_steps_compares_the_same_work(row):
    """The loop by hand leaves the bits that the engine leaves."""
    work = short_workload(row.stages)
    trainer = short_trainer(row)
    by_hand = work.plain_step()
    if row.stages > 1:
        chain = short_trainer(replace(row, network="chain")).stages
        by_hand = step_by_hand(chain, work.optimizer, work.example_batch())
    step = work.trainer_step(trainer)
    expected = [by_hand() for _ in range(2 * row.stages + 2)]
    losses = [loss for _ in expected if (loss := step()) is not None]
    wanted = [loss for loss in expected if loss is not None][: len(losses)]
    assert losses == wanted
    assert len(set(losses)) > 1


def test_short_steps_are_timed_in_turns():
    row = short_step_row(ShortRow("fdg", 2, goal=1.5), rounds=3, steps=1)
    assert row["row"] == "fdg on 2"
    assert row["goal"] == 1.5
    assert row["above_min_ms"] <= row["above_ms"] <= row["above_max_ms"]
    assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_timed_and_predicted(row):
    threads = torch.get_num_threads()
    found = time_row(WORK, row, pairs=1, steps=1) | predicted_memory(WORK, row)
    assert found["row"] == (PLAIN if row == PLAIN else Named.parse(row).label)
    assert found["ratio"] > 0
    assert found["graphs"] >= 2
    assert (found["extra_parameters"] > 0) == (row == "dgl")
    assert found.get("base") == ("fdg" if "+" in row else None)
    assert torch.get_num_threads() == threads
    counts = dict.fromkeys(("graphs", "inputs", "versions"), 4)  # summed over stages
    assert predicted_memory(WORK, "fdg:order=forward-first") == counts
    assert predicted_memory(WORK, PLAIN) == predicted_memory(WORK, "bp")


def test_the_record_has_every_row(tmp_path, capsys):
    rows = (PLAIN, "fdg:linearize=live")
    without = {"memory": False, "short_rounds": 0}
    measure_overhead(OverheadSettings(out=tmp_path, rows=rows, **SMALL, **without))
    record = Record.read(tmp_path)
    assert [row["row"] for row in record.rows] == [PLAIN, "fdg linearize=live"]
    assert [row["goal"] for row in record.rows] == [None, 1.1]
    assert record.settings["shape"] == [64]
    assert "[2/2] fdg linearize=live: " in capsys.readouterr().err


def test_allocations_are_counted_step_by_step():
    kib = 2**8  # float32

    def steps():
        first = torch.zeros(5 * kib)
        yield 0
        torch.zeros(3 * kib)
        yield 1
        yield 2
        del first
        yield 3

    found = trace_allocations(steps())
    assert [each.held for each in found] == [5 * 2**10, 5 * 2**10, 5 * 2**10, 0]
    assert [each.peak for each in found] == [5 * 2**10, 8 * 2**10, 5 * 2**10, 5 * 2**10]


def test_the_tensors_of_an_engine_and_of_a_loop_by_hand_are_counted():
    work = replace(WORK, batch=4096)
    counts = [count_allocated(work, "fdg", 3, by_hand=by_hand) for by_hand in (False, True)]
    assert counts[1] > 1
    assert counts[0] == pytest.approx(counts[1], rel=0.5)
    plain = count_allocated(work, PLAIN, 3, by_hand=False)
    assert plain == count_allocated(work, "bp", 3, by_hand=True)
    assert plain < counts[1]


def test_memory_counts_what_training_adds():
    large = replace(WORK, shape=(50_000,), batch=2)
    weights_mib = large.parameter_count() * 4 / 2**20
    found = measure_peak_mib(large, "fdg", steps=1)
    for name in ("peak_mib", "allocated_mib", "by_hand_mib"):
        assert found[name] is not None
        assert 1.5 * weights_mib < found[name] < 100 * weights_mib  # gradients and momentum
