"""The folder of a run is new, belongs to one training at a time, and leads nowhere else."""

import os
import time

import pytest

from hocket.errors import RunFolderError
from hocket.runs.config import RunConfig
from hocket.runs.run_dir import LOCK, create_run_dir, lock_run_dir, require_no_links


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    names = [create_run_dir(RunConfig()).name for _ in range(3)]
    assert names == [f"fdg2-mlp-digits-now{end}" for end in ("", "-1", "-2")]


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path):
    run_dir = tmp_path / "mine"
    for _ in range(2):
        assert create_run_dir(RunConfig(run_dir=run_dir)) == run_dir
    (run_dir / "file").touch()
    for taken in (run_dir, run_dir / "file"):
        with pytest.raises(RunFolderError, match="exists already; name another"):
            create_run_dir(RunConfig(run_dir=taken))


def test_where_no_folder_can_be_made_there_is_an_error_and_no_endless_search(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(RunFolderError, match="cannot make the run folder 'runs/fdg2-"):
        create_run_dir(RunConfig())


def test_a_folder_is_locked_by_one_training_that_a_refusal_names(tmp_path):
    def lock_again():
        with lock_run_dir(tmp_path):
            raise AssertionError

    for _ in range(2):
        with lock_run_dir(tmp_path):
            words = rf"is in use by process {os.getpid()} on \S+; wait until it has ended"
            with pytest.raises(RunFolderError, match=words):
                lock_again()


def test_the_lock_of_a_stranger_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / LOCK).symlink_to("victim")
    with pytest.raises(RunFolderError, match=r"cannot write .*\.lock"), lock_run_dir(tmp_path):
        raise AssertionError
    assert (tmp_path / "victim").read_text() == "mine"


def test_links_pipes_and_devices_anywhere_in_a_folder_are_all_named(tmp_path):
    (tmp_path / "run/checkpoints/tick").mkdir(parents=True)
    (tmp_path / "run/metrics.jsonl").touch()
    require_no_links(tmp_path / "run")
    (tmp_path / "run/summary.json").symlink_to("nowhere")
    (tmp_path / "run/checkpoints/other").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "run/checkpoints/tick/stage0.pt")
    words = "'checkpoints/other', 'checkpoints/tick/stage0.pt', 'summary.json'; replace"
    with pytest.raises(RunFolderError, match=words):
        require_no_links(tmp_path / "run")
