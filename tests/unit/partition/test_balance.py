"""No other split is better, for any costs and limits."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from hocket import Plan, cut
from hocket.errors import CutError, OptionError
from hocket.partition import cutting
from hocket.partition.costs.balance import balance
from hocket.partition.costs.device import Device
from hocket.partition.costs.link import Link
from hocket.partition.costs.profile import LayerCost
from hocket.partition.cutting import fastest_cut
from hocket_lab.planner.devices import Devices
from hocket_lab.planner.predict import cut_by_time
from unit.partition.networks import Block, Chain, Layers, skips

numbers = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def largest(costs, cuts, packets):
    """Return the largest cost of a part, for costs, results and packets of `balance`."""
    ends = [0, *cuts, len(costs)]
    sent = [0, *packets[1:], 0]
    return max(sum(costs[a:b]) + sent[a] + sent[b] for a, b in itertools.pairwise(ends))


@given(numbers, st.data())
def test_no_split_has_a_smaller_largest_part(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    sent = st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs))
    packets = data.draw(st.one_of(st.just([0] * len(costs)), sent))
    chosen = balance([float(cost) for cost in costs], parts, packets=packets)
    every = itertools.combinations(range(1, len(costs)), parts - 1)
    assert len(chosen) == parts - 1
    assert chosen == sorted(set(chosen))
    assert all(0 < cut < len(costs) for cut in chosen)
    best = min(largest(costs, cuts, packets) for cuts in every)
    assert largest(costs, chosen, packets) == best


def layer(seconds, *, out=0, kept=0, weights=0):
    return LayerCost(seconds / 3, 2 * seconds / 3, out, kept, weights)


@given(numbers, st.booleans(), st.data())
def test_no_cut_that_fits_into_the_memory_has_a_faster_slowest_stage(times, overlapping, data):
    def draw(*values):
        return data.draw(st.lists(st.sampled_from(values), min_size=8, max_size=8))

    stages = data.draw(st.integers(1, len(times)))
    sent, weights = draw(0, 1, 8), draw(0, 2**20, 2**21)
    costs = [
        layer(3.0 * seconds, out=sent[n], weights=weights[n]) for n, seconds in enumerate(times)
    ]
    numbers_of_devices = draw(1.0, 0.5, 0.25), draw(3.0, 9.0, float("inf"))
    devices = list(map(Device, *numbers_of_devices, draw(Link(1.0), Link(0.5))))[:stages]

    def slowest(cuts):
        """Return the time of the slowest stage; None if one does not fit."""
        found_s = []
        for k, (first, end) in enumerate(itertools.pairwise([0, *cuts, len(times)])):
            if 3 * sum(weights[first:end]) / 2**20 > devices[k].memory_limit_mib:
                return None
            works = 3 * sum(times[first:end]) / devices[k].speed
            before = sent[first - 1] / devices[k - 1].link.bytes_per_s if k else 0
            after = sent[end - 1] / devices[k].link.bytes_per_s if end < len(times) else 0
            waits = works + 2 * before + 2 * after
            found_s.append(max(works, before, after) if overlapping else waits)
        return max(found_s)

    every = itertools.combinations(range(1, len(times)), stages - 1)
    fitting = [found for found in map(slowest, every) if found is not None]
    if not fitting:
        with pytest.raises(CutError, match=f"no cut into {stages} stages fits .*stage 0 needs"):
            fastest_cut(costs, devices, overlapping=overlapping)
        return
    chosen = [last + 1 for last in fastest_cut(costs, devices, overlapping=overlapping)]
    assert slowest(chosen) == min(fitting)


@given(numbers, st.data())
def test_equal_devices_have_the_cuts_of_equal_parts(times, data):
    stages = data.draw(st.integers(1, len(times)))
    costs = [layer(3.0 * seconds) for seconds in times]
    even = [first - 1 for first in balance([3.0 * seconds for seconds in times], stages)]
    for speed in (1.0, 0.5):
        assert fastest_cut(costs, [Device(speed)] * stages) == even


@given(numbers)
def test_among_equals_of_two_parts_the_earliest_cut_wins(costs):
    assume(len(costs) > 1)
    (chosen,) = balance(costs, 2)
    none = [0] * len(costs)
    best = largest(costs, [chosen], none)
    assert all(largest(costs, [earlier], none) > best for earlier in range(1, chosen))


def test_a_latency_that_nobody_waits_for_does_not_move_the_cut():
    assert fastest_cut([layer(1.0)] * 6, [Device(link=Link(1e9, latency_s=9.0))] * 3) == [1, 3]


def test_a_limit_of_memory_moves_the_cut_and_one_that_nothing_fits_is_refused():
    mib = 2**20
    costs = [layer(1.0, weights=mib), layer(1.0, kept=3 * mib), layer(1.0), layer(1.0)]
    assert fastest_cut(costs, [Device()] * 2) == [1]
    assert fastest_cut(costs, [Device(memory_limit_mib=4.0)] * 2) == [0]
    assert fastest_cut(costs, [Device(memory_limit_mib=6.0), Device()]) == [1]
    with pytest.raises(CutError, match=r"needs 3 MiB and has 2 MiB, stage 1 .* 2.5 MiB"):
        fastest_cut(costs, [Device(memory_limit_mib=2.0), Device(memory_limit_mib=2.5)])


def test_a_network_is_cut_by_measured_times(monkeypatch):
    network, sample = skips()
    times = {"(start)": 1.0, "blocks.0": 9.0, "head": 1.0}

    def timed(layers, sample):
        return {name: layer(times.get(name, 0.0), out=8) for name in layers}

    monkeypatch.setattr(cutting, "profile", timed)
    stages = cut(network, stages=2, sample=sample, by="time", link=Link(1e9))
    assert "blocks.0.fc1.weight" in stages[1].state_dict()
    assert "stem.weight" in stages[0].state_dict()


@pytest.mark.filterwarnings("ignore:.*mean work")  # times are measured
def test_a_sequence_is_cut_inside_its_blocks_by_measured_times():
    network = nn.Sequential(Block(4))
    assert len(cut(network, stages=2, sample=torch.randn(3, 4), by="time")) == 2
    with pytest.raises(CutError, match="into 2 stages: it has 1 layers"):
        cut(network, stages=2, sample=torch.randn(3, 4))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "luck"}, "by is 'luck'"),
        ({"memory_limit_mib": 3.0}, "a link or a limit of memory needs a number of stages"),
        ({"link": Link(1e9)}, "by='time'"),
        ({"stages": Plan(("head",)), "by": "time", "link": Link(1e9)}, "a link or a limit of"),
        ({"by": "time", "memory_limit_mib": float("nan")}, "is nan"),
        ({"by": "time", "memory_limit_mib": -1.0}, "memory_limit_mib is -1.0"),
        ({"by": "time", "memory_limit_mib": True}, "memory_limit_mib is True"),
        (
            {"by": "time", "memory_limit_mib": "64", "link": "10Gbit"},
            r"memory_limit_mib is '64'; (.|\n)*link is '10Gbit'; use a Link",
        ),
        ({"network": [nn.ReLU()]}, r"the network is \[ReLU\(\)\]; give a module"),
        ({"stages": 2.0}, "stages is 2.0"),
        ({"stages": "2", "by": "time"}, "stages is '2'"),
        ({"stages": None}, "stages is None"),
        ({"stages": True}, "stages is True"),
    ],
)
def test_options_that_contradict_or_are_out_of_range_are_refused(options, text):
    network, sample = skips()
    with pytest.raises(OptionError, match=text):
        cut(**{"network": network, "stages": 2, "sample": sample, **options})


def test_links_are_parsed():
    for text, link in (
        ("1Gbit", Link(125e6)),
        ("8kbit,2ms", Link(1000.0, 2e-3)),
        ("100Mbit,1s", Link(12.5e6, 1.0)),
        ("16bit,5ns", Link(2.0, 5e-9)),
    ):
        assert Link.parse(text) == link
    told = "write bits per second and a latency: 10Gbit,50us"
    for text in ("fast", "10", "10Gbit,50", "1.2.3Gbit", "10Gbit,1.1.1us", "", 3):
        with pytest.raises(OptionError, match=told):
            Link.parse(text)


def test_a_link_of_which_no_packet_arrives_or_one_before_it_is_sent_is_refused():
    for rate in (0.0, -1.0, -0.0):
        with pytest.raises(OptionError, match=f"bytes_per_s is {rate}; use a number above 0"):
            Link(rate)
    with pytest.raises(OptionError, match=r"latency_s is -1\.0; use a number of"):
        Link(1e6, -1.0)
    for wrong in (float("nan"), float("inf"), "fast"):
        for numbers_of_link in ((wrong, 0.0), (1e6, wrong)):
            with pytest.raises(OptionError, match=f"is {wrong!r}; wanted a finite number"):
                Link(*numbers_of_link)


class SharedLayer(Layers):
    """Network that calls one layer several times."""

    def forward(self, x):
        x = self.first(x)
        for _ in range(8):
            x = self.second(x).relu()
        return self.third(x)


@pytest.fixture
def _profiled(monkeypatch):
    """Replace measured times, of which the first layer has most."""

    def profile(layers, sample):
        times_s = [9.0] + [1.0] * (len(layers) - 1)
        return {name: layer(t, out=8) for name, t in zip(layers, times_s, strict=True)}

    monkeypatch.setattr(cutting, "profile", profile)


@pytest.mark.usefixtures("_profiled")
@pytest.mark.parametrize("by", ["operations", "time"])
def test_an_uneven_cut_is_explained_once(by):
    sample = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="has 1.* times the mean work") as told:
        cutting.cut(SharedLayer(), stages=2, sample=sample, by=by)
    assert [
        "not before 'second': module 'second' is called 8 times" in str(warning.message)
        for warning in told
    ] == [True]
    cutting.cut(SharedLayer(), stages=Plan("third"), sample=sample)  # as the user wants it


@pytest.mark.usefixtures("_profiled")
def test_a_plan_of_a_network_that_cannot_be_cut_evenly_has_the_reasons():
    with pytest.warns(UserWarning, match="module 'second' is called 8 times"):
        cut_by_time(lambda: (SharedLayer(), torch.randn(2, 4), None), [2], ["bp", "dgl"])


class DenseSkips(Layers):
    """Network in which all earlier outputs cross each cut but the first."""

    def forward(self, x):
        first = self.first(x)
        return self.third(self.second(first).relu()) + first


def test_methods_that_need_one_tensor_at_each_cut_are_named_if_there_are_too_few():
    made = lambda: (DenseSkips(), torch.randn(2, 4), None)  # noqa: E731
    assert cut_by_time(made, [3], ["fdg"])
    said = "into 3 stages for dgl: a stage with a loss of its own sends one tensor, and where "
    with pytest.raises(CutError, match=f"{said}one crosses, 2 stages are the most"):
        cut_by_time(made, [2, 3], ["fdg", "dgl"])


def test_methods_and_numbers_of_stages_that_do_not_fit_into_the_memory_are_left_out():
    def build():
        layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        return layers, torch.randn(2, 64), None

    def fit(memory, counts=(2,)):
        return cut_by_time(build, counts, ["bp", "fdg", "ddg"], Devices(memory=memory))

    with pytest.warns(UserWarning, match="not planned for") as told:
        ((bp,),) = fit("0.06MiB", counts=(2, 4))
    assert bp.cuts == ("1", "2", "3")
    assert "for bp: no cut into 2 stages" in "".join(str(one.message) for one in told)
    # Stale gradients need older weights.
    with pytest.warns(UserWarning, match="not planned for fdg, ddg: no cut into 2 stages fits"):
        ((bp,),) = fit("0.12MiB")
    assert bp.cuts == ("2",)
    ((bp, fdg, ddg),) = fit("0.09MiB,0.15MiB")
    assert bp.cuts == fdg.cuts == ddg.cuts == ("1",)
    with pytest.raises(CutError, match=r"bp: no cut into 2 stages (.|\n)*into 3 stages"):
        fit("0.01MiB", counts=(2, 3))


def test_only_methods_that_wait_for_each_packet_have_stages_of_less_work_at_a_large_one(
    monkeypatch,
):
    def profile(layers, sample):
        even = [layer(1.0, out=10), layer(1.0, out=10**9), layer(1.0, out=10), layer(1.0)]
        return dict(zip(layers, even, strict=True))

    monkeypatch.setattr(cutting, "profile", profile)
    methods = ["bp", "gpipe", "dni", "fdg", "ddg", "adl", "dgl", "dgl-async"]
    (candidates,) = cut_by_time(
        lambda: (nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.ones(2, 4), None),
        [2],
        methods,
        Devices(link="8Gbit"),
    )
    cuts = {candidate.method: candidate.cuts for candidate in candidates}
    assert cuts == {m: ("1",) if m in ("bp", "gpipe", "dni") else ("2",) for m in methods}


def test_a_layer_of_a_sequence_with_most_of_the_work_is_named():
    backbone = Chain(nn.Linear(32, 32) for _ in range(4))
    network, sample = nn.Sequential(backbone, nn.Linear(32, 2)), torch.randn(2, 32)
    with pytest.warns(UserWarning, match=r"not inside layer '0', .*Plan\(\('0.layers.1'"):
        cutting.cut(network, stages=2, sample=sample)
    cutting.cut(network, stages=Plan(("0.layers.2",)), sample=sample)
