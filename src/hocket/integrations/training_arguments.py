"""Fields of transformers' `TrainingArguments`, and the options of Hocket that they become.

Each field is in one of three tables. One that a later version or a subclass adds is in none,
and is refused unless it has its default.
"""

from dataclasses import MISSING, fields
from functools import partial
from typing import Any

import transformers
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers.trainer_pt_utils import AcceleratorConfig

from hocket.errors import Problems, warn
from hocket.methods.method import Method
from hocket.optim.factory import NamedParameters

_TRANSLATED = """
    num_train_epochs max_steps per_device_train_batch_size per_device_eval_batch_size
    gradient_accumulation_steps seed data_seed full_determinism train_sampling_strategy
    remove_unused_columns label_names dataloader_drop_last dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
    weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
    use_cpu bf16 fp16 tf32 torch_compile torch_compile_backend use_cache ddp_backend ddp_timeout
    output_dir eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches
    prediction_loss_only save_strategy save_steps save_total_limit save_only_model
    load_best_model_at_end metric_for_best_model greater_is_better
    logging_strategy logging_steps logging_first_step log_on_each_node log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id
    trackio_bucket_id trackio_static_space_id
    do_train do_eval do_predict resume_from_checkpoint local_rank
"""
TRANSLATED = frozenset(_TRANSLATED.split())
"""Fields that have the effect that they have on transformers' `Trainer`.

The last line is for the script; tf32 and the process group are set by the arguments themselves.
"""
_REFUSED = {
    "accelerator_config deepspeed fsdp fsdp_config parallelism_config": (
        "the network is divided into stages instead"
    ),
    "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing "
    "gradient_checkpointing_kwargs": "use a method such as 'paci:linearize=recompute'",
    "auto_find_batch_size": "choose per_device_train_batch_size",
    "batch_eval_metrics include_for_metrics": "compute_metrics gets predictions and labels",
    "bf16_full_eval fp16_full_eval": "bf16 and fp16 hold for evaluations as well",
    "debug": "a value that is NaN or infinite ends the training, with its place",
    "enable_jit_checkpoint": "give save_steps",
    "ignore_data_skip": "a resumed training continues with the next batch",
    "include_num_input_tokens_seen": "count tokens in a callback",
    "label_smoothing_factor": "let the model's own loss smooth its labels",
    "liger_kernel_config neftune_noise_alpha use_liger_kernel": (
        "change the model before StageTrainer gets it"
    ),
    "optim_target_modules": "freeze the weights that are not to be trained",
    "push_to_hub": "call save_model(folder), and push the model that from_pretrained reads",
    "restore_callback_states_from_checkpoint": "let callbacks read the TrainerState",
    "skip_memory_metrics": "measure memory from outside",
    "torch_compile_mode": "stages are compiled in the default mode",
    "torch_empty_cache_steps": "call torch.cuda.empty_cache in a callback",
}
REFUSED = {name: advice for names, advice in _REFUSED.items() for name in names.split()}
"""Fields that are refused unless they have their default, each with the advice."""
_WITHOUT_MEANING = {
    "average_tokens_across_devices ddp_broadcast_buffers ddp_bucket_cap_mb "
    "ddp_find_unused_parameters ddp_static_graph": "processes share the network, not batches",
    "eval_accumulation_steps eval_use_gather_object": "predictions go to the CPU at once",
    "hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token": (
        "nothing is pushed to a hub"
    ),
    "length_column_name": "no sampler reads lengths",
    "logging_nan_inf_filter": "a loss that is NaN or infinite ends the training",
    "save_on_each_node": "checkpoints need a folder that all processes share",
}
WITHOUT_MEANING = {
    name: why for names, why in _WITHOUT_MEANING.items() for name in names.split()
}
"""Fields that are warned of unless they have their default, each with the reason."""
CHOICES = {
    "optim": ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor"),
    "train_sampling_strategy": ("random", "sequential"),
}
"""Values of translated fields that are not refused."""


def check_arguments(args: transformers.TrainingArguments, method: Method) -> None:
    """Warn of fields without meaning, and refuse fields and values without effect.

    Args:
        args: The arguments.
        method: The method that trains.

    Raises:
        OptionError: With every field that is refused, by name.
    """
    problems = Problems()
    for name, value in _changed_fields(args).items():
        if name in WITHOUT_MEANING:
            warn(f"{name} is {value!r}, which has no meaning here: {WITHOUT_MEANING[name]}")
        elif name not in TRANSLATED:
            advice = REFUSED.get(name, "StageTrainer does not know this field")
            problems.append(f"{name} is {value!r}; leave it out: {advice}")
    problems += _refused_values(args, method)
    problems.raise_together("StageTrainer cannot train with these arguments")


def _changed_fields(args: transformers.TrainingArguments) -> dict[str, Any]:
    """Return the fields that do not have their default."""
    changed = {}
    for field in fields(args):
        value, default = getattr(args, field.name), field.default
        default = None if default is MISSING else default
        # The arguments replace a default of None, False or nothing by another one of these.
        if value not in (default, AcceleratorConfig()) and (value or default):
            changed[field.name] = value
    return changed


def _refused_values(args: transformers.TrainingArguments, method: Method) -> list[str]:
    """Return one problem for each translated field with a value that stages cannot have."""
    problems = [
        f"{name} is {getattr(value, 'value', value)!r}; use one of {', '.join(known)}"
        for name, known in CHOICES.items()
        if (value := getattr(args, name)) not in known
    ]
    if (schedule := args.lr_scheduler_type) in ("reduce_lr_on_plateau", "greedy"):
        problems.append(
            f"lr_scheduler_type is {schedule.value!r}, which follows evaluations; use one that "
            "counts steps, such as 'cosine'"
        )
    if (steps := args.gradient_accumulation_steps) not in (1, method.accumulate):
        problems.append(
            f"gradient_accumulation_steps is {steps}, and method {method.name!r} accumulates "
            f"{method.accumulate}; give method='{method.name}:accumulate={steps}'"
        )
    if method.free_running:
        problems.append(
            f"the stages of method {method.name!r} run freely, each with its own steps; use "
            "another method, or hocket.Trainer"
        )
    return problems


def trainer_options(
    args: transformers.TrainingArguments, network: transformers.PreTrainedModel, max_steps: int
) -> dict[str, Any]:
    """Return the options of `hocket.Trainer` that the fields become.

    Args:
        args: The arguments.
        network: The network, which says which weights decay.
        max_steps: Number of updates, for the schedule.
    """
    return {
        "device": args.device.type,
        "optimizer": partial(_build_optimizer, args, network),
        "scheduler": partial(_build_scheduler, args, max_steps),
        "scheduler_unit": "update",
        "clip": args.max_grad_norm or None,
        "seed": args.seed,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "compile": args.torch_compile and args.torch_compile_backend,
        "slow_timeout_s": float(args.ddp_timeout),
        "resumable": args.save_strategy != "no" and not args.save_only_model,
    }


def _build_optimizer(
    args: transformers.TrainingArguments,
    network: transformers.PreTrainedModel,
    named_parameters: NamedParameters,
) -> Optimizer:
    """Build the optimizer of a stage, with decay for the weights that decay in theirs."""
    theirs = transformers.Trainer  # of which these two methods need no object
    decayed = theirs.get_decay_parameter_names(None, network)
    kind, options = theirs.get_optimizer_cls_and_kwargs(args, network)
    groups = [
        {
            "params": [
                weight for name, weight in named_parameters if (name in decayed) is decays
            ],
            "weight_decay": args.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    optimizer: Optimizer = kind(groups, **options)
    return optimizer


def _build_scheduler(
    args: transformers.TrainingArguments, max_steps: int, optimizer: Optimizer
) -> LRScheduler:
    """Build the scheduler of a stage, which counts the stage's updates."""
    scheduler: LRScheduler = transformers.get_scheduler(
        args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.get_warmup_steps(max_steps),
        num_training_steps=max_steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    return scheduler
