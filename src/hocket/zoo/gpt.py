"""A small decoder-only transformer.

Layers: `embed`, `block0` ... `block{depth-1}`, `head`.

Source: Radford et al., Language models are unsupervised multitask learners, 2019 (GPT-2), but
without tying embedding and head: a tied weight would travel with each batch.
"""

# Shapes: B batch, T tokens, D width, N heads, E width of a head, V vocabulary.

from collections import OrderedDict
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hocket.errors import DataError, OptionError, raise_problems
from hocket.options.ranges import wrong_counts
from hocket.zoo.layer import Layer


@final
class TokenEmbedding(nn.Module):
    """Sum of a vector per token and a vector per position, from (B, T) ids to (B, T, D)."""

    def __init__(self, vocab: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return embeddings (B, T, D).

        Raises:
            DataError: The sequences are longer than the context.
        """
        tokens = ids_BT.shape[1]
        if tokens > self.context:
            raise DataError(
                f"sequences have {tokens} tokens, this network's context is {self.context}; "
                "cut the text shorter or build the network with a longer context"
            )
        positions_T = torch.arange(tokens, device=ids_BT.device)
        x_BTD: Tensor = self.dropout(self.token(ids_BT) + self.position(positions_T))
        return x_BTD


@final
class Attention(nn.Module):
    """Causal multi-head self-attention on (B, T, D)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return one vector for each token, (B, T, D), from this token and those before it."""
        qkv_BTND = self.queries_keys_values(x_BTD).unflatten(-1, (3 * self.heads, -1))
        q_BNTE, k_BNTE, v_BNTE = qkv_BTND.transpose(1, 2).chunk(3, dim=1)
        attended_BNTE = F.scaled_dot_product_attention(
            q_BNTE,
            k_BNTE,
            v_BNTE,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        output_BTD: Tensor = self.output(attended_BNTE.transpose(1, 2).flatten(2))
        return output_BTD


@final
class Block(nn.Module):
    """Pre-norm transformer block on (B, T, D): attention and a perceptron, both residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the output of both residual branches, (B, T, D)."""
        x_BTD = x_BTD + self.dropout(self.attention(self.norm1(x_BTD)))
        hidden_BTD = F.gelu(self.expand(self.norm2(x_BTD)))
        output_BTD: Tensor = self.dropout(self.contract(hidden_BTD))
        return x_BTD + output_BTD


def gpt(
    *,
    vocab: int = 256,
    context: int = 64,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build a next-token predictor, from (B, T) token ids to (B, T, vocab) scores.

    Args:
        vocab: Number of different tokens; 256 for bytes.
        context: Length of the longest sequence, in tokens.
        width: Number of features of a token.
        depth: Number of transformer blocks.
        heads: Number of attention heads; must divide `width`.
        dropout: Dropout probability of embeddings, attention weights and residual branches.

    Raises:
        OptionError: A size is below 1, the heads do not divide the width, or the dropout is no
            fraction.

    >>> list(dict(gpt(depth=2).named_children()))
    ['embed', 'block0', 'block1', 'head']
    """
    problems = wrong_counts(
        1, vocab=vocab, context=context, width=width, depth=depth, heads=heads
    )
    if not problems and width % heads:
        problems.append(f"{heads} heads do not divide width {width}; choose a multiple")
    if not 0 <= dropout < 1:
        problems.append(f"dropout is {dropout}; give a fraction in [0, 1)")
    raise_problems(OptionError, "cannot build this gpt", problems)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["embed"] = TokenEmbedding(vocab, context, width, dropout)
    for number in range(depth):
        layers[f"block{number}"] = Block(width, heads, dropout)
    layers["head"] = Layer(
        OrderedDict(norm=nn.LayerNorm(width), linear=nn.Linear(width, vocab, bias=False))
    )
    network = nn.Sequential(layers)
    _initialize(network, depth)
    return network


def _initialize(network: nn.Module, depth: int) -> None:
    """Draw all weights from N(0, 0.02^2) and set biases to 0.

    The standard deviation of the last layer of each of the 2 * depth residual branches is
    divided by the square root of their number.
    """
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in network.modules():
        if isinstance(module, Block):
            for last in (module.attention.output, module.contract):
                nn.init.normal_(last.weight, std=0.02 / (2 * depth) ** 0.5)
