"""A full disk ends no training, and a file of unknown origin changes nothing elsewhere."""

import errno
import json
import os
import shlex
import signal
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from hocket.runs import metrics_log, training_run
from hocket.runs.metrics_log import MetricsLog
from hocket.runs.run_dir import lock_run_dir
from hocket.timeline import trace_file

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "1", "--run-dir", "mine")
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def full(monkeypatch):
    """Return a function that lets the disk be full from the second row of metrics on."""

    def fill(*names):
        log_epoch = MetricsLog.log_epoch

        def log_and_fill(log, epoch):
            for module, name in names:
                monkeypatch.setattr(module, name, Mock(side_effect=NO_SPACE))
            log_epoch(log, epoch)

        monkeypatch.setattr(MetricsLog, "log_epoch", log_and_fill)

    return fill


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("summary", [True, False], ids=["with summary", "without"])
def test_on_a_full_disk_a_training_ends_well_if_weights_and_summary_still_fit(
    call, full, summary
):
    """Without its summary the run counts as unfinished."""
    lost = [] if summary else [(training_run, "write_json")]
    full((metrics_log, "_append_whole"), (trace_file, "write_text_atomically"), *lost)
    code, _, told = call("train", *QUICK, "--record-timeline")
    assert code == (0 if summary else 1)
    assert told.count("warning: ") == 2 + len(lost)
    for words in ("cannot write metrics", "the timeline"):
        assert words in told
    assert ("cannot write 'mine/summary.json'" in told) == bool(lost)
    assert {file.name for file in Path("mine").iterdir()} == {
        *(".lock", "environment.json", "metrics.jsonl", "network.pt", "plan.json", "run.json"),
        *([] if lost else ["summary.json"]),
    }


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("state", "exit_code"), [("finished", 1), ("interrupted", 130)])
def test_weights_that_do_not_fit_are_told_and_leave_no_part(
    call, full, monkeypatch, state, exit_code
):
    full((Path, "write_bytes"))
    fill = MetricsLog.log_epoch

    def fill_and_stop(log, epoch):
        fill(log, epoch)
        if state == "interrupted":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MetricsLog, "log_epoch", fill_and_stop)
    code, _, told = call("train", *QUICK)
    assert code == exit_code
    assert "warning: cannot write 'mine/network.pt': No space left on device; make" in told
    assert ("network.pt" in told.partition("interrupted: ")[2]) == (state == "interrupted")
    assert "are saved" not in told
    summary = json.loads(Path("mine/summary.json").read_text())
    assert summary["state"] == state
    assert "network.pt" in summary["message"]
    assert not list(Path("mine").glob("*.part"))


@pytest.mark.filterwarnings("default")
def test_weights_that_do_not_fit_are_saved_elsewhere(call, monkeypatch, tmp_path):
    write = Path.write_bytes

    def fail(path, content):
        if "rescue" not in str(path):
            raise NO_SPACE
        return write(path, content)

    (tmp_path / "rescue").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "rescue"))
    monkeypatch.setattr(Path, "write_bytes", fail)
    code, _, told = call("train", *QUICK[:-1], "m" * 255)
    assert code == 1
    place = told.split("the weights are in '")[1].split("' instead")[0]
    assert set(torch.load(place, weights_only=True)) >= {"head.0.weight", "head.0.bias"}


def test_a_run_folder_that_is_in_use_or_has_links_is_refused(call, refused):
    assert call("train", *QUICK, "--checkpoint-every", 10)[0] == 0
    before = Path("mine/run.json").stat().st_mtime_ns
    with lock_run_dir(Path("mine")):
        told = refused("train", "--resume", "mine", "--epochs", 2)
    assert f"'mine' is in use by process {os.getpid()} on " in told
    assert Path("mine/run.json").stat().st_mtime_ns == before
    # Metrics of processes that are no more stay up to the checkpoint.
    rows = [{"kind": "update", "tick": tick, "stage": 1} for tick in range(60)]
    file = Path("mine/metrics.stage1.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("train", "--resume", "mine", "--epochs", 2)[0] == 0
    kept = [json.loads(line)["tick"] for line in file.read_text().splitlines()]
    assert kept == list(range(25)), "the gradient of the last of 23 batches is 2 ticks late"
    # A result that cannot be removed is named.
    Path("mine/summary.json").unlink()
    Path("mine/summary.json").mkdir()
    assert "'mine/summary.json': " in call("train", "--resume", "mine", "--epochs", 3)[2]
    # Nothing is written through a link.
    names = ("metrics.jsonl", "run.json.part", "environment.json.part", "summary.json.part")
    Path("victim").write_text("mine")
    for name in names:
        Path("mine", name).unlink(missing_ok=True)
        Path("mine", name).symlink_to("../victim")
    told = refused("train", "--resume", "mine", "--epochs", 3)
    assert all(repr(name) in told for name in names)
    assert Path("victim").read_text() == "mine"


# Files of unknown origin.


@pytest.mark.parametrize("network", ["subprocess:getoutput:cmd=touch harm", "harm.py:network"])
@pytest.mark.parametrize("way", ["--config", "--resume"])
def test_code_that_a_file_names_is_run_only_if_the_user_names_it(refused, way, network):
    Path("harm.py").write_text("import os\nos.mkdir('harm')\n")
    Path("mine").mkdir()
    Path("mine/run.json").write_text(json.dumps({"network": network}))
    file = "mine" if way == "--resume" else "mine/run.json"
    told = refused("train", way, file)
    function = ":".join(network.split(":")[:2])
    assert f"it runs {function} for network" in told
    assert f"give --network {shlex.quote(network)} as well" in told


def test_a_home_folder_after_an_equals_sign_is_that_of_the_user(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    code, _, _ = call("train", *QUICK[:-2], "--run-dir=~/run")
    assert code == 0
    assert (tmp_path / "me/run/run.json").is_file()
