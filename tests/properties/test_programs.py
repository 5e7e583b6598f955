"""Programs of any method on any number of stages: complete, in order, as stale as the table."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import OptionError, ProgramError
from hocket.methods import ADL, BP, DDG, FDG, METHODS, GPipe, OneFOneB, PipeDream, PipeDream2BW
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_staleness
from hocket.program import (
    Action,
    Program,
    Tick,
    check_program,
    drain,
    enter,
    format_program,
    parse_program,
    unroll,
)
from hocket.remedies import T3
from hocket.signals import Delayed, Local, Synthetic
from reference.pipedream import one_f_one_b

delays = {"forward_delay": st.integers(0, 2), "backward_delay": st.integers(0, 2)}
ends = {"epoch_end": st.sampled_from(["carry", "drain"])}
orders = {"order": st.sampled_from(["forward-first", "backward-first"])}
plain = st.builds(
    Method,
    name=st.just("any"),
    paper=st.just("none"),
    signal=st.sampled_from([Delayed(), Delayed(0.5), Local(), Synthetic(), Synthetic(True)]),
    linearize=st.sampled_from(["stash", "live", "recompute"]),
    accumulate=st.integers(1, 4),
    **delays | ends | orders,
)
vertical = st.builds(PipeDream, hold=st.just("vertical"), **delays | ends)
enough = st.integers(8, 9)  # for five stages
double = st.builds(ADL, hold=st.just("double"), accumulate=enough, **ends | orders)
flushed = st.builds(
    Method,
    name=st.just("flushed"),
    paper=st.just("none"),
    signal=st.just(Delayed()),
    linearize=st.sampled_from(["stash", "recompute"]),
    flush=st.sampled_from(["alternate", "all-forward"]),
    accumulate=st.integers(1, 6),
    **delays | ends,
)
unflushed = st.one_of(plain, vertical, double)
methods = st.one_of(unflushed, flushed)
late = st.builds(
    ADL,
    accumulate=st.integers(1, 4),
    **delays | {"backward_delay": st.integers(1, 2)} | ends | orders,
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


def check_error(ticks: list[Tick], method: Method, stages: int) -> str:
    """Check a program that is wrong, and return the message of the error."""
    with pytest.raises(ProgramError) as caught:
        check_program(ticks, method, stages)
    return str(caught.value)


@given(any_methods, stage_counts, epochs)
def test_every_program_passes_its_own_check_and_reads_back(method, stages, batches):
    """No tick has two actions of a kind in a stage."""
    ticks = list(unroll(method, stages, batches))
    check_program(ticks, method, stages)
    again = parse_program("\n".join(" ".join(map(str, tick)) for tick in ticks))
    assert again == ticks
    assert [a.version for a in flat(again)] == [a.version for a in flat(ticks)]
    for tick in ticks:
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


def test_batches_that_enter_too_early_are_named():
    ticks = parse_program("F0.0 B0.0\nF0.1\nB0.1 U0.1")
    told = "tick 1: F0.1 comes after a backward of its group; all forwards come first"
    assert told in check_error(ticks, GPipe(accumulate=2), 1)
    check_program(ticks, OneFOneB(accumulate=2), 1)
    early = parse_program("F0.0 B0.0\nF0.1\nU0.0\nB0.1 U0.1")
    told = "tick 2: U0.0 leaves batches [1] in flight; wanted none, as the pipeline is flushed"
    assert told in check_error(early, OneFOneB(accumulate=2), 1)
    first = parse_program("F0.0 F1.0 B1.0 U1.0\nF0.1 F1.1 B1.1 U1.1 B0.0 U0.0\nB0.1 U0.1")
    told = "tick 1: U0.0 leaves batches [1] in flight"
    assert told in check_error(first, DDG().with_remedies(T3(updates=1)), 2)
    check_program(first, DDG(), 2)


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


@given(methods.map(partial(replace, epoch_end="drain")), stage_counts, st.integers(1, 6))
def test_a_drained_epoch_is_followed_by_the_same_program(method, stages, batches):
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


# A wrong program is refused, and the message names each problem.

names = st.sampled_from(sorted(METHODS))


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
    check_program(list(unroll(method, stages, 30)), method, stages)
    if least > 1:
        few = ADL(hold="double", order=order, accumulate=least - 1)
        with pytest.raises(OptionError, match=f"use accumulate={least} or more, or fewer"):
            Program(few, stages)


def test_a_forward_with_weights_that_a_stage_does_not_hold_is_named():
    method = PipeDream2BW(accumulate=1)
    ticks = [list(tick) for tick in unroll(method, 2, 3)]
    check_program(ticks, method, 2)

    def told(old: str, new: str, of: Method = method) -> str:
        changed = "\n".join(" ".join(map(str, tick)) for tick in ticks).replace(old, new)
        return check_error(parse_program(changed), of, 2)

    assert "F0.2@2 needs weights that do not exist; stage 0 has done 1 updates" in told(
        "F0.2@1", "F0.2@2"
    )
    assert "F1.2@0 has other weights than batch 2 met before; wanted version 1" in told(
        "F1.2@1", "F1.2@0"
    )
    assert "F0.2 names no version; wanted one" in told("F0.2@1", "F0.2")
    assert "F0.0@0 names a version; wanted the newest weights" in told("@0", "@0", DDG())


@given(names, st.integers(1, 4), st.data())
def test_a_lost_action_is_named(name, stages, data):
    method = METHODS[name]()
    ticks = list(unroll(method, stages, 9))
    lost = data.draw(st.sampled_from(flat(ticks)))
    text = check_error([tuple(a for a in t if a != lost) for t in ticks], method, stages)
    if lost.kind == "U":  # the next update takes too many gradients, or none takes them
        assert f"U{lost.stage}." in text or f"stage {lost.stage} ends with" in text
    else:
        assert f"{replace(lost, version=None)} never happens" in text


@given(names, st.integers(1, 4), st.data())
def test_a_doubled_action_is_named(name, stages, data):
    method = METHODS[name]()
    ticks = list(unroll(method, stages, 9))
    doubled = data.draw(st.sampled_from(flat(ticks)))
    place = data.draw(st.integers(0, len(ticks) - 1))
    ticks[place] += (doubled,)
    assert f"{doubled} happened already" in check_error(ticks, method, stages)


@given(names, st.integers(1, 4), st.data())
def test_an_action_before_what_it_needs_is_named(name, stages, data):
    method = METHODS[name]()
    ticks = list(unroll(method, stages, 9))
    early = data.draw(st.sampled_from([a for a in flat(ticks) if a.kind != "F" or a.stage > 0]))
    needs = {
        "F": Action("F", early.stage - 1, early.batch),
        "B": Action("F", early.stage, early.batch),
        "U": Action("B", early.stage, early.batch),
        "T": Action("B", early.stage + 1, early.batch),
    }
    need = needs[early.kind]
    moved = []
    for tick in ticks:
        kept = [a for a in tick if a != early]
        if need in kept:
            kept.insert(kept.index(need), early)
        moved.append(tuple(kept))
    text = check_error(moved, method, stages)
    if early.kind == "U":
        assert f"U{early.stage}." in text or f"stage {early.stage} ends with" in text
    else:
        assert f"{replace(early, version=None)} comes too early; {need} is in tick" in text


@given(
    st.sampled_from(
        [name for name, method in sorted(METHODS.items()) if method().forward_delay]
    ),
    st.integers(2, 4),
    st.data(),
)
def test_an_action_before_its_packet_can_have_come_is_named(name, stages, data):
    """One tick early is too early where an edge takes a tick."""
    method = METHODS[name]()
    ticks = list(unroll(method, stages, 9))
    inner = [a for a in flat(ticks) if a.kind == "F" and a.stage > 0]
    early = data.draw(st.sampled_from(inner))
    t = next(t for t, tick in enumerate(ticks) if early in tick)
    ticks[t] = tuple(a for a in ticks[t] if a != early)
    ticks[t - 1] += (early,)
    need = f"F{early.stage - 1}.{early.batch}"
    assert f"{replace(early, version=None)} comes too early; {need} is in tick" in check_error(
        ticks, method, stages
    )


def test_an_update_before_its_gradient_is_refused_after_a_drain():
    """Also where groups are not full, so that the counts alone would pass."""
    method = METHODS["adl"](epoch_end="drain")
    right = "F0.0 B0.0 F0.1 B0.1 U0.1 F0.2 B0.2 F0.3 B0.3 U0.3"
    assert " ".join(map(str, flat(list(unroll(method, 1, [2, 2]))))) == right
    wrong = "F0.0 B0.0 U0.1 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U0.3"
    assert "U0.1" in check_error(parse_program(wrong), method, 1)


def test_too_many_or_no_gradients_for_an_update_are_told():
    text = check_error(parse_program("F0.0 B0.0\nF0.1 B0.1 U0.1 U0.0"), BP(), 1)
    assert "tick 1: U0.1 takes 2 gradients; wanted 1, or fewer where the pipeline" in text
    assert "tick 1: U0.0 takes 0 gradients; wanted 1, or fewer" in text
    text = check_error(parse_program("F0.0 B0.0"), BP(), 1)
    assert "stage 0 ends with 1 gradients that no update takes" in text


def test_delays_for_other_stages_are_told():
    method = with_staleness(DDG(), [2, 1, 0])
    with pytest.raises(OptionError, match="delays of the edges between 3 stages"):
        check_program(list(unroll(method, 3, 4)), method, 4)


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


def actions(program, batches, since=0):
    """Kind, batch, version (counted on from some update) and due of each action, by tick."""
    return [
        [(a.kind, a.batch, None if a.version is None else a.version - since, a.due) for a in t]
        for step in (*[enter] * batches, drain)
        for t in step(program)
    ]


@given(any_methods, stage_counts, st.integers(0, 9), st.integers(0, 6))
def test_between_two_trainings_of_other_cuts_only_versions_are_counted_anew(
    method, stages, before, after
):
    """As if the stages had always been these; the first updates of T3 are not done again."""
    for stage in range(stages):
        first, other, resumed = (Program(method, stages, only=stage) for _ in range(3))
        done = actions(first, before)
        updates = sum(kind == "U" for tick in done for kind, *_ in tick)
        other.schedules[0].start_at(first.tick_count, first.batch_count, updates)
        assert (other.tick_count, other.batch_count) == (first.tick_count, before)
        resumed.schedules[0].load_state_dict(other.schedules[0].state_dict())
        wanted = actions(first, after, since=updates)
        assert actions(other, after) == actions(resumed, after) == wanted
