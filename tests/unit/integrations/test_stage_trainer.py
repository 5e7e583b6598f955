"""The facade for programs of transformers' `Trainer`: the same steps, in stages."""

import dataclasses
import importlib
import pickle
import sys
import warnings
from functools import partial

import pytest
import torch

import hocket
from contract.processes import in_processes
from contract.small import different, tensors_of
from hocket.errors import CutError, HocketError, OptionError

pytest.importorskip("accelerate", reason="transformers' TrainingArguments need it")
transformers = pytest.importorskip("transformers")

from hocket.integrations import training_arguments as table  # noqa: E402
from hocket.integrations.transformers import StageTrainer  # noqa: E402

WORDS, LENGTH = 32, 8


@pytest.fixture(autouse=True)
def quiet():
    """Let their library neither draw bars nor change the randomness of other tests."""
    transformers.logging.disable_progress_bar()
    with torch.random.fork_rng(), warnings.catch_warnings():
        # What their own code calls is deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        yield


def build_network(kind, config, **options):
    torch.manual_seed(0)
    return kind(config(vocab_size=WORDS, **options))


gpt2 = partial(
    build_network, transformers.GPT2LMHeadModel, transformers.GPT2Config, n_embd=16, n_layer=2,
    n_head=2, n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0,
    eos_token_id=0,
)  # fmt: skip
SMALL = {"hidden_size": 16, "num_attention_heads": 2}
bert = partial(
    build_network, transformers.BertForSequenceClassification, transformers.BertConfig, **SMALL,
    intermediate_size=32, num_hidden_layers=2, max_position_embeddings=LENGTH,
    hidden_dropout_prob=0, attention_probs_dropout_prob=0,
)  # fmt: skip
llama = partial(
    build_network, transformers.LlamaForCausalLM, transformers.LlamaConfig, **SMALL,
    intermediate_size=16, num_hidden_layers=4, num_key_value_heads=2,
)  # fmt: skip


def texts(count):
    """Samples of a causal model, some words of which are not predicted."""
    words = torch.randint(1, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = [
        row.clone().index_fill_(0, torch.arange(n % 4), -100) for n, row in enumerate(words)
    ]
    rows = zip(words, labels, strict=True)
    return [{"input_ids": row, "labels": label, "name": "unused"} for row, label in rows]


def classes(count):
    return [sample | {"labels": int(sample["input_ids"][0] % 2)} for sample in texts(count)]


class Recorder(transformers.TrainerCallback):
    """Keeps the names of all events, and what is logged."""

    def __init__(self):
        self.events, self.logs = [], []

    def on_log(self, args, state, control, logs, **more):
        self.events.append("log")
        self.logs.append((state.global_step, dict(logs)))

    def logged(self, name):
        return [(step, logs[name]) for step, logs in self.logs if name in logs]


def _recorded(event):
    return lambda self, args, state, control, **more: self.events.append((event, state.epoch))


for event in ("init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin",
              "step_end", "substep_end", "optimizer_step", "evaluate", "save", "predict",
              "prediction_step"):  # fmt: skip
    setattr(Recorder, f"on_{event}", _recorded(event))


def build_arguments(folder, **changes):
    """Return arguments of a short training."""
    short = {
        "output_dir": str(folder), "use_cpu": True, "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4, "num_train_epochs": 2, "logging_steps": 1,
        "learning_rate": 1e-2, "weight_decay": 0.1, "save_strategy": "no",
        "disable_tqdm": True, "warmup_steps": 2, "lr_scheduler_type": "cosine",
    }  # fmt: skip
    return transformers.TrainingArguments(**short | changes)


@pytest.fixture
def arguments(tmp_path):
    return partial(build_arguments, tmp_path)


def trained(args, model, data=texts, **options):
    """Train; return the trainer and what was recorded."""
    sets = {"train_dataset": data(26), "eval_dataset": data(9)}
    trainer = StageTrainer(model, args, callbacks=[recorder := Recorder()], **sets, **options)
    trainer.train()
    return trainer, recorder


def accuracy(prediction):
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": right.mean()}


# Arguments: each field has its effect, or is refused or warned of.


def test_each_field_is_in_the_table():
    known = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert table.FIELDS.keys() == known


@pytest.mark.parametrize(
    "name", [name for name, (effect, _) in table.FIELDS.items() if effect != table.EFFECT]
)
def test_a_field_without_effect_is_refused_or_warned_of_by_name(name, arguments):
    args, words = arguments(), f"{name} is 'changed'"
    setattr(args, name, "changed")
    is_warned = table.FIELDS[name][0] == table.WARNED
    expect, kind = (pytest.warns, UserWarning) if is_warned else (pytest.raises, OptionError)
    with expect(kind, match=words):
        StageTrainer(bert(), args)


@pytest.mark.parametrize(
    ("changes", "method", "words"),
    [
        ({"gradient_accumulation_steps": 8}, "paci:accumulate=4", "8.*'paci' accumulates 4"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "bp", "ReduceLROnPlateau follows"),
        ({"lr_scheduler_type": "greedy"}, "bp", "scheduler of stage 0 is a GreedyLR"),
        ({"optim": "galore_adamw"}, "bp", "install `galore_torch`"),
        ({}, "dgl-async", "'dgl-async' run freely"),
    ],
)
def test_values_that_stages_cannot_have_are_refused(changes, method, words, arguments):
    args = arguments(eval_strategy="epoch", **changes)
    with pytest.raises((ImportError, OptionError), match=words):
        trained(args, bert(), classes, method=method)


def test_other_arguments_and_callbacks_are_refused(arguments):
    class Early(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **more):
            """Never called."""

    args = transformers.Seq2SeqTrainingArguments(
        output_dir="unused", use_cpu=True, predict_with_generate=True
    )
    with pytest.raises(OptionError, match="predict_with_generate is True"):
        StageTrainer(bert(), args)
    early = StageTrainer(bert(), arguments(), train_dataset=classes(4), callbacks=[Early()])
    with pytest.raises(OptionError, match="Early acts at on_pre_optimizer_step"):
        early.train()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": "2"}, "stages is '2'"),
        ({"callbacks": transformers.EarlyStoppingCallback()}, "callbacks is .*; give a list"),
        ({"data_collator": transformers.DataCollatorWithPadding}, "data_collator is the class"),
    ],
    ids=["stages", "callbacks", "a class"],
)
def test_arguments_of_a_wrong_type_are_refused(options, words, arguments):
    with pytest.raises(OptionError, match=words):
        StageTrainer(bert(), arguments(), train_dataset=classes(4), **options)


def test_options_become_those_of_hocket(arguments):
    args = arguments(max_grad_norm=0, bf16=True, optim="sgd", ddp_timeout=90, seed=7)
    trainer = StageTrainer(bert(), args, train_dataset=classes(26), stages=1, method="bp")
    trainer.trainer.prepare({"input_ids": torch.ones(2, LENGTH, dtype=torch.long)})
    (stage,) = trainer.trainer.stages
    groups = stage.updater.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert isinstance(stage.updater.optimizer, torch.optim.SGD)
    setup = stage.core.setup
    assert (setup.clip, setup.precision, setup.seed) == ("none", "bf16", 7)
    assert setup.slow_timeout_s == 90
    assert not setup.resumable


# The same training as theirs.


@pytest.mark.parametrize(
    ("build", "data", "accumulate", "changes"),
    [
        (gpt2, texts, 1, {"eval_strategy": "epoch"}),
        (gpt2, texts, 3, {"eval_strategy": "epoch"}),
        (bert, classes, 1, {"eval_strategy": "epoch", "max_steps": 9, "data_seed": 7}),
        (bert, classes, 3, {"eval_strategy": "epoch"}),
        (bert, classes, 1, {"train_sampling_strategy": "sequential"}),
        (bert, classes, 1, {"train_sampling_strategy": "group_by_length"}),
        (bert, classes, 3, {"train_sampling_strategy": "batch_rebalance"}),
    ],
)
def test_one_stage_has_the_bits_of_their_trainer(build, data, accumulate, changes, arguments):
    args = arguments(gradient_accumulation_steps=accumulate, **changes)
    theirs = Recorder()
    other = transformers.Trainer(
        build(), args, train_dataset=data(26), eval_dataset=data(9), callbacks=[theirs]
    )
    output = other.train()
    method = f"bp:accumulate={accumulate}"
    trainer, ours = trained(args, build(), data, stages=1, method=method)
    assert not different(tensors_of(trainer.model), tensors_of(other.model))
    assert len(ours.logged("loss")) == output.global_step
    assert ours.logged("total_flos") == theirs.logged("total_flos")
    assert ours.logged("loss") == [
        (step, pytest.approx(loss, rel=1e-7)) for step, loss in theirs.logged("loss")
    ]
    assert ours.logged("learning_rate") == theirs.logged("learning_rate")
    losses = dict(theirs.logged("eval_loss"))
    assert dict(ours.logged("eval_loss")) == pytest.approx(losses, rel=1e-6)
    assert ours.events == theirs.events


def test_evaluations_and_predictions_are_theirs(arguments):
    args = arguments(label_names=["labels"])
    options = {"eval_dataset": classes(9), "compute_metrics": accuracy}
    other = transformers.Trainer(bert(), args, **options)
    trainer = StageTrainer(bert(), args, **options)
    wanted, found = other.evaluate(), trainer.evaluate()
    assert {"eval_loss", "eval_accuracy"} <= found.keys() <= wanted.keys()
    assert all(found[name] == wanted[name] for name in ("eval_loss", "eval_accuracy"))
    wanted, found = other.predict(classes(9)), trainer.predict(classes(9))
    assert (found.predictions == wanted.predictions).all()
    assert (found.label_ids == wanted.label_ids).all()
    assert found.metrics["test_accuracy"] == wanted.metrics["test_accuracy"]
    unlabelled = [{"input_ids": sample["input_ids"]} for sample in classes(9)]
    with pytest.raises(CutError, match="all batches the same form"):
        trainer.predict(unlabelled)
    found = StageTrainer(bert(), args).predict(unlabelled)
    assert (found.predictions == wanted.predictions).all()
    assert found.label_ids is None
    with pytest.raises(HocketError, match="a trainer cannot be copied or pickled"):
        pickle.dumps(trainer)


def test_stale_stages_make_all_steps_and_log_what_has_left(arguments):
    args = arguments(num_train_epochs=1)
    trainer, recorder = trained(args, bert(), classes, stages=3, method="ddg")
    assert [stage.updater.version for stage in trainer.trainer.stages] == [7, 7, 7]
    assert [step for step, _ in recorder.logged("loss")] == [1, 2, 3, 4, 5, 6, 7]
    assert trainer.state.log_history[-1]["train_loss"] > 0


def test_batches_may_come_from_an_iterable(arguments):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(classes(26))

    args = arguments(max_steps=9)
    trainer = StageTrainer(bert(), args, train_dataset=Stream(), method="bp")
    assert trainer.train().global_step == 9
    with pytest.raises(ValueError, match="max_steps"):
        StageTrainer(bert(), arguments(), train_dataset=Stream(), method="bp")
    with pytest.raises(HocketError, match="trained already"):
        trainer.train()


# Checkpoints.


@pytest.mark.parametrize(
    ("strategy", "method", "missing"),
    [
        ("steps", "paci:accumulate=2+predict", 0),
        ("epoch", "paci:accumulate=2+predict", 0),
        ("steps", "adl:accumulate=2", 1),  # a step that began before the checkpoint
    ],
)
def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(
    strategy, method, missing, tmp_path, arguments
):
    args = arguments(save_strategy=strategy, save_steps=2, save_total_limit=2)
    whole, recorder = trained(args, gpt2(), method=method)
    names = sorted(folder.name for folder in tmp_path.glob("checkpoint-*"))
    assert len(names) == 2
    options = {"train_dataset": texts(26), "method": method}
    again = StageTrainer(gpt2(), args, callbacks=[later := Recorder()], **options)
    again.train(str(tmp_path / names[0]))
    assert not different(tensors_of(whole.model), tensors_of(again.model))
    begun = int(names[0].rpartition("-")[2])
    wanted = [logged for logged in recorder.logged("loss") if logged[0] > begun]
    assert later.logged("loss") == wanted[missing:]
    read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / names[1])
    assert not different(tensors_of(read), tensors_of(whole.model))


def train_until_the_best(folder):
    """Stop at a step, as the metric no longer improves; return the steps and the best."""
    args = build_arguments(
        folder, eval_strategy="steps", eval_steps=2, save_strategy="best", learning_rate=0.0,
        load_best_model_at_end=True, metric_for_best_model="accuracy",
    )  # fmt: skip
    stop = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    trainer = StageTrainer(
        bert(), args, train_dataset=classes(26), eval_dataset=classes(9),
        compute_metrics=accuracy, callbacks=[stop], method="ddg",
    )  # fmt: skip
    steps, best = trainer.train().global_step, trainer.state.best_model_checkpoint
    saved = transformers.BertForSequenceClassification.from_pretrained(best)
    return steps, best, not different(tensors_of(saved), tensors_of(trainer.model))


def test_the_best_weights_are_loaded_and_callbacks_stop_at_a_step(tmp_path):
    wanted = (4, str(tmp_path / "checkpoint-2"), True)
    assert train_until_the_best(tmp_path) == wanted
    assert in_processes(train_until_the_best, tmp_path, processes=2) == [wanted, wanted]


def test_a_saved_model_is_read_and_none_is_pushed(tmp_path, arguments):
    trainer = StageTrainer(bert(), arguments())
    trainer.save_model(tmp_path / "saved")
    read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert not different(tensors_of(read), tensors_of(trainer.model))
    with pytest.raises(AttributeError, match="StageTrainer has no 'push_to_hub'"):
        trainer.push_to_hub()


def test_adapters_of_peft_are_trained_and_their_base_is_not(tmp_path, arguments):
    peft = pytest.importorskip("peft")
    wanted = gpt2().state_dict()
    adapters = peft.LoraConfig(
        r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    args = arguments(
        save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True, max_steps=4
    )
    trainer, recorder = trained(args, peft.get_peft_model(gpt2(), adapters), method="bp")
    assert recorder.logged("loss")[0][1] != recorder.logged("loss")[-1][1]
    assert (tmp_path / "checkpoint-4/adapter_model.safetensors").exists()
    kept = trainer.model.unload().state_dict()
    assert all(torch.equal(kept[name], value) for name, value in wanted.items())


# Cuts, and what is imported.


def test_cuts_are_between_the_layers_of_a_plan_of_the_model(arguments):
    def plan(model, stages):
        trainer = StageTrainer(model, arguments(), train_dataset=texts(8), stages=stages)
        return trainer.trainer.plan

    assert plan(llama(), 3).cuts == ("model.layers.1", "model.layers.2")
    assert plan(llama(), 2).cuts == ("model.layers.2",)
    assert plan(llama(), 6) is None, "counted at the first batch"
    assert plan(bert(), 2) is None
    own = hocket.Plan(("model.layers.3",))
    assert plan(llama(), own) == own


def test_a_missing_package_is_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "hocket.integrations.transformers")
    with pytest.raises(HocketError, match=r"pip install 'hocket\[transformers\]'.*$"):
        importlib.import_module("hocket.integrations.transformers")
