"""Train BERT of transformers on batches that are dicts, in one process or in two.

    python examples/06_bert.py
    hocket launch --processes 2 examples/06_bert.py     # each trains one stage, the same bits

What to learn: a network of transformers is cut in the middle as it is, a batch with `labels`
is taken as its data loaders give it, and the loss reads what the network returns. BERT is built
from a configuration; to fine-tune weights of yours, call `from_pretrained` with their folder.
"""

import hocket
import torch
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH = 50, 12
torch.set_num_threads(1)  # equal bits need equal numbers of threads
torch.manual_seed(0)


def sentences(count):
    """Return sentences of random words and lengths; their class is that of their first word."""
    words = torch.randint(1, WORDS, (count, LENGTH))
    mask = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (count, 1))
    return {"input_ids": words * mask, "attention_mask": mask.long(), "labels": words[:, 0] % 2}


def batches(data, size=32):
    """Return a dict for each batch, as a loader with a collator does."""
    columns = zip(*(column.split(size) for column in data.values()), strict=True)
    return [dict(zip(data, batch, strict=True)) for batch in columns]


network = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=2, max_position_embeddings=LENGTH,
    )
)  # fmt: skip
with hocket.Trainer(
    network,
    stages=2,
    method="ddg",
    optimizer=lambda weights: torch.optim.AdamW(weights, lr=2e-3),
    loss=lambda output, targets: hocket.cross_entropy(output.logits, targets),
) as trainer:
    train, test = batches(sentences(480)), batches(sentences(96))
    history = trainer.fit(train, test, epochs=2, progress=False)
    if trainer.is_main_process:
        for epoch in history:
            print(f"epoch {epoch.number}: test loss {epoch.evaluation.loss:.3f}")
        print(f"stage 1 begins at {trainer.plan.cuts[0]}")

# It prints:
#
#   epoch 0: test loss 0.424
#   epoch 1: test loss 0.038
#   stage 1 begins at bert.encoder.layer.1.attention.output.LayerNorm
