"""Sequential networks are cut between layers, balanced, and never between shared weights."""

import pytest
import torch
from torch import nn

from contract.small import Network, data, mlp, sgd
from hocket import Plan, Trainer, cut
from hocket.errors import CutError
from hocket.methods import FDG
from hocket.partition import balanced_plan, build_stages, divide, layers_in_order
from hocket.partition.costs.flops import OPERATIONS_PER_ELEMENT, count_flops
from hocket.partition.sequential import require_separate
from unit.partition.networks import Block, Chain, Layers, assert_same


class Residual(nn.Sequential):
    """Subclass of nn.Sequential with its own forward."""

    def forward(self, values):
        return values + super().forward(values)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, 2),
        nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2))),
        Residual(nn.Linear(2, 2)),
        nn.Sequential(),
        Block(2),
    )


def test_only_plain_nested_sequences_are_flattened():
    assert list(layers_in_order(network())) == ["0", "1.0", "1.1.0", "2", "3", "4"]
    inner = nn.Sequential(nn.ReLU(), nn.ReLU())
    inner.register_forward_hook(lambda *_: None)
    assert list(layers_in_order(nn.Sequential(inner, nn.ReLU()))) == ["0", "1"]
    with pytest.raises(CutError, match=r"cannot cut a Block: only an nn\.Sequential"):
        layers_in_order(Block(2))
    with pytest.raises(CutError, match="cannot cut a network without layers"):
        layers_in_order(nn.Sequential())


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Tanh()], ids=["weights", "none"])
def test_a_layer_that_is_used_twice_is_not_forgotten(layer):
    """The stages in sequence compute the same as the network."""
    network, x = nn.Sequential(layer, nn.Linear(2, 2), layer, nn.Linear(2, 2)), torch.ones(1, 2)
    stages = build_stages(network, Plan(("3",)))
    assert torch.equal(nn.Sequential(*stages)(x), network(x))


@pytest.mark.parametrize("cuts", [(), ("1.0",), ("1.1.0", "2"), ("1.0", "2", "3", "4")])
def test_stages_are_consecutive_layers_of_the_network(cuts):
    whole = network()
    stages = build_stages(whole, Plan(cuts))
    assert len(stages) == Plan(cuts).stages == len(cuts) + 1
    assert [id(layer) for stage in stages for layer in stage] == [
        id(layer) for layer in layers_in_order(whole).values()
    ]
    x = torch.randn(3, 2)
    assert torch.equal(nn.Sequential(*stages)(x), whole(x))


@pytest.mark.parametrize("stages", [0, -1, 7])
def test_more_stages_than_layers_or_less_than_one_are_refused(stages):
    text = rf"into {stages} stages: it has 6 layers( at which a .* begin)?; ask for 1 to 6"
    with pytest.raises(CutError, match=text):
        Trainer(network(), stages=stages, optimizer=sgd)
    with pytest.raises(CutError, match=text):
        balanced_plan(network(), stages, torch.ones(1, 2))


def test_the_plan_of_another_network_and_empty_stages_are_refused():
    with pytest.raises(CutError, match="the plan is for another network") as caught:
        build_stages(network(), Plan(("1.0", "head", "1")))
    text = str(caught.value)
    assert "it cuts before layer 'head', which is none of ['0', '1.0', '1.1.0'" in text
    assert "it cuts before layer '1'" in text
    assert "'1.0', which" not in text
    for cuts, stage, layer in ((("0",), 0, "0"), (("2", "2"), 1, "2"), (("4", "1.0"), 1, "4")):
        told = f"stage {stage} would be empty; it would begin at layer '{layer}' and e"
        into = f"cannot cut this network into {len(cuts) + 1} stages"
        with pytest.raises(CutError, match=f"(?s){into}.*{told}"):
            build_stages(network(), Plan(cuts))


def test_shared_parameters_and_statistics_are_refused_with_their_stages():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    tied = nn.Sequential(a, nn.ReLU(), b)
    with pytest.raises(CutError, match=r"parameter '0\.weight' is shared by stages 0, 1; keep"):
        build_stages(tied, Plan(("2",)))
    assert len(build_stages(tied, Plan(()))) == 1
    norms = nn.BatchNorm1d(2, affine=False), nn.BatchNorm1d(2, affine=False)
    norms[1].running_mean = norms[0].running_mean
    with pytest.raises(CutError, match=r"buffer '0\.running_mean' is shared by stages 0, 1"):
        build_stages(nn.Sequential(*norms), Plan(("1",)))
    with pytest.raises(CutError, match="is shared by stages 0, 1"):
        Trainer([a, a], optimizer=sgd)


def test_a_plan_between_tied_layers_divides_them_although_activations_are_shared():
    tied, relu = [nn.Linear(2, 2), nn.Linear(2, 2)], nn.ReLU()
    tied[1].weight = tied[0].weight
    network, batch = nn.Sequential(tied[0], relu, tied[1], relu), torch.randn(3, 2)
    _, stages = divide(network, Plan(("2",)), batch)
    assert torch.equal(stages[1](stages[0](batch)), network(batch))


def test_stages_that_omit_weights_or_have_no_layers_are_refused():
    whole = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(CutError) as caught:
        require_separate(whole, [whole[0]])
    for name in ["parameter '1.weight'", "parameter '1.bias'", "buffer '1.running_mean'"]:
        assert f"{name} is in no stage; add its layer to one" in str(caught.value)
    with pytest.raises(CutError, match="there are no stages; give at least one module"):
        Trainer([], optimizer=sgd)
    with pytest.raises(CutError, match="stage 1 is empty; give it at least one layer"):
        Trainer([nn.Linear(2, 2), nn.Sequential()], optimizer=sgd)


@pytest.mark.parametrize("stages", [1, 2, Plan("1"), Plan("0.second")])
def test_the_first_layer_of_a_sequence_gets_a_tuple_whole(stages):
    class Pair(Layers):
        def forward(self, pair):
            return self.second(self.first(pair[0]).relu()) + pair[1]

    network, (a, b) = nn.Sequential(Pair(), nn.Linear(4, 2)), torch.randn(2, 3, 4)
    assert_same(network, stages, (a, b), (b, a))
    told = "Tensor, not tuple; .* the first layer of an nn.Sequential gets a tuple whole"
    with pytest.raises(CutError, match=told):
        cut(nn.Sequential(Layers().first, nn.ReLU()), stages=2, sample=(a,))


# Balance.


def test_a_trainer_balances_at_its_first_batch_and_has_a_plan_then():
    layers = [nn.Linear(5, 5), nn.Linear(5, 50), nn.Linear(50, 50), nn.Linear(50, 3)]
    whole = nn.Sequential(*layers).double()
    trainer = Trainer(whole, stages=2, method=FDG(), optimizer=sgd)
    assert trainer.plan is None
    trainer.step(*data(mlp, 1)[0])
    assert trainer.plan == Plan(("2",))
    assert [list(stage.module) for stage in trainer.stages] == [layers[:2], layers[2:]]
    trainer.finish()


class Recurrent(Network):
    """Outputs of a recurrent layer, without its state."""

    def forward(self, x_BTF):
        return self.layer(x_BTF)[0]


class Attention(nn.Module):
    """Attention of a tensor of shape (B, T, F) to itself."""

    def forward(self, x_BTF):
        return nn.functional.scaled_dot_product_attention(x_BTF, x_BTF, x_BTF)


@pytest.mark.parametrize(
    ("layer", "products"),
    [
        (Attention(), 2 * 6 * 8),
        (nn.TransformerEncoderLayer(8, 2, 32, batch_first=True), 12 * 8 * 8 + 2 * 6 * 8),
        (Recurrent(layer=nn.LSTM(8, 8, batch_first=True)), 8 * 8 * 8),
        (Recurrent(layer=nn.GRU(8, 8, batch_first=True)), 6 * 8 * 8),
        (Recurrent(layer=nn.RNN(8, 8, batch_first=True)), 2 * 8 * 8),
    ],
    ids=["attention", "encoder", "lstm", "gru", "rnn"],
)
def test_layers_of_fused_kernels_count_as_their_matrix_products(layer, products):
    """Of every element of a sequence, whose 8 outputs are counted besides."""
    (count,) = count_flops(nn.Sequential(layer), torch.ones(4, 6, 8))
    assert count == 4 * 6 * (2 * products + 8 * OPERATIONS_PER_ELEMENT)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("nested", [False, True])
def test_a_stage_without_weights_is_avoided_or_told(nested):
    """The first layer is the longest part, however the others are divided."""
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 8)]
    network = Chain(layers) if nested else nn.Sequential(*layers)
    parts = divide(network, 3, torch.ones(2, 64))[1]
    assert all(list(part.parameters()) for part in parts)
    with pytest.warns(UserWarning, match=r"without weights to train: stage 1 \(from "):
        divide(network, 4, torch.ones(2, 64))
