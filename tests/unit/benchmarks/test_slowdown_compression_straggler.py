"""Measurements of slow stages and of codecs."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compression import CompressionSettings, measure_compression
from benchmarks.harness.record import Record
from benchmarks.report.render import record_table, render
from benchmarks.slowdown import SlowdownSettings, measure_slowdown
from benchmarks.straggler import StragglerSettings, measure_straggler
from hocket.errors import OptionError

# Most work of so small a network is in its first layer.
pytestmark = pytest.mark.filterwarnings("ignore:stage 0, with layer:UserWarning")
TINY = {"data": "digits", "subset": None, "epochs": 1, "batch": 256, "seeds": (0,), "nice": 0}
SLOWDOWN = partial(
    SlowdownSettings, network="mlp:hidden=[8,8]", stages=3, slowed=1, buffers=(2,), **TINY
)
COMPRESSION = partial(CompressionSettings, network="mlp:hidden=[8,8]", stages=3, **TINY)


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory, in_this_process: None) -> Record:
    out = tmp_path_factory.mktemp("slowdown")
    measure_slowdown(SLOWDOWN(out=out, factors=(1, 2)))
    render(out)
    assert (out / "slowdown.svg").is_file()
    return Record.read(out)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory, in_this_process: None) -> Record:
    out = tmp_path_factory.mktemp("compression")
    measure_compression(COMPRESSION(out=out, codecs=("none", "bf16", "vq:width=8,codes=4")))
    render(out)
    assert (out / "compression.svg").is_file()
    return Record.read(out)


def test_every_slow_down_of_every_buffer_has_a_row(slowed: Record) -> None:
    assert [(row["factor"], row["buffer"], row["seed"]) for row in slowed.rows] == [
        (1, 2, 0),
        (2, 2, 0),
    ]
    for row in slowed.rows:
        assert 0 <= row["test_error"] <= 1
        assert row["passes"] >= 1
        assert 0 <= row["dropped"] <= 1
        assert 0 <= row["reused"] <= 1
        assert row["failure"] is None
    assert "| 2 |" in record_table(slowed)


def test_every_codec_has_a_row_with_what_it_sent(compressed: Record) -> None:
    plain, half, codes = compressed.rows
    # Two edges of 8 numbers, and the class of the sample at each.
    assert plain["sent_kib"] * 1024 == pytest.approx(2 * (8 * 4 + 8))
    assert half["sent_kib"] * 1024 == pytest.approx(2 * (8 * 2 + 8))
    assert plain["perplexity"] is None
    assert half["lost"] > 0
    assert 1 <= codes["perplexity"] <= 4
    assert plain["buffer_mib"] > half["buffer_mib"] > 0
    assert "| bf16 |" in record_table(compressed)


def test_a_stage_that_is_none_cannot_be_slow(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="slowed is 3; the 3 stages are 0 to 2"):
        SLOWDOWN(out=tmp_path, slowed=3)


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is nothing to train"):
        COMPRESSION(out=tmp_path, codecs=())


def test_a_slow_stage_slows_those_that_keep_step_and_not_those_that_run_freely(
    tmp_path: Path,
) -> None:
    settings = StragglerSettings(
        out=tmp_path, stages=3, slowed=1, factors=(3,), batches=48, turn_s=0.02
    )
    measure_straggler(settings)
    render(tmp_path)
    assert (tmp_path / "straggler.svg").is_file()
    lockstep, free = Record.read(tmp_path).rows
    slow = 1 / (3 * 0.02)
    assert max(lockstep["batches_per_s"]) < 1.5 * slow
    assert free["batches_per_s"][1] < 1.5 * slow
    assert free["batches_per_s"][2] > free["batches_per_s"][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": 0}, "batches is 0; give 1 or more"),
        ({"slowed": 6}, "slowed is 6; the 6 stages are 0 to 5"),
        ({"factors": (0.5,)}, "a factor is 0.5; give 1 or more"),
    ],
    ids=str,
)
def test_a_pace_that_cannot_be_measured_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        StragglerSettings(out=tmp_path, **options)
