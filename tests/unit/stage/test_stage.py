"""What a stage refuses: numbers that are no numbers, labels that are none, packets too few."""

from contextlib import suppress

import numpy
import pytest
import torch
from torch import Tensor, nn

from contract.small import METHODS, data, different, mlp, sgd, train, weights_of
from hocket import Trainer
from hocket.errors import DataError, NonFiniteError, PacketError
from hocket.methods import BP, DNI, FDG
from hocket.program import Action
from hocket.stage.contexts import seeded_rng
from hocket.stage.passes.edges import graph_leaves
from hocket.transport.packet import Activation


def watched(method, modules, **options):
    """A trainer, and the weights of each stage as they were after its last update."""
    kept = {k: weights_of(module) for k, module in enumerate(modules)}

    def watch(event, stage):
        if event.action.kind == "U":
            kept[stage.index] = weights_of(stage.module)

    trainer = Trainer(modules, method=method, optimizer=sgd, watchers=[watch], **options)
    return trainer, kept


def run_into(trainer, batches, error):
    """Train until it fails; the error."""
    trainer.prepare(data(mlp, 1)[0][0])
    with pytest.raises(error) as caught:
        trainer.fit(batches, epochs=1, progress=False)
    return caught.value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["bp", "ddg", "fdg", "dgl"])
def test_an_output_that_is_no_number_stops_before_its_update(method, value):
    batches, modules = data(mlp, 6), mlp(2)
    batches[3][0][0, 0] = value
    # tanh would hide an infinity.
    modules = [nn.Sequential(nn.Identity(), *stage[:1], *stage[3:4]) for stage in modules]
    modules[1].append(nn.Linear(5, 3, dtype=torch.double))
    trainer, kept = watched(method, modules)
    error = run_into(trainer, batches, NonFiniteError)
    assert "(stage 0, batch 3, tick 3: F0.3)" in error.__notes__
    assert "the output became nan" in str(error) or "the output became inf" in str(error)
    for k, module in enumerate(modules):
        assert not different(weights_of(module).values(), kept[k].values())
        assert all(p.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_a_label_out_of_range_is_an_error_of_the_data(name):
    batches = data(mlp, 4)
    batches[1][1][2] = 3
    trainer, _ = watched(METHODS[name](), mlp(2))
    error = run_into(trainer, batches, DataError)
    for words in ("do not fit the outputs of shape (4, ", "labels must lie between 0 and"):
        assert words in str(error)
    assert any(note.startswith("(stage ") and "batch 1" in note for note in error.__notes__)


def test_a_label_out_of_range_of_a_structure_is_told_too():
    class Pair(nn.Linear):
        def forward(self, values: Tensor):
            return (super().forward(values),)

    def loss(output, targets: Tensor) -> Tensor:
        return output[0][:, targets].sum()

    batches = [(x, y + 9) for x, y in data(mlp, 1)]
    trainer, _ = watched(BP(), [Pair(5, 3, dtype=torch.double)], loss=loss)
    assert "(a structure)" in str(run_into(trainer, batches, DataError))


@pytest.mark.parametrize(("method", "kind"), [("fdg", "F"), ("dni", "T")])
def test_an_action_without_its_packet_is_refused(method, kind):
    trainer, _ = watched(method, mlp(2))
    trainer.prepare(data(mlp, 1)[0][0])
    with pytest.raises(PacketError, match="batch 5"):
        trainer.stages[0].execute(Action(kind, 0, 5))


@pytest.mark.parametrize("flags", [(), (True,), (True, False, True)])
def test_an_activation_that_does_not_tell_of_each_tensor_is_refused(flags):
    packet = Activation(7, 0, (torch.ones(2), torch.ones(2)), flags, None)
    with pytest.raises(PacketError, match=f"has 2 tensors, and tells of {len(flags)} whether"):
        graph_leaves(packet)


def test_a_report_tells_loss_norm_and_epoch():
    gradients = []

    def watch(event, stage):
        if event.action.kind == "B":
            norm = torch.cat([g.flatten() for g in stage.gradients]).norm()
            gradients.append((event.report.gradient_norm, float(norm)))

    events = train(DNI(), mlp(2), data(mlp, 2), epochs=2, watch=watch, lr=0.01).events
    for norm, by_hand in gradients:
        assert norm == pytest.approx(by_hand, rel=1e-12)
    for event in events:
        assert (event.report.loss is not None) == (str(event.action)[:2] in ("B1", "T0"))
        assert event.report.epoch == event.action.batch // 2


@pytest.mark.parametrize("ignored", [-100, 0, 1])
def test_a_report_counts_the_targets_that_the_loss_is_over(ignored):
    loss, batches = nn.CrossEntropyLoss(ignore_index=ignored), data(mlp, 6, size=8)
    done = train(FDG(), mlp(2), batches, loss=loss)
    counts = [event.report.targets for event in done.of("B", 1)]
    assert counts == [int((targets != ignored).sum()) for _, targets in batches]


def test_randomness_is_put_back_after_an_error():
    numpy.random.seed(0)
    numpy.random.randn()  # one of two that NumPy has drawn
    before = torch.get_rng_state()
    device = torch.device("cpu")
    with suppress(ZeroDivisionError), seeded_rng(0, 0, 0, "forward", device):
        torch.randn(1)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
    assert numpy.random.randn() == numpy.random.RandomState(0).randn(2)[1]
