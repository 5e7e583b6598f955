"""Programs of any method on any number of stages: complete, in order, as stale as the table."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import OptionError
from hocket.methods import ADL, DDG, FDG, METHODS, OneFOneB, PipeDream
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_staleness
from hocket.program import (
    Action,
    Program,
    Tick,
    drain,
    enter,
    format_program,
    unroll,
)
from hocket.program.schedule import StageSchedule
from hocket.remedies import T3
from hocket.signals import Delayed, Local, Synthetic
from properties.in_order import assert_in_order
from reference.pipedream import one_f_one_b

plain = st.builds(
    Method,
    name=st.just("any"),
    paper=st.just("none"),
    signal=st.sampled_from([Delayed(), Delayed(0.5), Local(), Synthetic(), Synthetic(True)]),
    forward_delay=st.integers(0, 2),
    backward_delay=st.integers(0, 2),
    order=st.sampled_from(["forward-first", "backward-first"]),
    linearize=st.sampled_from(["stash", "live", "recompute"]),
    accumulate=st.integers(1, 4),
    epoch_end=st.sampled_from(["carry", "drain"]),
)
vertical = st.builds(
    PipeDream,
    hold=st.just("vertical"),
    forward_delay=st.integers(0, 2),
    backward_delay=st.integers(0, 2),
    epoch_end=st.sampled_from(["carry", "drain"]),
)
double = st.builds(
    ADL,
    hold=st.just("double"),
    order=st.sampled_from(["forward-first", "backward-first"]),
    accumulate=st.integers(8, 9),  # enough for five stages
    epoch_end=st.sampled_from(["carry", "drain"]),
)
flushed = st.builds(
    Method,
    name=st.just("flushed"),
    paper=st.just("none"),
    signal=st.just(Delayed()),
    forward_delay=st.integers(0, 2),
    backward_delay=st.integers(0, 2),
    linearize=st.sampled_from(["stash", "recompute"]),
    flush=st.sampled_from(["alternate", "all-forward"]),
    accumulate=st.integers(1, 6),
    epoch_end=st.sampled_from(["carry", "drain"]),
)
unflushed = st.one_of(plain, vertical, double)
methods = st.one_of(unflushed, flushed)
late = st.builds(
    ADL,
    forward_delay=st.integers(0, 2),
    backward_delay=st.integers(1, 2),
    order=st.sampled_from(["forward-first", "backward-first"]),
    accumulate=st.integers(1, 4),
    epoch_end=st.sampled_from(["carry", "drain"]),
)
synchronous = st.builds(
    lambda method, updates: method.with_remedies(T3(updates=updates)),
    st.one_of(late, vertical.filter(lambda method: sum(method.edge_delay(0))), double),
    st.integers(0, 4),
)
any_methods = st.one_of(methods, synchronous)
stage_counts = st.integers(1, 5)
epochs = st.lists(st.integers(0, 12), min_size=1, max_size=3)


def flat(ticks: list[Tick]) -> list[Action]:
    return [action for tick in ticks for action in tick]


@given(any_methods, stage_counts, epochs)
def test_every_program_is_in_order(method, stages, batches):
    assert_in_order(list(unroll(method, stages, batches)), method, stages)


@given(any_methods, stage_counts, epochs)
def test_at_most_one_of_each_kind_in_a_tick(method, stages, batches):
    for tick in unroll(method, stages, batches):
        assert all(count == 1 for count in Counter((a.kind, a.stage) for a in tick).values())


@given(methods, stage_counts, st.integers(0, 12))
def test_staleness_is_the_number_of_updates_in_between(method, stages, batches):
    actions = flat(list(unroll(method, stages, batches)))
    for k in range(stages):
        of_stage = [a for a in actions if a.stage == k]
        for b in range(batches):
            start = of_stage.index(Action("F", k, b))
            end = of_stage.index(Action("B", k, b))
            before = sum(a.kind == "U" for a in of_stage[:start])
            seen = of_stage[start].version
            seen = before if seen is None else seen
            assert seen == method.forward_versions(k, stages)(b)
            updates = sum(a.kind == "U" for a in of_stage[:end])
            assert updates - seen == method.staleness(k, stages, b)


@given(methods, stage_counts, st.integers(1, 12))
def test_delay_is_the_number_of_ticks_in_between(method, stages, batches):
    when = {a: t for t, tick in enumerate(unroll(method, stages, batches)) for a in tick}
    for k in range(stages):
        for b in range(batches):
            forward, backward = when[Action("F", k, b)], when[Action("B", k, b)]
            if not method.flushes:
                assert forward == b + k * method.forward_delay
            assert backward - forward == method.delay(k, stages)


@given(unflushed, stage_counts, st.integers(0, 12))
def test_a_training_is_its_batches_and_one_filling_of_the_pipeline(method, stages, batches):
    ticks = list(unroll(method, stages, batches))
    edges = (stages - 1) * (method.forward_delay + method.backward_delay)
    assert len(ticks) <= batches + edges + 1


@given(flushed, stage_counts, st.integers(0, 12))
def test_every_group_that_is_flushed_fills_the_pipeline_anew(method, stages, batches):
    ticks = list(unroll(method, stages, batches))
    groups, rest = divmod(batches, method.accumulate)
    filling = method.delay(0, stages)
    last = rest + filling + 1 if rest else 0
    assert len(ticks) == groups * (method.accumulate + filling) + last


@given(flushed, stage_counts, epochs)
def test_no_batch_enters_before_the_update_with_the_group_before(method, stages, sizes):
    """And in a group all forwards come first, or as many as there are stages behind."""
    actions = flat(list(unroll(method, stages, sizes)))
    for k in range(stages):
        order = "".join(a.kind for a in actions if a.stage == k)
        for group in order.removesuffix("U").split("U"):
            forwards = group.count("F")
            if method.flush == "all-forward":
                assert group == "F" * forwards + "B" * forwards
            elif (method.forward_delay, method.backward_delay) == (0, 1):
                assert group == one_f_one_b(stages - 1 - k, forwards)


@given(synchronous, stage_counts, st.integers(0, 30))
def test_after_updates_before_which_the_pipeline_is_flushed_a_program_begins(
    method, stages, batches
):
    """Those of T3 are a flushed pipeline, and what follows knows nothing of them."""
    updates, steady = method.flushed_updates, method.steady
    first = min(updates * method.accumulate, batches)
    flush = replace(method, flush="alternate", hold="newest", remedies=())
    wanted = list(unroll(flush, stages, first))
    for tick in unroll(steady, stages, batches - first):
        wanted.append(tuple(replace(a, batch=a.batch + first) for a in tick))
    ticks = list(unroll(method, stages, batches))
    assert ticks == wanted
    held = [a.version for a in flat(ticks) if a.kind == "F" and a.batch >= first]
    begun = [a.version for a in flat(wanted) if a.kind == "F" and a.batch >= first]
    assert held == [None if version is None else version + updates for version in begun]


@given(st.integers(1, 6), stage_counts, epochs)
def test_1f1b_is_pipedream_drained_after_every_group(accumulate, stages, sizes):
    """Apart from the number of updates."""
    groups = []
    for size in sizes:
        groups += [accumulate] * (size // accumulate) + [size % accumulate]
    parts = unroll(PipeDream(), stages, groups)
    whole = unroll(OneFOneB(accumulate=accumulate, epoch_end="drain"), stages, sizes)
    moves = [[a for a in flat(list(ticks)) if a.kind != "U"] for ticks in (parts, whole)]
    assert moves[0] == moves[1]


@given(any_methods, stage_counts, epochs)
def test_updates_take_full_groups_except_when_drained(method, stages, batches):
    actions = flat(list(unroll(method, stages, batches)))
    ends = {sum(batches)}
    if method.epoch_end == "drain":
        ends |= {sum(batches[: i + 1]) for i in range(len(batches))}
    for k in range(stages):
        accumulated = done = 0
        for action in (a for a in actions if a.stage == k and a.kind in "BU"):
            if action.kind == "B":
                accumulated, done = accumulated + 1, action.batch + 1
            else:
                assert action.batch == done - 1
                assert accumulated == method.accumulate or done in ends
                accumulated = 0
        assert accumulated == 0


@given(any_methods, stage_counts, epochs)
def test_a_stage_never_holds_more_than_the_table_says(method, stages, batches):
    actions = flat(list(unroll(method, stages, batches)))
    for k in range(stages):
        memory, held, version = method.memory(k, stages), {}, 0
        for action in (a for a in actions if a.stage == k):
            if action.kind == "F":
                held[action.batch] = version if action.version is None else action.version
            elif action.kind == "B":
                del held[action.batch]
            elif action.kind == "U":
                version += 1
            assert len(held) <= memory.inputs
            if method.linearize != "recompute":
                assert len(held) <= memory.graphs
            if method.linearize == "stash":
                assert len(set(held.values())) <= memory.versions


@given(methods, stage_counts)
def test_the_table_of_memory_is_reached(method, stages):
    """The table is not larger than what a long training needs."""
    actions = flat(list(unroll(method, stages, 60)))
    for k in range(stages):
        held = most = 0
        for action in (a for a in actions if a.stage == k):
            held += {"F": 1, "B": -1}.get(action.kind, 0)
            most = max(most, held)
        assert most == method.memory(k, stages).inputs


@given(any_methods, stage_counts, st.integers(0, 8))
def test_a_program_can_be_driven_batch_by_batch(method, stages, batches):
    program = Program(method, stages)
    entered = [tick for _ in range(batches) for tick in enter(program)]
    ticks = entered + list(drain(program))
    assert ticks == list(unroll(method, stages, batches))
    assert program.idle


@given(methods, stage_counts, st.integers(1, 6))
def test_a_drained_epoch_is_followed_by_the_same_program(method, stages, batches):
    if method.epoch_end == "carry":
        return
    once = list(unroll(method, stages, batches))
    twice = list(unroll(method, stages, [batches, batches]))
    shifted = [tuple(Action(a.kind, a.stage, a.batch + batches) for a in t) for t in once]
    assert twice == once + shifted


@given(stage_counts, st.integers(0, 12))
def test_pipedream_is_one_forward_and_one_backward_in_turn(stages, batches):
    """And so is DDG, action by action."""
    actions = flat(list(unroll(PipeDream(), stages, batches)))
    assert actions == flat(list(unroll(DDG(), stages, batches)))
    for k in range(stages):
        order = "".join(a.kind for a in actions if a.stage == k and a.kind != "U")
        assert order == one_f_one_b(stages - 1 - k, batches)


@given(any_methods, stage_counts, epochs)
def test_a_forward_names_the_updates_until_its_backward(method, stages, sizes):
    """From the weights that it uses; also after an epoch that was drained."""
    updates, forwarded = Counter(), {}
    for action in flat(list(unroll(method, stages, sizes))):
        k = action.stage
        if action.kind == "F":
            version = updates[k] if action.version is None else action.version
            forwarded[k, action.batch] = version + action.due
        elif action.kind == "B":
            assert updates[k] == forwarded[k, action.batch]
        updates[k] += action.kind == "U"


@pytest.mark.parametrize("order", ["forward-first", "backward-first"])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_too_few_gradients_per_update_for_two_versions_are_refused(order, stages):
    """The least number that is named is enough, and one less is not."""
    least = 2 * (stages - 1) - (order == "backward-first")
    method = ADL(hold="double", order=order, accumulate=least)
    assert_in_order(list(unroll(method, stages, 30)), method, stages)
    if least > 1:
        few = ADL(hold="double", order=order, accumulate=least - 1)
        with pytest.raises(OptionError, match=f"use accumulate={least} or more, or fewer"):
            Program(few, stages)


@given(st.sampled_from(sorted(METHODS)), st.integers(2, 4), st.data())
def test_an_action_that_is_lost_doubled_or_early_is_noticed(name, stages, data):
    """One tick early is too early where an edge takes a tick."""
    method = METHODS[name]()
    ticks = list(unroll(method, stages, 9))
    inner = [a for a in flat(ticks) if a.kind == "F" and a.stage > 0]
    chosen = data.draw(st.sampled_from(inner))
    t = next(t for t, tick in enumerate(ticks) if chosen in tick)
    lost = [tuple(a for a in tick if a != chosen) for tick in ticks]
    doubled = [*ticks, (chosen,)]
    before_all = [(chosen,), *lost]
    wrong = [lost, doubled, before_all]
    if method.forward_delay:
        wrong.append([*lost[: t - 1], (*lost[t - 1], chosen), *lost[t:]])
    for program in wrong:
        with pytest.raises(AssertionError):
            assert_in_order(program, method, stages)


def test_delays_for_other_stages_are_told():
    method = with_staleness(DDG(), [2, 1, 0])
    with pytest.raises(OptionError, match="delays of the edges between 3 stages"):
        Program(method, 4)


@pytest.mark.parametrize("stages", [0, -1])
def test_a_program_needs_a_stage(stages):
    with pytest.raises(OptionError, match=f"a program has {stages} stages; use at least 1"):
        list(unroll(FDG(), stages, 1))


@given(methods, stage_counts, st.integers(0, 6))
def test_a_drawing_has_a_line_for_each_tick_and_a_word_for_each_action(method, stages, batches):
    ticks = list(unroll(method, stages, batches))
    lines = format_program(ticks, stages).splitlines()
    assert len(lines) == 1 + len(ticks)
    for line, tick in zip(lines[1:], ticks, strict=True):
        assert len(line.replace("|", " ").split()) == 1 + len(tick)


# The schedule of a stage.


def actions(schedule, batches, since=0):
    """Kind, batch, version (counted on from some update) and due of each action, by tick."""
    return [
        [(a.kind, a.batch, None if a.version is None else a.version - since, a.due) for a in t]
        for step in (*[enter] * batches, drain)
        for t in step(schedule)
    ]


@given(any_methods, stage_counts, st.integers(0, 9), st.integers(0, 6))
def test_between_two_trainings_of_other_cuts_only_versions_are_counted_anew(
    method, stages, before, after
):
    """As if the stages had always been these; the first updates of T3 are not done again."""
    for stage in range(stages):
        first, other, resumed = (StageSchedule(method, stages, stage) for _ in range(3))
        done = actions(first, before)
        updates = sum(kind == "U" for tick in done for kind, *_ in tick)
        other.start_at(first.tick_count, first.batch_count, updates)
        assert (other.tick_count, other.batch_count) == (first.tick_count, before)
        resumed.load_state_dict(other.state_dict())
        wanted = actions(first, after, since=updates)
        assert actions(other, after) == actions(resumed, after) == wanted
