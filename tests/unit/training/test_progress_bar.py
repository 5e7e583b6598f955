"""What is shown of a training fits where it is shown."""

from unittest.mock import Mock

import pytest

from hocket.training.results import progress_bar as progress_bar_module
from hocket.training.results.metrics import EvaluationResult
from hocket.training.results.progress_bar import progress_bar


def shown(capsys, *, wanted):
    with progress_bar(2, 6, shown=wanted) as bar:
        bar.batch(lambda: "")
        bar.batch(lambda: "loss 1.500, lr 0.05")
        bar.evaluation(3, EvaluationResult(1.5, 0.25, 8))
        bar.epoch(0, 1.25, EvaluationResult(1.5, 0.125, 8))
        bar.epoch(1, 1.0)
    captured = capsys.readouterr()
    assert captured.out == "", "standard output is for results"
    return captured.err


def test_a_log_gets_a_line_per_epoch_unless_silence_was_asked_for(capsys):
    assert shown(capsys, wanted=True).splitlines() == [
        "update 3: test loss 1.5000, test error 25.00%",
        "epoch 1/2: training loss 1.2500, test error 12.50%",
        "epoch 2/2: training loss 1.0000",
    ]
    assert shown(capsys, wanted=False) == ""


def test_an_epoch_tells_its_test_loss_its_skipped_batches_and_the_stage_of_a_local_loss(capsys):
    with progress_bar(3, 6, shown=True) as bar:
        bar.epoch(0, 1.25, EvaluationResult(1.5, None, 8), skipped=1)
        bar.epoch(1, 1.0, EvaluationResult(1.25, None, 8), skipped=2)
        bar.epoch(2, 1.25, owner=" of stage 0")
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1/3: training loss 1.2500, test loss 1.5000, 1 batch skipped",
        "epoch 2/3: training loss 1.0000, test loss 1.2500, 2 batches skipped",
        "epoch 3/3: training loss 1.2500 of stage 0",
    ]


def test_a_terminal_gets_a_bar_with_the_epochs_above_it(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    monkeypatch.setenv("COLUMNS", "140")
    text = shown(capsys, wanted=True)
    assert "2/6" in text
    assert "loss 1.500, lr 0.05" in text
    assert "update 3: test loss 1.5000, test error 25.00%" in text
    assert "epoch 1/2: training loss 1.2500, test error 12.50%" in text


@pytest.mark.parametrize(("terminal", "asked"), [(False, 0), (True, 1)])
def test_a_loss_is_asked_for_only_where_it_is_shown(monkeypatch, terminal, asked):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setattr(progress_bar_module, "READ_EVERY_S", 3600)
    read = Mock(return_value="loss 1.500")
    with progress_bar(2, 6, shown=True) as bar:
        for _ in range(6):
            bar.batch(read)
    assert read.call_count == asked
