"""Batches of a model of transformers, and what it returns: predictions and losses."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from transformers import PreTrainedTokenizerBase, trainer_pt_utils, trainer_utils
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.utils.generic import find_labels

from hocket.engine.event import Event
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage
from hocket.training.trainer import Trainer
from hocket.tree import Tree, map_tensors

ITEMS = "num_items_in_batch"
"""Input of models whose loss is a sum divided by the number of labels of a whole step."""


class ModelBatches:
    """Loads batches and splits them as a model of transformers takes them.

    Args:
        model: The model, of transformers or peft.
        args: The arguments, which may name the labels.
        collate: Makes a batch from a list of samples; as in their `Trainer` if not given.
        processing_class: Tokenizer or processor.

    Attributes:
        counts_items: True if the loss of a batch is its share of the loss of its step.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        args: transformers.TrainingArguments,
        collate: Callable[[list[Any]], Any] | None,
        processing_class: Any,
    ) -> None:
        self._args, self._order = args, torch.Generator()
        model = trainer_utils.unwrap_peft_model(model)
        parameters = inspect.signature(model.forward).parameters
        self._label_names: list[str] = args.label_names or find_labels(type(model))
        # Choose the collator.
        if collate is None and isinstance(processing_class, PreTrainedTokenizerBase):
            collate = transformers.DataCollatorWithPadding(processing_class)
        self._collate = collate or transformers.default_data_collator
        if args.remove_unused_columns:
            columns = [*parameters, "label", "label_ids", *self._label_names]
            self._collate = trainer_utils.RemoveColumnsCollator(self._collate, columns)
        # Find how the model's loss counts labels.
        takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        takes_items = getattr(model, "accepts_loss_kwargs", takes_more)
        self.counts_items: bool = takes_items and "labels" in self._label_names
        causal = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
        self._shifts = causal and not getattr(model.config, "is_encoder_decoder", False)

    def load(self, dataset: Any, **changes: Any) -> DataLoader[Any]:
        """Return a loader of the samples of a data set.

        Args:
            dataset: The data set.
            **changes: Options of the loader, instead of those for evaluations.
        """
        args = self._args
        options = {
            "batch_size": args.per_device_eval_batch_size,
            "collate_fn": self._collate,
            "drop_last": args.dataloader_drop_last,
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }
        return DataLoader(dataset, **options | changes)

    def load_to_train(self, dataset: Any) -> DataLoader[Any] | None:
        """Return a loader of training data; None without any."""
        if dataset is None:
            return None
        is_stream = isinstance(dataset, IterableDataset)
        in_order = is_stream or self._args.train_sampling_strategy == "sequential"
        sampler = None if in_order else RandomSampler(dataset, generator=self._order)
        size = self._args.per_device_train_batch_size
        return self.load(dataset, batch_size=size, sampler=sampler)

    def shuffle(self, dataset: Any, epoch: int) -> None:
        """Give the training data the order that an epoch of their `Trainer` has."""
        seed = self._args.seed if self._args.data_seed is None else self._args.data_seed
        self._order.manual_seed(seed + epoch)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)

    def groups(self, batches: Iterable[Mapping[str, Any]], size: int) -> Iterator[list[Any]]:
        """Yield the batches of each step, with the number of the step's labels in each.

        Args:
            batches: The batches.
            size: Number of batches in a step; the last one may have fewer.
        """
        iterator = iter(batches)
        while group := list(islice(iterator, size)):
            if self.counts_items and "labels" in group[0]:
                items = sum(self._counted(batch).ne(-100).sum() for batch in group)
                group = [{**batch, ITEMS: items} for batch in group]
            yield group

    def _counted(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the labels that the loss counts, (B, ...)."""
        labels = batch["labels"][..., 1:] if self._shifts else batch["labels"]
        counted: Tensor = batch.get("shift_labels", labels)
        return counted

    def split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tree]:
        """Return the inputs of a batch, labels among them, and its labels; None without any."""
        labels = [batch[name] for name in self._label_names if batch.get(name) is not None]
        return dict(batch), tuple(labels) if len(labels) > 1 else next(iter(labels), None)


class PredictionArrays:
    """Predictions and labels of an evaluation; a metric of `hocket.Trainer`.

    Args:
        model: The model, which names outputs that are no predictions.
        args: The arguments, which may keep batches apart.
        compute_metrics: Returns metrics by name for an `EvalPrediction`.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        args: transformers.TrainingArguments,
        compute_metrics: Callable[[Any], Mapping[str, float]] | None,
    ) -> None:
        self._concatenates = args.eval_do_concat_batches
        ignored = getattr(model.config, "keys_to_ignore_at_inference", ["past_key_values"])
        self._ignored = {"loss", *ignored}
        self._compute_metrics = compute_metrics
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        kind = trainer_pt_utils.EvalLoopContainer
        self._logits, self._labels = kind(self._concatenates), kind(self._concatenates)

    def update(self, output: Any, targets: Tree) -> None:
        """Add a batch.

        Args:
            output: Output of the model, with tensors (B, ...).
            targets: Its labels, (B, ...).
        """
        logits = tuple(value for name, value in output.items() if name not in self._ignored)
        self._logits.add(map_tensors(Tensor.cpu, logits[0] if len(logits) == 1 else logits))
        if targets is not None:
            self._labels.add(map_tensors(Tensor.cpu, targets))

    def arrays(self) -> tuple[Any, Any]:
        """Return the predictions and the labels of all batches as arrays."""
        return self._logits.get_arrays(), self._labels.get_arrays()

    def compute(self) -> Mapping[str, float]:
        """Return the metrics of all batches."""
        predictions, labels = self.arrays()
        if self._compute_metrics is None or labels is None:
            return {}
        return self._compute_metrics(trainer_utils.EvalPrediction(predictions, labels))


class StepLosses:
    """Losses of the steps of the last stage; a watcher of `hocket.Trainer`.

    Args:
        shares: True if the loss of a step is the sum over its batches, and not the mean.

    Attributes:
        mean: Mean over all steps that were read.
    """

    def __init__(self, *, shares: bool) -> None:
        self.mean = 0.0
        self._shares = shares
        self._batches: list[ActionReport] = []
        self._steps: list[list[ActionReport]] = []
        self._count, self._lr = 0, 0.0

    def __call__(self, event: Event, stage: Stage) -> None:
        """Keep the loss of a batch; the update of the stage ends a step."""
        kind, report = event.action.kind, event.report
        if stage.is_last and kind == "B" and report.has_loss:
            self._batches.append(report)
        elif stage.is_last and kind == "U" and self._batches:
            self._steps.append(self._batches)
            self._batches, self._lr = [], report.lr or 0.0

    def read(self, trainer: Trainer) -> dict[str, float]:
        """Return mean loss and learning rate of the new steps; nothing if there are none.

        All processes must call it.
        """
        sums = [sum(report.loss or 0.0 for report in step) for step in self._steps]
        sizes = [1 if self._shares else len(step) for step in self._steps]
        total = sum(loss / size for loss, size in zip(sums, sizes, strict=True))
        total, count, lr = trainer.gather([total, len(sums), self._lr])[-1]
        self._steps.clear()
        if not count:
            return {}
        self._count += count
        self.mean += (total - self.mean * count) / self._count
        return {"loss": total / count, "learning_rate": lr}
