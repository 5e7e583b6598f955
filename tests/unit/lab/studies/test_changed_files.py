"""A run counts for the code that it has run."""

import json
import sys
from pathlib import Path

import pytest

from hocket.runs.config import RunConfig
from hocket_lab import Study, sweep
from hocket_lab.studies import child
from hocket_lab.studies.rows import DEFAULTS, Run, file_digests
from hocket_lab.studies.run_folder import read_result
from unit.lab.studies.in_process import pretend_runs, run_here

NETWORK = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with a network, in the working directory, where modules are found as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "watched_nets", raising=False)  # of another test
    Path("watched_nets.py").write_text(NETWORK)
    return Path("watched_nets.py")


def own_study(network, **options):
    base = {"network": network, "epochs": 1, "stages": 1}
    return Study(name="own", base=base, grid={"method": "bp"}, **options)


@pytest.mark.parametrize(
    "network", ["no_such_module:build", "watched_nets.no.such:build", "mlp"]
)
def test_a_network_without_a_file_has_no_digest(file, network):
    assert file_digests({"network": network}) == {}


def test_a_file_that_changes_during_a_sweep_breaks_nothing(file, monkeypatch, tmp_path):
    run_here(monkeypatch)

    def metrics(config):
        file.write_text(NETWORK + f"# after seed {config.seed}\n")
        return 1.0

    pretend_runs(monkeypatch, metrics)
    (row,) = sweep(own_study("watched_nets.py:build", seeds=[0, 1]), "out", progress=False).rows
    assert [run["state"] for run in row["runs"]] == ["finished", "finished"]


def test_a_run_whose_file_has_changed_since_it_was_named_is_not_run(file, monkeypatch):
    monkeypatch.setattr(child, "_end_with_parent", lambda: None)
    config = RunConfig(network="watched_nets.py:build", run_dir=Path("run"), **DEFAULTS)
    named = Run("own", config, None, 0).files
    Path("run").mkdir()
    file.write_text(NETWORK + "# changed\n")
    assert child.main([json.dumps(config.as_dict()), json.dumps(named)]) == 1
    result = read_result(Path("run"))
    assert result.state == "failed"
    assert "the file of its plan or of its own code has changed" in result.message
