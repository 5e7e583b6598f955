"""Late gradients beside the true ones, as hand computations tell them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from contract.small import (
    CLASSES,
    LINEARIZE,
    LOCKSTEP,
    Gradients,
    conv,
    copied,
    data,
    different,
    mlp,
    sgd,
    train,
    true_gradients,
    weights_of,
)
from hocket import Trainer, cross_entropy
from hocket.errors import DataError
from hocket.methods import ADL, BP, DGL, FDG, METHODS, GPipe, OneFOneB
from hocket.remedies import T3


def compared(method, modules, batches, **options):
    """All comparisons of a training, by stage and batch."""
    seen = []
    watched = {"gradient_error_every": 1, "on_gradient_error": seen.append}
    train(method, modules, batches, **watched, **options)
    return {(each.stage, each.batch): each for each in seen}


def noisy(output, targets):
    """A loss that draws random numbers."""
    return F.cross_entropy(F.dropout(output, 0.5), targets)


def exact(comparison) -> bool:
    return (comparison.cosine, comparison.ratio) == pytest.approx((1, 1), abs=1e-12)


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "3.weight"])
def test_a_weight_frozen_between_fits_leaves_the_others_compared(name):
    found, modules = {}, mlp(2)
    trainer = Trainer(
        modules,
        method=BP(),
        optimizer=sgd,
        gradient_error_every=1,
        on_gradient_error=lambda c: found.setdefault((c.stage, c.batch), c),
    )
    trainer.fit(data(mlp, 2), epochs=1, progress=False)
    modules[0].get_parameter(name).requires_grad_(False)
    trainer.fit(data(mlp, 2), epochs=1, progress=False)
    assert len(found) == 8
    assert all(exact(comparison) for comparison in found.values())


@pytest.mark.parametrize("loss", [cross_entropy, noisy])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("method", "lr"),
    [
        (BP(), 0.1),
        *((each, 0.5) for each in (GPipe(accumulate=3), OneFOneB(accumulate=3), OneFOneB())),
        *((FDG(linearize=each), 0.0) for each in LINEARIZE),
    ],
)
def test_back_propagation_and_a_late_gradient_at_rate_zero_have_the_true_gradient(
    method, lr, stages, loss
):
    """At the weights of its group, whichever stage has updated first."""
    found = compared(method, conv(stages, dropout=0.2), data(conv, 8), lr=lr, loss=loss)
    assert len(found) == 8 * stages
    assert all(exact(comparison) for comparison in found.values())


def test_it_has_for_the_updates_before_which_it_is_flushed():
    method = ADL(accumulate=2).with_remedies(T3(updates=2))
    found = compared(method, conv(3), data(conv, 12), lr=0.5)
    assert [batch for batch in range(12) if exact(found[0, batch])] == [0, 1, 2, 3]


def test_a_late_gradient_is_held_against_that_of_all_weights_of_now():
    """Computed here from the weights at the beginning of the tick of each backward."""
    modules, batches, gradients = mlp(3), data(mlp, 10), Gradients()
    by_hand, start = {}, {}

    def watch(event, stage):
        gradients(event, stage)
        # The first action of a tick never changes weights.
        if event.tick not in start:
            start[event.tick] = [weights_of(module) for module in modules]
        if event.action.kind == "B":
            place = stage.index, event.action.batch
            now = start[event.tick]
            true = true_gradients(modules, *batches[event.action.batch], now)[stage.index]
            a, b = (
                torch.cat([g.flatten() for g in each]) for each in (gradients.seen[place], true)
            )
            by_hand[place] = float(a @ b / a.norm() / b.norm()), float(a.norm() / b.norm())

    found = compared(FDG(), modules, batches, watch=watch)
    assert found.keys() == by_hand.keys()
    for place, comparison in found.items():
        assert (comparison.cosine, comparison.ratio) == pytest.approx(by_hand[place], rel=1e-9)
    assert not exact(found[0, 9])


@pytest.mark.parametrize("name", LOCKSTEP)
def test_comparing_changes_nothing_of_the_training(name):
    """Bit-equal, with BatchNorm, dropout, a loss that draws, and layers that work in place.

    The global generator is left as it was, too.
    """

    def modules():
        stages = conv(3, dropout=0.4)
        return [nn.Sequential(nn.ReLU(inplace=True), stage) for stage in stages]

    watched, alone = modules(), modules()
    before = torch.get_rng_state()
    compared(METHODS[name](), watched, data(conv, 6), lr=0.001, loss=noisy)
    assert torch.equal(torch.get_rng_state(), before)
    train(METHODS[name](), alone, data(conv, 6), lr=0.001, loss=noisy)
    for a, b in zip(watched, alone, strict=True):
        assert not different(a.state_dict().values(), b.state_dict().values())


@pytest.mark.parametrize("method", [BP(), FDG()])
def test_a_target_out_of_range_is_told_as_in_any_training(method):
    batches = data(mlp, 4)
    batches[2][1][0] = CLASSES
    told = []
    for compare in (compared, train):
        with pytest.raises(
            DataError, match=r"the targets do not fit the outputs.*arget 3 is"
        ) as caught:
            compare(method, mlp(2), batches)
        told.append((str(caught.value), caught.value.__notes__))
    assert told[0] == told[1]


def test_heads_are_no_part_of_a_comparison():
    modules, batches = mlp(2), data(mlp, 1)
    gradients, start = Gradients(), copied(modules)
    found = compared(DGL(), modules, batches, watch=gradients)
    true = true_gradients(start, *batches[0], [weights_of(m) for m in start])[0]
    late = torch.cat([g.flatten() for g in gradients.seen[0, 0][: len(true)]])
    wanted = late.norm() / torch.cat([g.flatten() for g in true]).norm()
    assert found[0, 0].ratio == pytest.approx(float(wanted), rel=1e-9)


def test_a_stage_without_weights_compares_to_nothing():
    found = compared(FDG(), [nn.Flatten(), *mlp(1)], data(mlp, 2))
    assert (found[0, 0].cosine, found[0, 0].ratio) == (0.0, math.inf)
    assert exact(found[1, 0])
