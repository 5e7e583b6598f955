"""What is expected of a plan follows from what its layers take."""

from dataclasses import replace

import pytest

from hocket.cut.link import Link
from hocket.cut.profile import LayerCost
from hocket.methods import BP, DGL, FDG, FR
from hocket.planner.forecast import MIB, best, forecast

COSTS = {
    name: LayerCost(1.0, 2.0, output_bytes=MIB, kept_bytes=3 * MIB, weight_bytes=2 * MIB)
    for name in ("a", "b", "c", "d")
}
FAST = Link(bytes_per_s=1e15)


def expected(method, borders=(1,), costs=COSTS, link=FAST, update_s=0.0):
    return forecast(
        method.name,
        method,
        costs,
        borders,
        input_bytes=MIB // 2,
        update_s=update_s,
        link=link,
    )


def test_even_stages_double_the_speed_without_a_barrier():
    found = expected(FDG(), update_s=0.4)
    assert found.cuts == ("c",)
    assert [stage.total_s for stage in found.times] == pytest.approx([6.2, 6.2])
    assert found.imbalance == pytest.approx(0.0)
    assert found.packet_bytes == (MIB,)
    assert found.bp_s == pytest.approx(12.4)
    assert found.speed_up == pytest.approx(2.0)
    assert (found.delay, found.staleness) == ((2, 0), (1.0, 0.0))
    assert expected(BP()).speed_up == pytest.approx(1.0)


def test_uneven_stages_wait():
    found = expected(FDG(), borders=(0,))
    assert found.imbalance == pytest.approx(0.5)
    assert found.tick_s == pytest.approx(9.0)


def test_memory_follows_the_methods_table():
    first, last = expected(FDG()).held  # two graphs and inputs at stage 0, of two versions
    assert (first.weights, first.optimizer, first.versions) == (8.0, 4.0, 4.0)
    assert (first.graphs, first.inputs) == (12.0, 1.0)
    assert (last.graphs, last.inputs, last.versions) == (6.0, 1.0, 0.0)
    assert first.total == 29.0
    assert expected(FR()).held[0].graphs == 6.0
    assert expected(DGL()).held[0].versions == 0.0


def test_summing_gradients_over_a_slow_link_costs_what_the_link_takes():
    slow = Link(bytes_per_s=MIB, latency_s=0.5)
    found = expected(FDG(), link=slow)
    assert found.ddp_s == pytest.approx(6.0 + 2 * (0.5 + 4.0))
    assert found.packet_bytes == (MIB,)
    assert expected(FDG(), link=slow).tick_s > expected(FDG()).tick_s


def test_a_flushing_pipeline_takes_its_best_number_of_micro_batches():
    assert expected(FDG()).pipeline_s == pytest.approx(12.0 / 32 * 33 / 2)
    late = Link(bytes_per_s=1e15, latency_s=100.0)
    assert expected(FDG(), link=late).pipeline_s == pytest.approx(212.0)


def test_the_quickest_is_chosen_unless_one_as_quick_is_less_stale_or_smaller():
    fdg, bp = expected(FDG()), expected(BP())
    chosen, why = best([bp, fdg])
    assert chosen is fdg
    assert why.startswith("2.00 times back-propagation on one device; nothing that is as quick")
    close = replace(expected(DGL()), tick_s=1.02 * fdg.tick_s)
    chosen, why = best([bp, fdg, close])
    assert chosen is close
    assert "within 3 % of the quickest (fdg on 2 stages), with gradients 0 updates late" in why
    assert "instead of 1 and 19 MiB in the fullest stage instead of 29" in why
