"""Networks of transformers are built from a configuration, and unknown fields are refused."""

import sys

import pytest
import torch

from hocket import zoo
from hocket.errors import OptionError

pytest.importorskip("transformers")

TOKENS = torch.tensor([[1, 2, 3], [0, 1, 2]])
IMAGES = torch.zeros(2, 1, 32, 32)


@pytest.mark.parametrize("name", zoo.HUGGING_FACE)
def test_each_returns_scores_for_the_inputs_it_was_built_for(name):
    tokens = name in ("hf_gpt2", "hf_llama")
    shape, inputs = ((3,), TOKENS) if tokens else (tuple(IMAGES.shape[1:]), IMAGES)
    network = zoo.create_fitted(name, shape, 7)
    assert network(inputs).shape == ((2, 3, 7) if tokens else (2, 7))
    assert not [key for key in network.state_dict() if key.startswith("network.")]


def test_fields_of_the_configuration_can_be_set():
    network = zoo.create("hf_gpt2", n_layer=1, n_embd=8, n_head=2, vocab=5, context=4)
    assert sum(p.numel() for p in network.parameters()) < 2000


@pytest.mark.parametrize("field", ["dtype", "_attn_implementation"])
def test_fields_without_effect_are_no_options(field):
    with pytest.raises(OptionError, match=f"from a GPT2Config:\n.*unknown field '{field}'"):
        zoo.create("hf_gpt2", **{field: "bfloat16"})


def test_an_unknown_field_is_refused():
    with pytest.raises(
        OptionError, match=r"from a GPT2Config:\n.*'n_layers' .did you mean 'n_l"
    ):
        zoo.create("hf_gpt2", n_layers=1)


def test_a_field_that_transformers_refuses_is_reported():
    with pytest.raises(
        OptionError, match=r"transformers refuses the network 'hf_gpt2': .*; change"
    ):
        zoo.create("hf_gpt2", n_embd=9, n_head=2)


def test_a_value_of_another_type_is_refused():
    with pytest.raises(OptionError, match="vocab is 'many'; wanted a whole number"):
        zoo.create("hf_gpt2", vocab="many")


def test_the_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    text = r"'hf_vit' needs the package transformers, .* pip install 'hocket\[transformers\]'"
    with pytest.raises(OptionError, match=text):
        zoo.create("hf_vit")
