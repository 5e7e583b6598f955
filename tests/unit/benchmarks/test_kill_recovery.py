"""A short measurement of the cost of a kill."""

from functools import partial

import pytest

from benchmarks import kill_recovery as module
from benchmarks.harness.record import Record
from benchmarks.kill_recovery import KilledTraining, KillRecoverySettings, measure_kill_recovery
from benchmarks.report.render import render
from hocket.distributed.launching.launch import launch
from hocket.errors import HocketError, PeerLostError

pytestmark = pytest.mark.filterwarnings("ignore:a process was killed by SIGKILL")
SETTINGS = partial(KillRecoverySettings, stages=2, epochs=1, every=4, seeds=(0,), victims=(1,))


def test_a_kill_costs_others_nothing_where_stages_run_freely(tmp_path):
    chosen = {"network": "mlp:hidden=[8,8,8]", "methods": ("dgl", "dgl-async")}
    measure_kill_recovery(SETTINGS(out=tmp_path, killed_at=12, **chosen))
    rows = Record.read(tmp_path).rows
    assert [row["victim"] for row in rows] == [None, 1] * 2
    for row in rows:
        free, killed = row["row"] == "dgl-async", row["victim"] is not None
        assert (row["turns_again"] > 0) == killed
        assert (row["others_again"] > 0) == (killed and not free)
        assert (row["away_s"] is not None) == killed
        assert free or row["packets_lost"] == row["packets_orphaned"] == 0
    # Those that keep step end as if nobody had been killed.
    assert len({row["test_error"] for row in rows[:2]}) == 1
    render(tmp_path)
    assert "| dgl-async | stage 1 |" in (tmp_path / "README.md").read_text()


def test_all_stages_begin_again_if_the_killed_one_has_no_checkpoint_yet(monkeypatch):
    codes = iter([PeerLostError.exit_code])
    monkeypatch.setattr(module, "launch", lambda *w, **o: next(codes, 0) or launch(*w, **o))
    with pytest.warns(match="a process was gone; starting the whole job again"):
        module._run_training(KilledTraining(SETTINGS(killed_at=12), "dgl-async", 0, victim=1))


def test_a_stage_that_was_not_killed_has_no_cost_of_zero(tmp_path):
    chosen = {"network": "mlp:hidden=[8,8]", "methods": ("dgl",)}
    with pytest.raises(HocketError, match="stage 1 was not killed: it learned from no more"):
        measure_kill_recovery(SETTINGS(out=tmp_path, killed_at=9999, **chosen))
