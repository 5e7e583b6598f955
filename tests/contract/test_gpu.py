"""Laws on a GPU: close to the processor in float64, equal to itself when resumed."""

import gc
import re
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

from contract.resumed import CASES, FREE, LINEARIZED, all_of, differences, resumable
from contract.small import LOCKSTEP, METHODS, conv, data, different, far, mlp, sgd, stepped
from contract.spoiled import FORWARD, brittle, marked
from contract.test_non_finite import state_of
from contract.worlds import NETS, Case, trained
from hocket import Trainer
from hocket.errors import NonFiniteError
from hocket.methods import FDG
from hocket.remedies import REMEDIES, DropLate
from hocket.stage.finite.late_check import LateCheck
from hocket.stage.update.norms import largest_values
from hocket.training.session.batches import Upload
from unit.stage.test_accumulate import VALUES

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TICKS = 48  # a multiple of the batches for one update of every method
FRACTION = r"\d+\.\d+(?:e[-+]\d+)?"
SMALL = partial(sgd, lr=1e-4)  # the synthesizers of DNI need small steps


def on_gpu(case: Case) -> Case:
    """The case on a GPU, without dropout: its generator draws other numbers."""
    return replace(case, dropout=0.0, trainer=(*case.trainer, ("device", DEVICE)))


def on_processor(case: Case) -> Case:
    """The case on the processor, without streams, graphs and compilers."""
    of_a_gpu = ("streams", "cuda_graphs", "compile")
    options = {n: value for n, value in case.trainer if n not in of_a_gpu}
    return replace(case, dropout=0.0, trainer=tuple(options.items()))


def numbers_and_rest(events):
    """The fractions of all events of a training, and the events without them."""
    text = str(events)
    return [float(n) for n in re.findall(FRACTION, text)], re.sub(FRACTION, "", text)


TRAININGS = [
    *(Case(name, net) for name in LOCKSTEP for net in NETS),
    *LINEARIZED,
    Case("dgl-async", "conv", (("buffer", 2),)),
    Case("fdg", "skips"),
    Case("fdg", "conv", trainer=(("channels_last", True),)),
    *(Case(name, "conv", trainer=(("streams", True),)) for name in LOCKSTEP),
    *(
        Case(name, "conv", trainer=(("cuda_graphs", True),))
        for name in LOCKSTEP
        if not METHODS[name]().signal.learns_from_gradient
    ),
    *(
        Case("fdg", "conv", (("linearize", "live"),), remedies=(REMEDIES[name](),))
        for name in sorted(REMEDIES)
        if name != "drop-late"
    ),
    Case("adl", "conv", (("accumulate", 2),), remedies=(DropLate(),)),
    Case("fdg", trainer=(("compile", True),)),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in PyTorch's compiler
@pytest.mark.parametrize("case", TRAININGS, ids=str)
def test_a_gpu_learns_what_a_processor_learns(case):
    """Close in float64: kernels may add in another order."""
    alone = trained(on_processor(case), 3)
    left = trained(on_gpu(case), 3)
    assert far(left.weights, alone.weights, tolerance=1e-8) == []
    numbers, rest = numbers_and_rest(left.events)
    wanted, wanted_rest = numbers_and_rest(alone.events)
    assert rest == wanted_rest
    assert numbers == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("case", [*CASES[: len(LOCKSTEP)], *FREE[:1]], ids=str)
def test_a_resumed_training_is_the_uninterrupted_one(case, tmp_path):
    """To the bit where all kernels are deterministic; PyTorch names those that are not."""
    again = resumable(replace(case, trainer=(*case.trainer, ("device", DEVICE))))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True, action="always") as told:
            whole, checkpoints = all_of(again, 3, tmp_path)
            resumed = trained(again, 3, resume=checkpoints[len(checkpoints) // 2])
    finally:
        torch.use_deterministic_algorithms(False)
    if any("adaptive_avg_pool2d_backward_cuda" in str(each.message) for each in told):
        assert far(resumed.weights, whole.weights, tolerance=1e-8) == []
    else:
        assert differences(whole, resumed) == []


def test_largest_values_are_those_on_the_processor():
    """Tensors of all types at once, of which those of one type are searched by one kernel."""
    largest = largest_values([value.to(DEVICE) for value in VALUES.values()])
    wanted = largest_values(list(VALUES.values()))
    assert [float(value) for value in largest] == pytest.approx(
        [float(value) for value in wanted], nan_ok=True
    )


@pytest.mark.parametrize("method", ["bp", "fdg", "fr", "dni", "dgl"])
def test_all_stages_go_back_to_what_they_were_at_the_look_before(method):
    options = {"method": method, "optimizer": SMALL, "device": DEVICE}
    batches = marked(9, {4: 0 + FORWARD})
    with Trainer(brittle(3), check_every=3, **options) as trainer:
        with pytest.raises(NonFiniteError, match=r"weights of all .* after tick 2;"):
            trainer.fit(batches, epochs=1, progress=False)
        left = state_of(trainer)
    with Trainer(brittle(3), check_every=1, **options) as again:
        stepped(again, batches[:3])
        assert far(left, state_of(again), tolerance=1e-8) == []


def test_a_late_look_reads_norms_of_the_host_as_well():
    """A stage may send lengths, which stay there."""
    check = LateCheck(2, [], [])
    check.add(lambda: ["here", "there"], [torch.ones(()), torch.ones((), device=DEVICE)])
    assert check.find() is None
    check.add(lambda: ["here", "there"], [torch.ones(()), torch.tensor(torch.nan).to(DEVICE)])
    _, words = check.find()
    assert words == "there became nan"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_is_used_by_every_stage(precision):
    """Autocast leaves float64 as it is, so the network is in float32."""

    def outputs(**options):
        modules = [stage.float() for stage in conv(3)]
        batches = [(x.float(), targets) for x, targets in data(conv, 4)]
        with Trainer(
            modules, optimizer=SMALL, method=FDG(), device=DEVICE, **options
        ) as trainer:
            trainer.fit(batches, epochs=1, progress=False)
        return [v.cpu() for module in modules for v in module.state_dict().values()]

    exact, rough = outputs(), outputs(precision=precision)
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
            trainer._session.ticks.look()  # norms are held until then
            gc.collect()
            held.append(torch.cuda.memory_allocated())
        assert held[0] == held[1]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("place", ["cpu", DEVICE])
@pytest.mark.parametrize(("net", "resumable"), [(mlp, False), (conv, True)])
@pytest.mark.parametrize("name", METHODS)
def test_no_tick_waits_for_the_gpu(name, resumable, net, place):
    batches = [(x.to(place), targets.to(place)) for x, targets in data(net, 3 * TICKS)]
    options = {"optimizer": SMALL, "device": DEVICE, "check_every": 10**6}
    options["resumable"] = resumable
    with Trainer(net(3), method=METHODS[name](), **options) as trainer:
        for batch in batches[:TICKS]:  # kernels are chosen, and masks found
            trainer.step(*batch)
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            for batch in batches[TICKS:]:
                trainer._session.ticks.step(*batch, 0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
