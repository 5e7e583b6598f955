"""A network that computes its loss in its forward, as nanoGPT's does.

What to learn: all that the forward takes is input, targets too, and `loss` picks the loss from
what it returns. `configure_optimizers` of a model serves a stage, too, given its weights. In a
clone of nanoGPT, `from model import GPT, GPTConfig` replaces the class, and all below it stays.
"""

from types import SimpleNamespace

import hocket
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class GPT(nn.Module):
    def __init__(self, vocab=16, width=32, depth=4):
        super().__init__()
        order = {"batch_first": True, "norm_first": True}
        blocks = [nn.TransformerEncoderLayer(width, 4, 128, 0.0, **order) for _ in range(depth)]
        self.h = nn.ModuleList(blocks)
        self.wte, self.lm_head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx)
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1], idx.device)
        for block in self.h:
            x = block(x, mask, is_causal=True)
        logits = self.lm_head(x)
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        matrices = [weight for _, weight in self.named_parameters() if weight.dim() >= 2]
        others = [weight for _, weight in self.named_parameters() if weight.dim() < 2]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, learning_rate, betas, weight_decay=weight_decay)


def get_batch():  # sequences in which each number follows from the one before
    x = (torch.randint(16, (16, 1)) + 5 * torch.arange(33)) % 16
    return x[:, :-1], x[:, 1:]


def optimizer(named_parameters):  # of a stage
    stage = SimpleNamespace(named_parameters=lambda: named_parameters)
    return GPT.configure_optimizers(stage, 0.1, 1e-3, (0.9, 0.95), "cpu")


torch.manual_seed(0)
trainer = hocket.Trainer(
    GPT(),
    stages=2,
    method="adl:accumulate=4",
    optimizer=optimizer,
    loss=lambda output, targets: output[1],
)
for step in range(1, 121):
    x, y = get_batch()
    loss = trainer.step((x, y), y)
    if step % 40 == 0 and loss is not None:  # the process of the last stage has it
        print(f"step {step}: loss {loss:.3f}")
trainer.finish()

# It prints:
#
#   step 40: loss 1.747
#   step 80: loss 0.794
#   step 120: loss 0.212
