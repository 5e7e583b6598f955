"""Notes in the folder of a launch, which several processes write at the same time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hocket.distributed.folder.launch_folder import LaunchFolder, Note


def test_what_two_processes_have_seen_at_the_same_time_is_not_mixed(tmp_path, monkeypatch):
    """Both have opened a file, and the one with less to say writes last."""
    folder, texts = LaunchFolder(tmp_path), ["a long message", "a short one"]
    opened, written = threading.Barrier(2), threading.Event()

    def write(path, text):
        with open(path, "w") as file:
            opened.wait(60)
            if text == texts[1]:
                written.wait(60)
            file.write(text)
        written.set()

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(os, "getpid", threading.get_ident)  # a thread stands for a process
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: folder.write(Note.SYMPTOM, text=text), texts))
    assert folder.read(Note.SYMPTOM) in texts
