"""What is expected of a plan follows from what its stages took in a rehearsal."""

from dataclasses import replace

import pytest

from hocket.methods import BP, DGL, FDG, DGLAsync
from hocket.partition.link import Link
from hocket.planner.forecast import MIB, StageProfiles, best, forecast
from hocket.planner.rehearse import Rehearsed

STAGE = Rehearsed(
    seconds={"F": (2.0,), "B": (4.0,), "U": (0.2,), "T": ()},
    received_bytes=MIB,
    sent_bytes=MIB,
    weight_bytes=4 * MIB,
    optimizer_bytes=4 * MIB,
    peak_bytes=30 * MIB,
)
WHOLE = replace(
    STAGE, seconds={"F": (4.0,), "B": (8.0,), "U": (0.4,), "T": ()}, weight_bytes=8 * MIB
)
FAST = Link(bytes_per_s=1e15)


def slower(stage, factor):
    seconds = {kind: tuple(factor * s for s in seen) for kind, seen in stage.seconds.items()}
    return replace(stage, seconds=seconds)


def scene(own=(STAGE, STAGE), factor=1.0):
    stages = [slower(stage, factor) for stage in own]
    plain = [slower(STAGE, factor)] * 2
    return StageProfiles(own=stages, plain=plain, whole=slower(WHOLE, factor))


def expected(method, own=(STAGE, STAGE), link=FAST, together=None):
    return forecast(method.name, method, ["c"], scene(own), link=link, together=together)


def test_even_stages_double_the_speed_without_a_barrier():
    found = expected(FDG())
    assert found.cuts == ("c",)
    assert [stage.total_s for stage in found.times] == pytest.approx([6.2, 6.2])
    assert found.imbalance == pytest.approx(0.0)
    assert found.packet_bytes == (MIB,)
    assert found.bp_s == pytest.approx(12.4)
    assert found.speed_up == pytest.approx(2.0)
    assert (found.delay, found.staleness) == ((2, 0), (1.0, 0.0))
    assert expected(BP()).speed_up == pytest.approx(1.0, rel=0.02)  # one update is hidden


def test_uneven_stages_wait():
    found = expected(FDG(), own=(slower(STAGE, 0.5), slower(STAGE, 1.5)))
    assert found.imbalance == pytest.approx(0.5)
    assert found.tick_s == pytest.approx(9.3)


def test_what_a_signal_learns_takes_its_time():
    taught = replace(STAGE, seconds=STAGE.seconds | {"T": (1.0,)})
    assert expected(DGL(), own=(taught, STAGE)).times[0].total_s == pytest.approx(7.2)


def test_memory_is_what_was_held_by_what_it_is_for():
    first, last = expected(FDG()).memory  # two batches in flight at stage 0
    assert (first.weights, first.optimizer, first.versions) == (8.0, 4.0, 8.0)
    assert (first.inputs, first.graphs, first.packets) == (2.0, 8.0, 2.0)
    assert (last.inputs, last.versions, last.packets) == (1.0, 0.0, 2.0)
    assert (first.total, last.total) == (32.0, 32.0)


def test_a_buffer_holds_more_than_was_rehearsed():
    first, last = expected(DGLAsync(buffer=30)).memory
    assert (first.inputs, first.packets, first.total) == (1.0, 1.0, 31.0)
    assert (last.inputs, last.packets, last.total) == (30.0, 1.0, 60.0)


def test_stages_that_share_a_machine_are_slower_while_they_work_together():
    together = scene(factor=1.5)
    assert expected(FDG(), together=together).tick_s == pytest.approx(1.5 * 6.2, rel=0.02)
    assert expected(BP(), together=together).tick_s == pytest.approx(12.4, rel=0.03)
    alone, shared = expected(FDG()), expected(FDG(), together=together)
    assert shared.bp_s == alone.bp_s
    assert shared.ddp_s == pytest.approx(1.5 * alone.ddp_s)
    assert shared.pipeline_s == pytest.approx(1.5 * alone.pipeline_s)


def test_summing_gradients_over_a_slow_link_costs_what_the_link_takes():
    slow = Link(bytes_per_s=MIB, latency_s=0.5)
    found = expected(FDG(), link=slow)
    assert found.ddp_s == pytest.approx(6.4 + 2 * (0.5 + 4.0))
    assert found.packet_bytes == (MIB,)
    assert expected(FDG(), link=slow).tick_s > expected(FDG()).tick_s


def test_a_flushing_pipeline_takes_its_best_number_of_micro_batches():
    assert expected(FDG()).pipeline_s == pytest.approx(12.0 / 32 * 33 / 2 + 0.2)
    late = Link(bytes_per_s=1e15, latency_s=100.0)
    assert expected(FDG(), link=late).pipeline_s == pytest.approx(212.2)


def test_the_quickest_is_chosen_unless_one_as_quick_is_less_stale_or_smaller():
    fdg, bp = expected(FDG()), expected(BP())
    chosen, why = best([bp, fdg])
    assert chosen is fdg
    assert why.startswith("2.00 times back-propagation on one device; nothing that is as quick")
    small = replace(STAGE, peak_bytes=20 * MIB)
    close = replace(expected(DGL(), own=(small, small)), tick_s=1.02 * fdg.tick_s)
    chosen, why = best([bp, fdg, close])
    assert chosen is close
    assert "within 3 % of the quickest (fdg on 2 stages), with gradients 0 updates late" in why
    assert "instead of 1 and 21 MiB in the fullest stage instead of 32" in why
