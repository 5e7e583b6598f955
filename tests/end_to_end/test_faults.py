"""Every kind of fault at a stage and a tick: the documented guarantee holds.

`python -m benchmarks fault-injection` is the long form.
"""

import dataclasses
import re

import pytest

from benchmarks.faults import trial
from benchmarks.faults.draw import draw_jobs, possible_stages
from benchmarks.faults.expectations import EXPECTATIONS
from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob
from benchmarks.faults.trial import expected_digest, run_trial
from end_to_end.torchrun import run_under_torchrun
from hocket.errors import OptionError

pytestmark = pytest.mark.xdist_group("faults and checkpoints")


def faults(text):
    """Return the faults of a text such as ``kill stage 0 at tick 3; stop stage 1 at ...``."""
    found = re.findall(r"([\w ]+?) stage (\d+) at tick (\d+)(?:; )?", text)
    parsed = tuple(Fault(kind, int(stage), int(tick)) for kind, stage, tick in found)
    assert "; ".join(map(str, parsed)) == text
    return parsed


# Several faults of a job share its restarts. Stages run ahead of each other, and checkpoints
# are finished later, so ticks are far enough apart for the faults to happen in order.
JOBS = [
    FaultyJob("fdg", 3, faults(text))
    for text in (
        "kill stage 0 at tick 1; kill writing of stage 1 at tick 2; "
        "kill sealing of stage 0 at tick 4; kill stage 2 at tick 12",
        "double packet of stage 1 at tick 2; mislabel packet of stage 2 at tick 5; "
        "damage packet of stage 1 at tick 8; damage packet of stage 0 at tick 10",
        "stop stage 0 at tick 3; hold interpreter of stage 2 at tick 6; hang stage 1 at tick 9",
        "scan new ports of stage 1 at tick 0; pause stage 1 at tick 2; "
        "delay packet of stage 0 at tick 4; fill disk of stage 2 at tick 5; "
        "intrude at ports of stage 1 at tick 7; fill metrics of stage 2 at tick 8; "
        "close output of stage 0 at tick 11",
        "slow loader of stage 0 at tick 0; slow disk of stage 1 at tick 3; "
        "slow loader of stage 0 at tick 8; suspend job of stage 2 at tick 11",
        "stop start of stage 1 at tick 0; stop building of stage 2 at tick 0; "
        "intrude at new ports of stage 0 at tick 0; fill rendezvous of stage 1 at tick 4",
        "raise in stage 1 at tick 3; make NaN in stage 2 at tick 5; "
        "exhaust memory of stage 0 at tick 8; terminate stage 0 at tick 10",
        "lose rendezvous of stage 2 at tick 0; drop packet of stage 1 at tick 6; "
        "lose rendezvous of stage 0 at tick 9",
    )
]
OTHERS = [
    FaultyJob("dgl", 1, faults("kill stage 0 at tick 6")),
    FaultyJob("bp", 2, faults("drop packet of stage 0 at tick 6")),
    FaultyJob("ddg", 2, faults("terminate job of stage 1 at tick 6")),
]


@pytest.mark.parametrize("job", [*JOBS, *OTHERS], ids=lambda job: f"{job.method} {job.stages}")
def test_a_job_keeps_its_guarantee(job, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    outcome = run_trial(job, first)
    if outcome.unnamed_faults:
        # With time-outs this short, a healthy process may look hung on a busy machine.
        second.mkdir()
        outcome = run_trial(job, second)
    assert outcome.violations == [], outcome.outputs


def test_every_kind_of_fault_is_tried():
    jobs = [*JOBS, *OTHERS]
    assert {fault.kind for job in jobs for fault in job.faults} == EXPECTATIONS.keys()


def test_violations_are_detected(tmp_path, monkeypatch):
    """A fault that is too late, different weights, and an outcome without a guarantee."""
    late = FaultyJob("fdg", 2, faults("kill stage 1 at tick 6; kill stage 1 at tick 500"))
    monkeypatch.setattr(trial, "expected_digest", lambda *_: "another digest")
    outcome = run_trial(late, tmp_path)
    assert outcome.violations == [
        "kill stage 1 at tick 500 was not named",
        "1 of its 2 faults happened",
        "its launches ended with (137, 0)",
        "its final weights differ from those without faults",
    ]
    other = FaultyJob("fdg", 2, faults("raise in stage 1 at tick 6"))
    assert dataclasses.replace(outcome, job=other, leftovers=("a process",)).violations == [
        "raise in stage 1 at tick 6 was not named",
        "its launches ended with (137, 0)",
        "it was started or resumed 1 times instead of 2",
        "its final weights differ from those without faults",
        "a process was left",
    ]


# Under torchrun.

TRAININGS = """
import sys
from pathlib import Path

import torch

from benchmarks.faults.fault import Fault
from benchmarks.faults.job import FaultyJob, run_faulty_job
from hocket import Trainer
from hocket.distributed.folder.restart import torchrun_restart_count

job = FaultyJob("fdg", 2, (Fault("kill", 1, 6),))
folder, attempt = sys.argv[1], torchrun_restart_count()
batches = [(torch.ones(2, 2), torch.ones(2, dtype=torch.long))] * 3
for _ in range(2):
    torch.manual_seed(0)
    modules = [torch.nn.Linear(2, 2) for _ in range(2)]
    with Trainer(modules, method="fdg", optimizer=torch.optim.SGD) as trainer:
        trainer.fit(batches, epochs=1, progress=False)
        place = Path(folder, f"{trainer.process_name}-{attempt}")
    with place.open("a") as file:
        weights = [modules[0].weight.tolist(), modules[1].weight.tolist()]
        print(weights, file=file)
sys.exit(run_faulty_job(job, Path(folder), attempt, job.time_limits(job.faults)))
"""


def test_a_job_that_torchrun_restarts_resumes_from_its_last_checkpoint(tmp_path):
    """Before that, two trainings of each start give the same weights."""
    (tmp_path / "trainings.py").write_text(TRAININGS)
    words = "--max-restarts", "2", "trainings.py", str(tmp_path)
    code, err = run_under_torchrun(tmp_path, *words)
    assert code == 0, err
    digests = [(tmp_path / f"digest-{rank}").read_text() for rank in range(2)]
    assert digests == [expected_digest("fdg", 2)] * 2
    assert (tmp_path / "fault-0.json").exists()
    assert (tmp_path / "span-1-0.json").exists()
    trainings = [file.read_text().splitlines() for file in tmp_path.glob("stage?-?")]
    assert len(trainings) == 4
    assert len({row for rows in trainings for row in rows}) == 1, trainings
    assert [len(rows) for rows in trainings] == [2] * 4


# A thread of gloo that lets go of an operation late.
BUSY_AT_THE_END = """
import atexit, ctypes, os, threading, time
import torch

from hocket import Trainer

begun, done = threading.Event(), threading.Event()

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_test", 0, 0, 0)  # gives this thread that name
    begun.set()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        pass
    done.set()
    time.sleep(1000)

atexit.register(lambda: done.is_set() or os._exit(3))  # called after what Hocket does there
torch.manual_seed(0)
modules = [torch.nn.Linear(2, 2) for _ in range(2)]
with Trainer(modules, method="fdg", optimizer=torch.optim.SGD) as trainer:
    batch = torch.ones(2, 2), torch.ones(2, dtype=torch.long)
    trainer.fit([batch] * 3, epochs=1, progress=False)
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_process_ends_after_the_threads_of_gloo_have_let_go(tmp_path):
    (tmp_path / "busy.py").write_text(BUSY_AT_THE_END)
    code, err = run_under_torchrun(tmp_path, "busy.py")
    assert code == 0, err


# Drawing of faults.


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("kil", "unknown fault 'kil' .did you mean 'kill'"),
        ("stop start of", "'stop start of stage 1 at tick 2' .* it is a fault of the start"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(kind, said):
    with pytest.raises(OptionError, match=said):
        Fault(kind, 1, 2)


def test_draws_are_reproducible_and_kinds_take_turns():
    chosen = {"methods": ("dgl", "fdg"), "most_stages": 4}
    jobs = list(draw_jobs(seed=5, count=60, **chosen))
    assert jobs == list(draw_jobs(seed=5, count=60, **chosen))
    assert jobs != list(draw_jobs(seed=6, count=60, **chosen))
    assert {job.stages for job in jobs} == {1, 2, 3, 4}
    assert [job.faults[0].kind for job in jobs[: len(EXPECTATIONS)]] == list(EXPECTATIONS)
    for job in jobs:
        (fault,) = job.faults
        assert fault.stage in possible_stages(fault.kind, job.method, job.stages)
        assert job.stages > 1 or not EXPECTATIONS[fault.kind].needs_neighbour
