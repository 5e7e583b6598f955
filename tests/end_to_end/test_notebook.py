"""Notebooks: cells run again, interrupts, processes, runs as tables and reports."""

import os
import re
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

PAGE = (Path(__file__).parents[2] / "docs/notebooks.md").read_text()
TRAIN, SAVE, TABLE, REPORT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LAUNCH, RUNS = re.findall(r"```ipython\n(.*?)```", PAGE, re.DOTALL)
COUNT = """
import gc, os, time
gc.collect()
counts = []
for _ in range(50):  # the system forgets a thread after it has ended
    counts.append(len(os.listdir("/proc/self/task")))
    time.sleep(0.01)
min(counts), open(f"/proc/self/task/{os.getpid()}/children").read()
"""
PRESS = """
import signal

def press(event, stage):
    if (event.tick, event.action.stage, event.action.kind) == (60, 0, "F"):
        signal.raise_signal(signal.SIGINT)

trainer = hocket.Trainer(network, stages=2, optimizer=sgd, watchers=[press])
trainer.fit(digits.train, epochs=2)
"""
CONTINUE = """
(epoch,) = trainer.fit(digits.train, epochs=1)
epoch.updates, trainer.engine.tick_count
"""
SEND = """
from hocket.distributed.launching.launch import launch

def work():
    return 0

launch(work, processes=2)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a cell: its text, what it shows, and its errors."""
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=600,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    cells, programs = client.nb.cells, Path(sys.executable).parent

    def run(source):
        cells.append(nbformat.v4.new_code_cell(source))
        outputs = client.execute_cell(cells[-1], len(cells) - 1)["outputs"]
        text = "".join(each["text"] for each in outputs if "text" in each)
        errors = [(each["ename"], each["evalue"]) for each in outputs if "ename" in each]
        return text, [each["data"] for each in outputs if "data" in each], errors

    with client.setup_kernel(env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}):
        yield run


def test_a_cell_is_run_again_and_an_interrupted_trainer_goes_on(run):
    text, (bar,), errors = run(TRAIN)
    assert errors == []
    assert "epoch 2/2: training loss" in text
    assert "90/90" in bar["text/html"]
    # The same cell again leaves no thread and no process behind.
    _, before, _ = run(COUNT)
    assert run(TRAIN)[2] == []
    assert run(COUNT)[1] == before
    # After an interrupt the same trainer continues, and at last completes two batches.
    _, (bar,), errors = run(PRESS)
    assert errors == [("KeyboardInterrupt", "2")]
    assert "61/90" in bar["text/html"]
    assert run(CONTINUE)[1][-1]["text/plain"] == f"(45, {61 + 45 + 2})"


def test_other_processes_train_what_a_file_has_and_not_what_a_cell_has(run):
    ((name, told),) = run(SEND)[2]
    assert name == "OptionError"
    assert "%%writefile" in told
    assert run(f"%%writefile train.py\n{TRAIN}{SAVE}")[2] == []
    assert "epoch 2/2" in run(LAUNCH)[0]
    assert run("import hocket, torch\ntorch.load('network.pt')")[2] == []
    # Runs of the command are shown as a table, and as a report.
    run(RUNS.splitlines()[0])
    (table,) = run(TABLE)[1]
    assert "<td>" in table["text/html"]
    assert "fdg" in table["text/plain"]
    (report,) = run(REPORT)[1]
    assert report["text/html"].startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
