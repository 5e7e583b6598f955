"""No tick asks the device for a number, and what is found later is found all the same."""

import gc
import re
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from contract.small import LINEARIZED, METHODS, conv, data, different, mlp, sgd, stepped
from contract.spoiled import BACKWARD, FORWARD, brittle, marked
from contract.test_non_finite import state_of
from hocket import Trainer, cross_entropy
from hocket.errors import NonFiniteError
from hocket.methods import BP
from hocket.remedies import REMEDIES
from hocket.stage.setup import Setup

READS = ("_local_scalar_dense", "equal", "is_nonzero", "item", "nonzero")
"""Operations for whose result the host has to wait."""
NEVER = 10**6
"""A number of batches that no training here has."""
BATCHES = 9
EVERY = 3
WAYS = [
    *LINEARIZED,
    *(f"fdg:linearize=live+{name}" for name in sorted(REMEDIES) if name != "drop-late"),
    "adl:accumulate=2,linearize=live+drop-late",
]


class Reads(TorchDispatchMode):
    """Counts the numbers that the host asks the device for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __enter__(self):
        gc.disable()  # which may end trainers of other tests, and they read what they had left
        return super().__enter__()

    def __exit__(self, *error):
        gc.enable()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in READS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def build(method, network=mlp, stages=3, **options):
    rate = 1e-3 if str(method).startswith("dni") else 0.05
    return Trainer(network(stages), method=method, optimizer=partial(sgd, lr=rate), **options)


def step(trainer, batch):
    """A tick as ``fit`` does it, which returns no loss."""
    return trainer._session.ticks.step(*batch, 0)


# Layers with statistics are where a training that can be resumed keeps more.
@pytest.mark.parametrize(("network", "resumable"), [(mlp, False), (conv, True)])
@pytest.mark.parametrize("method", WAYS)
def test_no_tick_asks_the_device_for_a_number(method, network, resumable):
    batches = data(network, BATCHES)
    trainer = build(method, network, check_every=NEVER, resumable=resumable)
    for batch in batches:
        trainer.step(*batch)  # the first ones find out about masks
    with Reads() as reads:
        for batch in batches:
            step(trainer, batch)
    assert reads.seen == []


@pytest.mark.parametrize("method", METHODS)
def test_a_look_at_every_batch_asks_for_numbers(method):
    trainer, batches = build(method), data(mlp, BATCHES)
    stepped(trainer, batches)
    with Reads() as reads:
        step(trainer, batches[0])
    assert reads.seen != []


@pytest.mark.parametrize("method", WAYS)
def test_a_later_look_changes_no_bit_of_a_training_without_a_fault(method):
    left = []
    for every in (1, EVERY):
        trainer = build(method, brittle, check_every=every)
        history = trainer.fit(marked(BATCHES, {}), epochs=2, progress=False)
        left.append((state_of(trainer), [epoch.loss for epoch in history]))
    assert not different(left[0][0], left[1][0])
    assert left[0][1] == left[1][1]


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize("method", ["bp", "ddg", "fdg", "fr", "dgl", "dni"])
def test_a_fault_that_is_found_later_is_told_as_where_it_was(method, stage, kind):
    """The same batch, stage, tick, action and tensor as by a look at every batch."""
    told = []
    for every in (1, NEVER):
        trainer = build(method, brittle, check_every=every)
        with pytest.raises(NonFiniteError) as caught:
            trainer.fit(marked(BATCHES, {4: stage + kind}), epochs=1, progress=False)
        error = caught.value
        (place,) = error.__notes__
        told.append((re.search("the (.*) became nan", str(error))[1], place, error.batch))
    assert told[0] == told[1]
    assert told[0][1].startswith(f"(stage {stage}, batch 4, tick ")


@pytest.mark.parametrize("method", ["bp", "fdg", "fr", "dni", "dgl"])
def test_all_stages_go_back_to_what_they_were_at_the_look_before(method):
    """Bit-equal: weights, statistics and optimizers after the tick of that look."""
    batches = marked(BATCHES, {4: 0 + FORWARD})
    trainer, again = (build(method, brittle, check_every=every) for every in (EVERY, 1))
    with pytest.raises(
        NonFiniteError, match=r"check_every=3\); the weights of all .* after tick 2;"
    ):
        trainer.fit(batches, epochs=1, progress=False)
    stepped(again, batches[:3])
    assert all(stage.persistent_fault() is None for stage in trainer.stages)
    assert not different(state_of(trainer), state_of(again))


LOOKS = {
    "save": lambda trainer, folder: trainer.save(folder),
    "evaluate": lambda trainer, folder: trainer.evaluate(marked(1, {})),
    "finish": lambda trainer, folder: trainer.finish(),
    "end_epoch": lambda trainer, folder: trainer.end_epoch(),
}


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_is_made_of_a_training_before_somebody_has_looked(name, tmp_path):
    trainer = stepped(
        build("bp", brittle, check_every=NEVER, resumable=True), marked(3, {2: 1 + BACKWARD})
    )
    with pytest.raises(NonFiniteError, match=r"gradient of '1.0.linear.weight' became nan"):
        LOOKS[name](trainer, tmp_path)
    assert all(stage.persistent_fault() is None for stage in trainer.stages)
    assert not list(tmp_path.iterdir())


GPU = {"device": torch.device("cuda")}


@pytest.mark.parametrize(
    ("options", "ticks"),
    [
        ({}, 1),
        ({"check_every": 7}, 7),
        (GPU, 50),
        (GPU | {"check_every": 1}, 1),
        (GPU | {"on_nan": "skip"}, 1),
        (GPU | {"precision": "fp16"}, 1),
    ],
    ids=str,
)
def test_only_a_gpu_is_looked_at_less_often_by_itself(options, ticks):
    setup = Setup(method=BP(), loss=cross_entropy, optimizer=sgd, **options)
    assert setup.ticks_per_check == ticks
