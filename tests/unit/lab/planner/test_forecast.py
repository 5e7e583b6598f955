"""A forecast follows from the profiles of its stages."""

from dataclasses import replace

import pytest

from hocket.errors import OptionError
from hocket.partition.costs.device import Device
from hocket.partition.costs.link import Link
from hocket_lab.planner.forecast import MIB, StageProfiles, choose_best, forecast
from hocket_lab.planner.predict import hide_link
from hocket_lab.planner.rehearsals import Candidate
from hocket_lab.planner.rehearse import StageProfile

STAGE = StageProfile(
    batch_size=64,
    seconds={"F": (2.0,), "B": (4.0,), "U": (0.2,), "T": ()},
    received_bytes=MIB,
    sent_bytes=MIB,
    returned_bytes=MIB,
    weight_bytes=4 * MIB,
    trainable_bytes=4 * MIB,
    optimizer_bytes=4 * MIB,
    peak_bytes=30 * MIB,
)
WHOLE = replace(
    STAGE,
    seconds={"F": (4.0,), "B": (8.0,), "U": (0.4,), "T": ()},
    weight_bytes=8 * MIB,
    trainable_bytes=8 * MIB,
)
FAST = Link(bytes_per_s=1e15)


def scale_seconds(stage, factor):
    seconds = {kind: tuple(factor * s for s in all_s) for kind, all_s in stage.seconds.items()}
    return replace(stage, seconds=seconds)


def build_profiles(stages=(STAGE, STAGE), factor=1.0):
    stages = [scale_seconds(stage, factor) for stage in stages]
    bp = [scale_seconds(STAGE, factor)] * 2
    return StageProfiles(method=stages, backpropagation=bp, uncut=scale_seconds(WHOLE, factor))


def build_forecast(name, stages=(STAGE, STAGE), link=FAST, contended=None, extra_delay=()):
    """Forecast a method on two stages; others, which share a machine, are `contended`."""
    candidate = Candidate(name, ("c",), extra_delay, (Device(link=link),) * 2)
    return forecast(candidate, build_profiles(stages), contended_profiles=contended)


def fdg_over(bytes_per_s):
    return Candidate("fdg", ("c",), devices=(Device(link=Link(bytes_per_s)),) * 2)


def test_even_stages_double_the_speed_without_a_barrier():
    predicted = build_forecast("fdg")
    assert predicted.cuts == ("c",)
    assert [stage.total_s for stage in predicted.times] == pytest.approx([6.2, 6.2])
    assert predicted.imbalance == pytest.approx(0.0)
    assert predicted.packet_bytes == (MIB,)
    assert predicted.bp_s == pytest.approx(12.4)
    assert predicted.speed_up == pytest.approx(2.0)
    assert (predicted.delay, predicted.staleness) == ((2, 0), (1.0, 0.0))
    assert build_forecast("bp").speed_up == pytest.approx(1.0, rel=0.02)  # one update is hidden


def test_uneven_stages_wait_and_the_learning_of_a_signal_takes_time():
    stages = scale_seconds(STAGE, 0.5), scale_seconds(STAGE, 1.5)
    predicted = build_forecast("fdg", stages=stages)
    assert predicted.imbalance == pytest.approx(0.5)
    assert predicted.tick_s == pytest.approx(9.3)
    with_target = replace(STAGE, seconds=STAGE.seconds | {"T": (1.0,)})
    first, _ = build_forecast("dgl", stages=(with_target, STAGE)).times
    assert first.total_s == pytest.approx(7.2)


MEMORY = {
    "of two batches in flight": ("fdg", {}, 0, (8, 4, 8, 2, 8, 3, 33)),
    "of the last stage": ("fdg", {}, 1, (8, 4, 0, 1, 17, 3, 33)),
    "of frozen weights": ("fdg", {"weight_bytes": 6 * MIB}, 0, (10, 4, 8, 2, 6, 3, 33)),
    "not more than was measured": ("fdg", {"peak_bytes": 18 * MIB}, 0, (8, 4, 6, 0, 0, 3, 21)),
    "before a replay buffer": ("dgl-async:buffer=30", {}, 0, (8, 4, 0, 1, 17, 1, 31)),
    "with a replay buffer": ("dgl-async:buffer=30", {}, 1, (8, 4, 0, 30, 17, 2, 61)),
}


@pytest.mark.parametrize(("name", "changes", "number", "wanted"), MEMORY.values(), ids=MEMORY)
def test_measured_memory_is_split_by_use(name, changes, number, wanted):
    stages = replace(STAGE, **changes), STAGE
    found = build_forecast(name, stages=stages).memory[number]
    parts = ("weights", "optimizer", "versions", "inputs", "graphs", "packets", "total")
    assert tuple(getattr(found, part) for part in parts) == wanted


def test_summing_gradients_of_trained_weights_takes_the_time_of_the_link():
    slow = Link(bytes_per_s=MIB, latency_s=0.5)
    predicted = build_forecast("fdg", link=slow)
    assert predicted.ddp_s == pytest.approx(6.4 + 2 * (0.5 + 4.0))
    assert predicted.packet_bytes == (MIB,)
    assert build_forecast("fdg", link=slow).tick_s > build_forecast("fdg").tick_s
    frozen = replace(build_profiles(), uncut=replace(WHOLE, trainable_bytes=MIB))
    predicted = forecast(fdg_over(MIB), frozen)
    assert predicted.ddp_s == pytest.approx(6.4 + 2 * 0.5)


def test_stages_that_share_a_machine_are_slower_while_they_overlap():
    contended = build_profiles(factor=1.5)
    alone, shared = build_forecast("fdg"), build_forecast("fdg", contended=contended)
    assert shared.tick_s == pytest.approx(1.5 * 6.2, rel=0.02)
    assert build_forecast("bp", contended=contended).tick_s == pytest.approx(12.4, rel=0.03)
    assert shared.bp_s == alone.bp_s
    assert shared.ddp_s == pytest.approx(1.5 * alone.ddp_s)
    assert shared.pipeline_s == pytest.approx(1.5 * alone.pipeline_s)


def test_a_flushed_pipeline_has_the_best_number_of_micro_batches():
    assert build_forecast("fdg").pipeline_s == pytest.approx(12.0 / 32 * 33 / 2 + 0.2)
    late = Link(bytes_per_s=1e15, latency_s=100.0)
    # All micro-batches are on their way at once.
    assert build_forecast("fdg", link=late).pipeline_s == pytest.approx(200.2 + 6.0 / 32 * 33)
    busy = Link(bytes_per_s=MIB / 10)  # the packets of a batch take longer than its passes
    passing_s = 2 * 10.0 + 12.0 / 32 + 0.2
    assert build_forecast("fdg", link=busy).pipeline_s == pytest.approx(passing_s)


def test_a_batch_is_not_divided_into_less_than_one_input():
    few = [replace(STAGE, batch_size=2)] * 2
    profiles = StageProfiles(few, few, replace(WHOLE, batch_size=2))
    divided = forecast(fdg_over(1e15), profiles)
    assert divided.pipeline_s == pytest.approx(6.0 / 2 * 3 + 0.2)
    one = replace(profiles, uncut=replace(WHOLE, batch_size=1))
    undivided = forecast(fdg_over(1.0), one)
    assert undivided.ddp_s == pytest.approx(12.4)  # with nobody to sum gradients with
    assert forecast(fdg_over(1e15), one).pipeline_s == pytest.approx(12.2)


def test_the_fastest_is_chosen_unless_an_equally_fast_one_is_less_stale_or_smaller():
    fdg, bp = build_forecast("fdg"), build_forecast("bp")
    chosen, reason = choose_best([bp, fdg])
    assert chosen is fdg
    assert reason.startswith("2.00 times as fast as back-propagation on one device, with ")
    assert "up to 1 updates stale; no other" in reason
    small = replace(STAGE, peak_bytes=20 * MIB)
    close = replace(build_forecast("dgl", stages=(small, small)), tick_s=1.02 * fdg.tick_s)
    chosen, reason = choose_best([bp, fdg, close])
    assert chosen is close
    assert "up to 0 updates stale and at most 22 MiB in a stage; within 3 % of the" in reason
    assert "(fdg on 2 stages), which has 1 updates and 33 MiB" in reason
    slow = replace(fdg, tick_s=100.0)
    _, reason = choose_best([slow])
    assert "or equally fresh ones and less memory. None is faster than one device: t" in reason
    assert "None is faster" not in choose_best([slow, fdg])[1]


def test_what_needs_more_memory_than_the_limit_is_not_chosen():
    fdg, bp = build_forecast("fdg"), build_forecast("bp")
    small = replace(STAGE, peak_bytes=20 * MIB)
    close = replace(build_forecast("dgl", stages=(small, small)), tick_s=2 * fdg.tick_s)
    every = [bp, fdg, close]

    def chosen_within(*limits_mib):
        devices = tuple(Device(memory_limit_mib=mib) for mib in limits_mib)
        best, _ = choose_best([replace(one, devices=devices) for one in every])
        return best.method

    assert chosen_within(33.0, 33.0) == "fdg"
    assert chosen_within(33.0, 32.9) == chosen_within(32.9, float("inf")) == "dgl"
    with pytest.raises(OptionError, match=r"needs 21 MiB and has 8 MiB, stage 1 .* no"):
        chosen_within(8.0, float("inf"))


def test_a_slow_device_takes_longer_and_the_fastest_one_is_what_a_speed_up_compares_with():
    devices = Device(2.0, link=FAST), Device(0.5, link=FAST)
    predicted = forecast(Candidate("fdg", ("c",), devices=devices), build_profiles())
    assert [stage.total_s for stage in predicted.times] == pytest.approx([3.1, 12.4])
    assert (predicted.tick_s, predicted.bp_s) == pytest.approx((12.4, 6.2))
    assert predicted.ddp_s == pytest.approx(6.4 / 0.5)  # an even share, too
    late = Device(link=Link(1e15, latency_s=5.0)), Device(link=FAST), Device(link=FAST)
    three = replace(build_profiles((STAGE,) * 3), backpropagation=[STAGE] * 3)
    times = forecast(Candidate("fdg", ("b", "c"), devices=late), three).times
    assert [stage.packet_s > 4.0 for stage in times] == [True, False, False]


def test_stages_that_wait_for_packets_get_the_delay_that_hides_them():
    late = Link(bytes_per_s=1e15, latency_s=6.0)
    waiting = build_forecast("fdg", link=late)
    assert waiting.tick_s > 1.5 * 6.2
    assert (waiting.hiding_delay, waiting.extra_delay) == ((1,), ())
    assert build_forecast("fdg").hiding_delay == ()
    assert hide_link([waiting, build_forecast("bp", link=late)]) == [
        Candidate("fdg", ("c",), extra_delay=(1,))
    ]
    hidden = build_forecast("fdg", link=late, extra_delay=(1,))
    assert hidden.tick_s == pytest.approx(6.2)
    assert (hidden.staleness, hidden.hiding_delay) == ((3.0, 0.0), ())
    assert hidden.title == "fdg with extra delay 1 on 2 stages"
    assert choose_best([waiting, hidden])[0] is hidden


def test_a_short_wait_is_hidden_by_the_other_order_of_a_tick():
    late = Link(bytes_per_s=1e15, latency_s=2.0)
    waiting = build_forecast("fdg:shrink=0.5", link=late)
    assert waiting.tick_s == pytest.approx(6.2 + 2.0, rel=0.05)
    turned, delayed = hide_link([waiting])
    assert turned == Candidate("fdg:shrink=0.5,order=forward-first", ("c",))
    assert delayed == Candidate("fdg:shrink=0.5", ("c",), extra_delay=(1,))
    shown = [forecast(each, build_profiles()) for each in (turned, delayed)]
    assert [each.tick_s for each in shown] == pytest.approx([6.2, 6.2])
    assert [each.staleness[0] for each in shown] == [2.0, 3.0]
    assert choose_best([waiting, *reversed(shown)])[0] is shown[0]
    assert build_forecast("ddg", link=late).hiding_delay == (1,)
    assert len(hide_link([build_forecast("ddg", link=late)])) == 1
    # What is there already, in other words too, is not forecast twice.
    other_way = replace(shown[0], method="fdg:order=forward-first,shrink=0.5")
    again = replace(waiting, method="fdg:shrink=0.50")
    assert hide_link([waiting, again, other_way]) == [delayed]
    assert hide_link([waiting, other_way, shown[1]]) == []


def test_no_delay_is_advised_that_needs_older_weights_than_the_method_keeps():
    late = Link(bytes_per_s=1e15, latency_s=20.0)
    assert build_forecast("paci:accumulate=2", link=late).hiding_delay == (7,)
    assert build_forecast("pipedream-2bw:accumulate=2", link=late).hiding_delay == ()
