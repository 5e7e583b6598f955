"""Train a GPT-2 of transformers in two stages, by the arguments of transformers' `Trainer`.

    python examples/14_transformers_trainer.py
    hocket launch --processes 2 examples/14_transformers_trainer.py     # the same bits

What to learn: a program that calls `transformers.Trainer` changes one line, the name of the
trainer. Arguments, data sets, collators, metrics and callbacks stay; an argument that has no
effect on stages is refused by name. The model is built from a configuration; to fine-tune
weights of yours, call `from_pretrained` with their folder.
"""

import tempfile

import hocket  # noqa: F401  # before PyTorch, so that threads that wait sleep
import torch
from hocket.integrations.transformers import StageTrainer
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainingArguments

WORDS, LENGTH = 40, 12
torch.set_num_threads(1)  # equal bits need equal numbers of threads
torch.manual_seed(0)


def sentences(count):
    """Return sentences that count on from a random word."""
    first = torch.randint(WORDS, (count, 1))
    words = (first + torch.arange(LENGTH)) % WORDS
    return [{"input_ids": row, "labels": row} for row in words]


model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=4, n_head=2, n_positions=LENGTH,
        bos_token_id=0, eos_token_id=0,
    )
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = StageTrainer(  # it was `transformers.Trainer(`
        model=model,
        args=TrainingArguments(
            folder, num_train_epochs=3, per_device_train_batch_size=8, learning_rate=1e-2,
            logging_steps=8, eval_strategy="epoch", save_strategy="no", disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=sentences(256),
        eval_dataset=sentences(64),
        stages=2,
        method="paci:accumulate=4+predict",
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    output = trainer.train()
    if trainer.is_world_process_zero():
        for logs in trainer.state.log_history:
            if "eval_loss" in logs:
                print(f"epoch {logs['epoch']:.0f}: evaluation loss {logs['eval_loss']:.3f}")
        print(f"{output.global_step} steps, stage 1 begins at {trainer.trainer.plan.cuts[0]}")

# It prints:
#
#   epoch 1: evaluation loss 2.683
#   epoch 2: evaluation loss 1.977
#   epoch 3: evaluation loss 1.653
#   24 steps, stage 1 begins at transformer.h.2
