"""Networks of other libraries are cut, and train the same as without cuts."""

import copy

import pytest
import torch
from torch.nn import functional as F

from hocket import BP, FDG, Plan, Trainer, cross_entropy, cut
from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import balanced_cut_points
from hocket.partition.parts.partial_module import build_partial_modules
from hocket.partition.verify import verify_stages
from hocket.tree import Tree

transformers = pytest.importorskip("transformers")

TEXT = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
UNTIED = TEXT | {"tie_word_embeddings": False}
LAYERS = {
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
GPT2 = {"n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 8}
SIZES = [4, 8, 8, 8]
# Classes of transformers, and fields of their configurations.
SMALL = {
    "GPT2LMHeadModel": UNTIED | GPT2,
    "LlamaForCausalLM": UNTIED | LAYERS | {"max_position_embeddings": 8},
    "ViTForImageClassification": LAYERS | {"image_size": 8, "patch_size": 4},
    "ConvNextForImageClassification": {
        "patch_size": 2,
        "hidden_sizes": SIZES,
        "depths": [1, 1, 2, 1],
        "layer_scale_init_value": 1.0,  # else gradients are too small to change a weight of 1
    },
    "ResNetForImageClassification": {
        "embedding_size": 4,
        "hidden_sizes": SIZES,
        "depths": [1, 1, 2, 1],
        "layer_type": "basic",
    },
    "SwinForImageClassification": {
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [2, 2],
        "num_heads": [2, 2],
        "image_size": 32,
        "window_size": 4,
    },
}
every = pytest.mark.parametrize("name", SMALL)


def make(name, **fields):
    torch.manual_seed(0)
    config = getattr(
        transformers, name.partition("For")[0].removesuffix("LMHeadModel") + "Config"
    )
    network = getattr(transformers, name)(config(**SMALL[name] | fields))
    network.register_forward_hook(lambda network, inputs, output: output.logits)
    return network, make_sample(name)


def reads_text(name):
    return "vocab_size" in SMALL[name]


def make_sample(name) -> Tree:
    if reads_text(name):
        return torch.randint(0, 11, (2, 8))
    return torch.randn(2, 3, *[SMALL[name].get("image_size", 32)] * 2)


@every
def test_outputs_and_gradients_are_equal_on_two_three_and_four_stages(name):
    network, sample = make(name)
    graph = find_cut_points(network, sample)
    assert not graph.refused
    for stages in (2, 3, 4):
        positions = balanced_cut_points(graph, stages)
        assert len(positions) == stages - 1
        verify_stages(network, build_partial_modules(graph, positions), sample)


@every
def test_a_step_on_stages_is_a_step_of_the_network(name):
    network, sample = make(name)
    for module in network.modules():
        # Each stage has its own random numbers.
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    network.config.attention_dropout = network.config.attn_pdrop = 0.0
    plain, targets = copy.deepcopy(network), torch.tensor([0, 1])
    if reads_text(name):
        targets = sample
    trainer = Trainer(network, stages=3, method=BP(), optimizer=sgd)
    optimizer = sgd(plain.parameters())
    for _ in range(2):
        trainer.step(sample, targets)
        optimizer.zero_grad()
        F.cross_entropy(plain(sample).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
    for (key, value), other in zip(
        network.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), key


@every
def test_a_batch_of_one_input_is_supported(name):
    network, sample = make(name)
    for module in (network, *(stages := cut(network, stages=3, sample=sample))):
        module.eval()
    value = sample[:1]
    for stage in stages:
        value = stage(value)
    assert torch.equal(value, network(sample[:1]))


@every
def test_late_gradients_reach_every_weight(name):
    network, sample = make(name)
    targets = sample if reads_text(name) else torch.tensor([0, 1])
    trainer = Trainer(network, stages=2, method=FDG(), optimizer=sgd)
    before = {key: value.clone() for key, value in network.named_parameters()}
    for _ in range(4):
        trainer.step(sample, targets)
    trainer.finish()
    same = [key for key, value in network.named_parameters() if torch.equal(before[key], value)]
    assert not same


def test_an_embedding_that_is_tied_to_the_head_learns_from_both():
    undropped = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    network, sample = make("GPT2LMHeadModel", **undropped, tie_word_embeddings=True)
    trainer = Trainer(network, stages=Plan(("transformer.h.1",)), method=BP(), optimizer=sgd)
    plain = copy.deepcopy(network)
    for _ in range(2):
        trainer.step(sample, sample)
        plain.zero_grad()
        cross_entropy(plain(sample), sample).backward()
        sgd(plain.parameters()).step()
    trainer.finish()
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)
