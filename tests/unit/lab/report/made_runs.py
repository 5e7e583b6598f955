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


def make_study(folder, rates=(0.01, 0.1, 1.0)):
    """Make a study of two rows and two seeds, of which three runs diverged, and `fdg` with all.

    Of the losses 2 to 5 of `bp`, the runs at the best rate have 0.5 on all examples.
    """

    def run(rate, seed, loss, **more):
        return {"learning_rate": rate, "seed": seed, "hold_out": 0.1, "chosen": False,
                "state": "finished" if loss else "diverged", "folder": f"runs/{rate}-{seed}",
                "curve": [{"test_loss": 9.0}, {"test_loss": loss}], **more}  # fmt: skip

    make_run(folder / "runs/best", method="bp", optimizer=f"SGD:lr={rates[0]}")
    low, middle, high = rates
    best = run(low, 0, 0.5, hold_out=0.0, chosen=True, folder="runs/best")
    bp = [run(low, 0, 2.0), run(low, 1, 3.0), run(middle, 0, 3.0), run(middle, 1, 5.0),
          run(high, 0, 4.0), run(high, 1, None), best]  # fmt: skip
    means = [{"learning_rate": rate, "mean": mean, "diverged": 0}
             for rate, mean in zip(rates, (2.5, 4.0, None), strict=True)]  # fmt: skip
    lost = [{**each, "mean": None, "diverged": 1} for each in means[:2]]
    fdg = [run(low, 0, None), run(low, 1, 6.0), run(middle, 0, None)]
    rows = [{"row": "bp", "learning_rate": low, "runs": bp, "sweep": means},
            {"row": "fdg", "learning_rate": None, "runs": fdg, "sweep": lost}]  # fmt: skip
    settings = {"name": "a <study>", "select": "test_loss"}
    (folder / "record.json").write_text(json.dumps({"settings": settings, "rows": rows}))
    return folder


def record_timeline(folder, batches=40):
    """Write the timeline of a run of two stages in which a batch takes 10 ms."""
    spans = []
    for batch in range(batches):
        for stage in range(2):
            start_s = batch / 100 + stage / 500
            spans += [
                Span(stage, "F", batch, batch, start_s, start_s + 0.002),
                Span(stage, "B", batch, batch, start_s + 0.002, start_s + 0.006),
            ]
    Timeline(tuple(spans)).write(folder / "timeline.json")
    return folder
