"""Fields of transformers' `TrainingArguments`: which of them have an effect on stages."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from hocket.errors import OptionError, Problems, warn
from hocket.methods.method import Method

EFFECT, REFUSED, WARNED = "has its effect", "is refused", "is warned of"
_TABLE = {
    (EFFECT, ""): """
        num_train_epochs max_steps per_device_train_batch_size per_device_eval_batch_size
        gradient_accumulation_steps seed data_seed full_determinism train_sampling_strategy
        length_column_name remove_unused_columns label_names dataloader_drop_last
        dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
        learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
        weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm use_cache
        use_cpu bf16 fp16 tf32 torch_compile torch_compile_backend ddp_backend ddp_timeout
        output_dir eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches
        eval_accumulation_steps batch_eval_metrics include_for_metrics prediction_loss_only
        save_strategy save_steps save_total_limit save_only_model load_best_model_at_end
        metric_for_best_model greater_is_better restore_callback_states_from_checkpoint
        logging_strategy logging_steps logging_first_step log_on_each_node log_level
        log_level_replica disable_tqdm report_to run_name project trackio_space_id
        trackio_bucket_id trackio_static_space_id
        do_train do_eval do_predict resume_from_checkpoint local_rank
    """,
    (REFUSED, "the network is divided into stages instead"): """
        accelerator_config deepspeed fsdp fsdp_config parallelism_config
    """,
    (REFUSED, "use a method such as 'paci:linearize=recompute'"): """
        activation_checkpointing activation_checkpointing_kwargs
        gradient_checkpointing gradient_checkpointing_kwargs
    """,
    (REFUSED, "change the model before StageTrainer gets it"): """
        liger_kernel_config neftune_noise_alpha use_liger_kernel
    """,
    (REFUSED, "choose per_device_train_batch_size"): "auto_find_batch_size",
    (REFUSED, "bf16 and fp16 hold for evaluations as well"): "bf16_full_eval fp16_full_eval",
    (REFUSED, "a value that is NaN or infinite ends the training, with its place"): "debug",
    (REFUSED, "give save_steps"): "enable_jit_checkpoint",
    (REFUSED, "all processes have the predictions"): "eval_use_gather_object",
    (REFUSED, "a resumed training continues with the next batch"): "ignore_data_skip",
    (REFUSED, "count tokens in a callback"): "include_num_input_tokens_seen",
    (REFUSED, "let the model's own loss smooth its labels"): "label_smoothing_factor",
    (REFUSED, "freeze the weights that are not to be trained"): "optim_target_modules",
    (REFUSED, "call save_model(folder), and push what it writes"): "push_to_hub",
    (REFUSED, "measure memory from outside"): "skip_memory_metrics",
    (REFUSED, "stages are compiled in the default mode"): "torch_compile_mode",
    (REFUSED, "call torch.cuda.empty_cache in a callback"): "torch_empty_cache_steps",
    (WARNED, "processes share the network, not batches"): """
        average_tokens_across_devices ddp_broadcast_buffers ddp_bucket_cap_mb
        ddp_find_unused_parameters ddp_static_graph
    """,
    (WARNED, "nothing is pushed to a hub"): """
        hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token
    """,
    (WARNED, "a loss that is NaN or infinite ends the training"): "logging_nan_inf_filter",
    (WARNED, "checkpoints need a folder that all processes share"): "save_on_each_node",
}
FIELDS = {name: found for found, names in _TABLE.items() for name in names.split()}
"""For each field what becomes of a value that is not its default, and the advice or reason."""


def check_arguments(args: TrainingArguments, method: Method) -> None:
    """Warn of fields without meaning, and refuse fields without effect.

    Values that an optimizer or schedule of a stage cannot have are refused when it is built.

    Raises:
        OptionError: With every field that is refused, by name; also those that a later version
            or a subclass adds.
    """
    problems = Problems()
    # Look up the fields that do not have their default.
    for field in fields(args):
        name, value, default = field.name, getattr(args, field.name), field.default
        default = None if default is MISSING else default
        effect, text = FIELDS.get(name, (REFUSED, "StageTrainer does not know this field"))
        # The arguments replace a default of None, False or nothing by another one of these.
        if value in (default, AcceleratorConfig()) or not (value or default):
            continue
        if effect == WARNED:
            warn(f"{name} is {value!r}, which has no meaning here: {text}")
        elif effect == REFUSED:
            problems.append(f"{name} is {value!r}; leave it out: {text}")
    # Refuse what contradicts the method.
    if (steps := args.gradient_accumulation_steps) not in (1, method.accumulate):
        problems.append(
            f"gradient_accumulation_steps is {steps}, and method {method.name!r} accumulates "
            f"{method.accumulate}; leave it out, or give a method that accumulates as many, "
            f"such as 'paci:accumulate={steps}'"
        )
    if method.free_running:
        problems.append(
            f"the stages of method {method.name!r} run freely, each with its own steps; use "
            "another method, or hocket.Trainer"
        )
    problems.raise_together("StageTrainer cannot train with these arguments")


def refuse_callbacks(callbacks: Sequence[TrainerCallback]) -> None:
    """Refuse callbacks for an event that never comes.

    Raises:
        OptionError: There is one.
    """
    for callback in callbacks:
        kind: Any = type(callback)
        if kind.on_pre_optimizer_step is not TrainerCallback.on_pre_optimizer_step:
            raise OptionError(
                f"{kind.__name__} acts at on_pre_optimizer_step, which never comes, as stages "
                "update within their ticks; use on_optimizer_step"
            )
