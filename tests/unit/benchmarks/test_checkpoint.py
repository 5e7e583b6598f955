"""The step times with checkpoints: each block pays for its own."""

import threading
import time

from benchmarks.checkpoint import CheckpointSettings, time_checkpoint_row
from benchmarks.harness import rounds
from hocket.checkpoint import writer


def test_no_checkpoint_is_written_during_the_block_after_its_own(tmp_path, monkeypatch):
    write, block, running = writer.write_file, rounds.time_block, []

    def write_slowly(*words):
        time.sleep(0.1)
        return write(*words)

    def note_threads(*words):
        running.extend(thread.name for thread in threading.enumerate())
        return block(*words)

    monkeypatch.setattr(writer, "write_file", write_slowly)
    monkeypatch.setattr(rounds, "time_block", note_threads)
    settings = CheckpointSettings(
        out=tmp_path, pairs=2, steps=2, network="mlp", shape=(64,), batch=8, channels_last=False
    )
    found = time_checkpoint_row(settings, resumable=True, every=2)
    assert found["checkpoints"] == 3
    assert "hocket-saver" not in running
