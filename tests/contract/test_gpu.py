"""Laws on a GPU: close to the processor in float64, equal to itself when resumed."""

import gc
from dataclasses import replace
from functools import partial

import pytest
import torch

from contract.resumed import CASES, FREE, all_of, differences, resumable
from contract.small import LINEARIZE, LOCKSTEP, WAITING, conv, data, different, far, mlp, sgd
from contract.worlds import NETS, Case, trained
from hocket import Trainer
from hocket.methods import FDG, METHODS, method_options
from hocket.training.upload import Upload

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TICKS = 50
SMALL = partial(sgd, lr=1e-4)  # the synthesizers of DNI need small steps


def on_gpu(case: Case) -> Case:
    """The case on a GPU, without dropout: its generator draws other numbers."""
    return replace(case, dropout=0.0, trainer=(*case.trainer, ("device", DEVICE)))


TRAININGS = [
    *(Case(name, net) for name in LOCKSTEP for net in NETS),
    *(
        Case(name, "conv", (("linearize", kind),))
        for name in WAITING
        if "linearize" in method_options(name)
        for kind in LINEARIZE
    ),
    Case("dgl-async", "conv", (("buffer", 2),)),
    Case("fdg", "skips"),
    Case("fdg", "conv", trainer=(("channels_last", True),)),
    *(Case(name, "conv", trainer=(("streams", True),)) for name in LOCKSTEP),
]


@pytest.mark.parametrize("case", TRAININGS, ids=str)
def test_a_gpu_learns_what_a_processor_learns(case):
    """Close in float64: kernels may add in another order."""
    alone = trained(replace(case, dropout=0.0), 3)
    left = trained(on_gpu(case), 3)
    assert far(left.weights, alone.weights, tolerance=1e-8) == []
    assert left.events == alone.events


@pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
@pytest.mark.parametrize("case", [*CASES[: len(LOCKSTEP)], *FREE[:1]], ids=str)
def test_a_resumed_training_is_the_uninterrupted_one(case, tmp_path):
    again = resumable(replace(case, trainer=(*case.trainer, ("device", DEVICE))))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole, checkpoints = all_of(again, 3, tmp_path)
        middle = checkpoints[len(checkpoints) // 2]
        assert differences(whole, trained(again, 3, resume=middle)) == []
    finally:
        torch.use_deterministic_algorithms(False)


def test_bf16_is_used_by_every_stage():
    """Autocast leaves float64 as it is, so the network is in float32."""

    def outputs(**options):
        modules = [stage.float() for stage in conv(3)]
        batches = [(x.float(), targets) for x, targets in data(conv, 4)]
        with Trainer(
            modules, optimizer=SMALL, method=FDG(), device=DEVICE, **options
        ) as trainer:
            trainer.fit(batches, epochs=1, progress=False)
        return [v.cpu() for module in modules for v in module.state_dict().values()]

    exact, rough = outputs(), outputs(precision="bf16")
    assert different(rough, exact) != []
    assert far(rough, exact, tolerance=0.05) == []


def test_a_batch_may_be_overwritten_as_soon_as_it_is_given():
    """The copy of a batch goes on beside the host, out of memory that nobody else has."""
    upload = Upload(torch.device(DEVICE), channels_last=True)
    values = torch.ones(64, 3, 256, 256).pin_memory()
    moved = upload(values)
    values.zero_()
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert bool((moved == 1).all())


@pytest.mark.parametrize("name", METHODS)
def test_a_tick_leaves_no_tensor_on_the_gpu(name):
    batch = data(mlp, 1)[0]
    with Trainer(mlp(3), method=METHODS[name](), optimizer=SMALL, device=DEVICE) as trainer:
        held = []
        for _ in range(2):
            for _ in range(TICKS):
                trainer.step(*batch)
            gc.collect()
            held.append(torch.cuda.memory_allocated())
        assert held[0] == held[1]


@pytest.mark.parametrize("place", ["cpu", DEVICE])
@pytest.mark.parametrize("net", [mlp, conv])
@pytest.mark.parametrize("name", METHODS)
def test_no_tick_waits_for_the_gpu(name, net, place):
    batches = [(x.to(place), targets.to(place)) for x, targets in data(net, 3 * TICKS)]
    options = {"optimizer": SMALL, "device": DEVICE, "check_every": len(batches) + 1}
    with Trainer(net(3), method=METHODS[name](), **options) as trainer:
        for batch in batches[:TICKS]:  # kernels are chosen, and masks found
            trainer.step(*batch)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches[TICKS:]:
                trainer._session.step(*batch, 0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
