"""Process of a run of a study, or of several; they stop with checkpoints if the sweep ends."""

import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import torch

from hocket.distributed.launching.deferred_compiler import defer_compiler
from hocket.errors import HocketError, NonFiniteError, RunFolderError
from hocket.runs.config import RunConfig, parse_config
from hocket.runs.read_folder import METRICS_FILE, metric_rows
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.start import train_in_process
from hocket.runs.summary import Summary
from hocket.training.fit.interrupt import Interrupt, before_batch, stop_signals
from hocket_lab.studies.rows import file_digests
from hocket_lab.studies.run_folder import OUTPUT, RunResult, write_result

LOCK_TIMEOUT_S = 60.0
"""Seconds that the process of a killed sweep may take to leave its run folder."""
RETRY_S = 0.2


def main(words: Sequence[str]) -> int:
    """Train in the folder of a run, from its last checkpoint if there is any.

    Args:
        words: The configuration, and the digests of the files that it was named for, as JSON;
            nothing to train all runs in turns whose words are lines of standard input.

    Returns:
        The exit code.
    """
    defer_compiler()
    interrupt = Interrupt(stop_signals())
    threads: list[threading.Thread] = []
    threading.Thread(target=_listen, args=(Turns(interrupt), threads), daemon=True).start()
    if words:
        return _train(words)
    with interrupt:
        while not interrupt.asked or any(thread.is_alive() for thread in threads):
            time.sleep(RETRY_S)
    return 128 + interrupt.asked


def _train(words: Sequence[str]) -> int:
    """Train a run, leave its result in its folder, and return the exit code."""
    config = parse_config(json.loads(words[0]), "the configuration of a run")
    assert config.run_dir is not None, "the pool names the folder of each run"
    _wait_for_lock(config.run_dir)
    if json.loads(words[1]) != file_digests(vars(config)):
        reason = (
            "the file of its plan or of its own code has changed since the sweep began; call "
            "the sweep again"
        )
        return report(config, RunFolderError(reason))
    try:
        return train_in_process(config, True, report)
    except (Exception, SystemExit) as error:  # such as one of the user's network
        traceback.print_exc()
        write_result(config.run_dir, RunResult("failed", f"{type(error).__name__}: {error}"))
        return 1


class Turns:
    """Turns of threads, one of which runs at a time, while a GPU works on a stream of each."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._tickets = itertools.count()
        self._turn = 0
        self._changed = threading.Condition()
        self._output = sys.stdout, sys.stderr

    def train(self, words: Sequence[str]) -> None:
        """Train a run; the others have their turns before each of its batches is read."""
        values = json.loads(words[0])
        device, log = values["device"], Path(values["run_dir"], OUTPUT)

        def next_turn() -> int:
            with self._changed:  # so that all take turns in the same order
                self._give()
                self._take(output, states)
            return self._interrupt.asked

        before_batch.set(next_turn)
        try:
            on_gpu = device.startswith("cuda") and torch.cuda.is_available()
            stream = torch.cuda.Stream(device) if on_gpu else None
            # A replayed graph reads seeds where the generator kept them at its capture.
            states = [generator.clone_state() for generator in torch.cuda.default_generators]
            with open(log, "a", buffering=1) as output, torch.cuda.stream(stream):
                self._take(output, states)
                try:
                    _train(words)
                    gc.collect()  # CUDA graphs, which must not go while another run captures
                finally:
                    self._give()
            if stream is not None:
                stream.synchronize()  # raises if the GPU serves this process no more
        except BaseException:  # for all runs: the sweep waits for a result, or for our end
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    def _take(self, output: TextIO, states: Sequence[torch.Generator]) -> None:
        """Wait for a turn, and take over what exists once in a process."""
        with self._changed:
            ticket = next(self._tickets)
            self._changed.wait_for(lambda: self._turn == ticket)
        sys.stdout = sys.stderr = output
        for generator, state in zip(torch.cuda.default_generators, states, strict=True):
            generator.graphsafe_set_state(state)

    def _give(self) -> None:
        sys.stdout, sys.stderr = self._output
        with self._changed:
            self._turn += 1
            self._changed.notify_all()


def report(config: RunConfig, result: Summary | HocketError) -> int:
    """Write the result of a training into its folder, and return the exit code.

    A training that was stopped has none: it goes on later.
    """
    assert config.run_dir is not None, "the pool names the folder of each run"
    if isinstance(result, Summary):
        if result.state == "finished":
            write_result(config.run_dir, _finished(config.run_dir, result))
            return 0
        return 128 + result.signal
    print(f"error: {result}", file=sys.stderr)
    diverged = isinstance(result, NonFiniteError)
    write_result(config.run_dir, RunResult("diverged" if diverged else "failed", str(result)))
    return 1


def _finished(run_dir: Path, summary: Summary) -> RunResult:
    """Return the result of a training that has finished, which failed without its metrics."""
    written = sum(1 for _ in metric_rows(run_dir / METRICS_FILE, "epoch"))
    if written >= len(summary.epochs):
        return RunResult("finished", summary.message)
    return RunResult(
        "failed",
        f"its metrics have {written} of {len(summary.epochs)} epochs, as the others could not "
        "be written; remove its folder to run it again",
    )


def _listen(turns: Turns, threads: list[threading.Thread]) -> None:
    """Train what the sweep writes to standard input, and end this process when that ends."""
    with open(0, closefd=False) as lines:
        for line in lines:
            words = json.loads(line)
            threads.append(threading.Thread(target=turns.train, args=(words,), daemon=True))
            threads[-1].start()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_lock(run_dir: Path) -> None:
    """Wait until no process of an earlier sweep trains in the folder any more."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with lock_run_dir(run_dir):
                return
        except RunFolderError:
            time.sleep(RETRY_S)
