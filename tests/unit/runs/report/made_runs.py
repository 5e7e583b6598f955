"""Run folders as a training leaves them, made without a training."""

import json

from hocket.runs.config import RunConfig
from hocket.timeline import Span, Timeline

STAGE = {
    "layers": 1, "parameters": 20, "extra_parameters": 0, "delay": 2, "staleness": 1.0,
    "skipped": 0, "busy": 0.5, "communication": 0.1, "waiting": 0.2, "sent_mib": 1.5,
    "peak_mib": 300.0, "compression": None, "lost": None, "perplexity": None, "unsent": 0,
    "receive_stats": None,
}  # fmt: skip


def make_run(
    folder,
    epochs=3,
    error=0.5,
    state="finished",
    processes=1,
    averaged=None,
    skipped=0,
    **options,
):
    """Make the folder of a run, whose test error falls by a tenth in each epoch."""
    folder.mkdir(parents=True)
    config = RunConfig(**{"method": "fdg", "stages": 2, "epochs": 3, **options})
    config.write(folder / "run.json")
    environment = {
        "commit": "c" * 40, "versions": {"torch": "2.13"}, "machine": {"cores": 2},
        "processes": processes,
    }  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(environment))
    rows = [
        {"kind": "epoch", "number": n, "loss": 2.0 - n / 2, "seconds": 1.0 + error,
         "samples": 640, "staleness": [1.0, 0.0], "skipped": [skipped, 0],
         "updates": 10 * (n + 1),
         "evaluation": {"loss": 1.5 - n / 4, "error": error - n / 10, "samples": 100,
                        "exits": [], "ensemble": None}}
        for n in range(epochs)
    ]  # fmt: skip
    batches = range(0, 10 * epochs, 5)
    metrics = [
        row
        for batch in batches
        for stage in range(config.stages)
        for row in (
            {"kind": "backward", "tick": batch, "stage": stage, "batch": batch,
             "staleness": 1 - stage, "loss": 2.0 - batch / 50},
            {"kind": "comparison", "stage": stage, "batch": batch, "cosine": 0.9, "ratio": 1.1},
        )
    ]  # fmt: skip
    lines = [json.dumps(row) + "\n" for row in metrics + rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if state is not None:
        summary = {
            "state": state, "message": "", "epochs": rows, "stages": [STAGE] * config.stages,
            "cuts": ["hidden1"], "seconds": 3.0, "samples_per_s": 640.0, "averaged": averaged,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def make_timeline(file, batches=40):
    """Write a timeline of two stages in which a batch takes 10 ms."""
    spans = []
    for batch in range(batches):
        for stage in range(2):
            start_s = batch / 100 + stage / 500
            spans += [
                Span(stage, "F", batch, batch, start_s, start_s + 0.002),
                Span(stage, "B", batch, batch, start_s + 0.002, start_s + 0.006),
            ]
    Timeline(tuple(spans)).write(file)
    return file
