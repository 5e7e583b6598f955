"""A notebook trains again, goes on after an interrupt, launches processes and shows runs."""

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
import gc, os
gc.collect()
len(os.listdir("/proc/self/task")), open(f"/proc/self/task/{os.getpid()}/children").read()
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
LOAD = "network.load_state_dict(torch.load('network.pt'))"


class Notebook:
    """Cells that run one after the other in a kernel."""

    def __init__(self, folder):
        self.client = nbclient.NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=300,
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )

    def run(self, source):
        """Run a cell; return its text, what it displays and the name and text of its error."""
        cells = self.client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        outputs = self.client.execute_cell(cells[-1], len(cells) - 1)["outputs"]
        texts = [each["text"] for each in outputs if each["output_type"] == "stream"]
        shown = [each["data"] for each in outputs if "data" in each]
        errors = [(x["ename"], x["evalue"]) for x in outputs if x["output_type"] == "error"]
        return "".join(texts), shown, errors


def test_a_notebook_trains_again_and_after_an_interrupt_and_shows_its_runs(tmp_path):
    notebook, programs = Notebook(tmp_path), Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    with notebook.client.setup_kernel(env=environment):
        # One bar, and a line for each epoch.
        text, shown, errors = notebook.run(TRAIN)
        assert errors == []
        assert "epoch 2/2: training loss" in text
        (bar,) = shown
        assert "90/90" in bar["text/html"]
        # The same cell again leaves no thread and no process behind.
        _, (before,), _ = notebook.run(COUNT)
        assert notebook.run(TRAIN)[2] == []
        assert notebook.run(COUNT)[1] == [before]
        # After an interrupt the same trainer goes on.
        _, (bar,), errors = notebook.run(PRESS)
        assert errors == [("KeyboardInterrupt", "2")]
        assert "61/90" in bar["text/html"]
        ticks = 61 + 45 + 2  # the last two batches complete
        assert notebook.run(CONTINUE)[1][-1]["text/plain"] == f"(45, {ticks})"
        # Other processes train what a file has, and not what a cell has.
        ((name, told),) = notebook.run(SEND)[2]
        assert name == "OptionError"
        assert "%%writefile" in told
        assert notebook.run(f"%%writefile train.py\n{TRAIN}{SAVE}")[2] == []
        assert "epoch 2/2" in notebook.run(LAUNCH)[0]
        assert notebook.run(LOAD)[2] == []
        # Runs as a table, and their report.
        notebook.run(RUNS.splitlines()[0])
        (table,) = notebook.run(TABLE)[1]
        assert "<td>" in table["text/html"]
        assert "fdg" in table["text/plain"]
        (report,) = notebook.run(REPORT)[1]
        assert report["text/html"].startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
