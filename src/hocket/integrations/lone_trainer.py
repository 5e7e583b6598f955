"""A `Trainer` of transformers that is alone in each process, and moves no model."""

from copy import copy
from functools import partial
from typing import Any

import torch
import transformers
from accelerate.data_loader import prepare_data_loader


def compose_lone_trainer(
    model: transformers.PreTrainedModel,
    args: transformers.TrainingArguments,
    accumulate: int,
    **options: Any,
) -> transformers.Trainer:
    """Return a `Trainer` of theirs that is alone in each process, and moves no model.

    Args:
        model: The model.
        args: The arguments.
        accumulate: Number of batches in a step.
        **options: Other options of it.
    """
    # Change a copy of the arguments: here is one process, whose stages have the devices.
    pins = args.dataloader_pin_memory and args.device.type == "cuda"
    args, world = copy(args), copy(args.distributed_state)
    vars(world).update(num_processes=1, distributed_type="NO")
    vars(args).update(
        _setup_devices=torch.device("cpu"),
        _n_gpu=1,
        distributed_state=world,
        average_tokens_across_devices=False,
        dataloader_pin_memory=pins,
        gradient_accumulation_steps=accumulate,
    )
    # Let it read all data, and gather no outputs, as each process has all of them.
    theirs = transformers.Trainer(model, args, **options)
    theirs.accelerator.prepare = partial(
        prepare_data_loader,
        num_processes=1,
        process_index=0,
        use_seedable_sampler=True,
        data_seed=args.data_seed,
    )
    theirs.accelerator.gather = lambda values: values
    theirs.accelerator.pad_across_processes = lambda values, **_: values
    return theirs
