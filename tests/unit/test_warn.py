"""Warnings name the line of the caller, whatever lies between."""

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.optim import lr_scheduler

import hocket
from contract.small import data, mlp, sgd
from hocket import Checkpoints, Trainer
from hocket.errors import warn
from unit.training.test_resume import Center

BATCHES = data(mlp, 4)


def trainer(network=None, **options):
    return Trainer(network or mlp(2), **({"optimizer": sgd} | options))


def frozen():
    return [stage.requires_grad_(False) for stage in mlp(2)]


def cycle(steps):
    return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


@pytest.mark.parametrize("by", ["fit", "step"])
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: {"loss": Center()}, "checkpoints leave out buffer 'center'"),
        (lambda: {"network": frozen()}, "all weights of the network are frozen"),
        (lambda: {"scheduler": cycle(8)}, "are 2, and its schedule has 8 steps|call end_epoch"),
    ],
    ids=["saved", "frozen", "scheduled"],
)
def test_a_warning_names_the_line_that_led_to_it(build, said, by, tmp_path, recwarn):
    warnings.simplefilter("always")
    built = trainer(**build(), resumable=True)
    if by == "fit":
        built.fit(BATCHES, epochs=2, progress=False, checkpoints=Checkpoints(tmp_path))
    else:
        built.step(*BATCHES[0])
        built.save(tmp_path)
        built.finish()
    (told,) = [each for each in recwarn if re.search(said, str(each.message))]
    assert told.filename == __file__


def test_a_warning_of_a_thread_of_its_own_is_told_as_well():
    with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="the disk is full"):
        pool.submit(warn, "the disk is full").result()


def warmed_up(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


@pytest.mark.parametrize(
    ("build", "steps"),
    [
        (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 8), 8),
        (lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 9), 9),
        (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [4, 8]), 8),
        (lambda optimizer: lr_scheduler.ChainedScheduler([warmed_up(optimizer)]), 8),
        (warmed_up, 8),
    ],
)
def test_a_schedule_of_as_many_steps_as_updates_is_told(build, steps):
    with pytest.warns(UserWarning, match=f"its schedule has {steps} steps"):
        trainer(scheduler=build).fit(BATCHES[:4], epochs=2, progress=False)


def constant(optimizer):
    schedule = lr_scheduler.ConstantLR(optimizer)
    schedule.total_steps = None  # as a scheduler of the user's own may have it
    return schedule


@pytest.mark.parametrize(
    ("build", "unit", "batches"),
    [
        (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 300), "epoch", 4),
        (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 12), "epoch", 4),
        (lambda o: lr_scheduler.SequentialLR(o, [constant(o)], []), "epoch", 4),
        (constant, "epoch", 4),
        (cycle(2), "epoch", 4),
        (cycle(7), "epoch", 4),
        (cycle(3), "epoch", 1),
        (cycle(8), "update", 4),
    ],
)
def test_a_schedule_that_fits_its_unit_or_a_longer_training_is_not_told(
    build, unit, batches, recwarn
):
    built = trainer(scheduler=build, scheduler_unit=unit)
    built.fit(BATCHES[:batches], epochs=2, progress=False)
    assert not [each for each in recwarn if "schedule" in str(each.message)]


def test_no_other_module_counts_frames():
    package = Path(hocket.__file__).parent
    own = [path for path in package.rglob("*.py") if "warnings.warn(" in path.read_text()]
    assert own == [package / "errors.py"]
