"""The picture of each record that has one."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness.record import Record
from benchmarks.report.pictures_async import (
    compression_picture,
    kill_recovery_picture,
    slowdown_picture,
    straggler_picture,
)
from benchmarks.report.pictures_faults import endurance_picture, faults_picture
from benchmarks.report.pictures_networks import (
    plan_picture,
    window_picture,
)
from benchmarks.report.pictures_speed import (
    checkpoint_picture,
    gpu_picture,
    link_picture,
    overhead_picture,
    speed_picture,
    startup_picture,
)
from benchmarks.report.study_times import study_times_picture
from benchmarks.report.target import target_picture

PICTURES: Mapping[str, Callable[[Record, Path], Path]] = {
    "overhead": overhead_picture,
    "speed": speed_picture,
    "link": link_picture,
    "slowdown": slowdown_picture,
    "compression": compression_picture,
    "straggler": straggler_picture,
    "checkpoint": checkpoint_picture,
    "fault-injection": faults_picture,
    "plan": plan_picture,
    "window": window_picture,
    "kill-recovery": kill_recovery_picture,
    "startup": startup_picture,
    "endurance": endurance_picture,
    "gpu": gpu_picture,
    "study-times": study_times_picture,
    "target": target_picture,
    # Earlier names of measurements.
    "pace": straggler_picture,
    "faults": faults_picture,
    "rejoin": kill_recovery_picture,
}
