"""The figures of README.md and of the pages of results are those of the records."""

import json
import re
from pathlib import Path

import pytest

from hocket_lab.studies.report import format_spread

ROOT = Path(__file__).parents[3]
SLOW = "100Mbit,20ms"
TWO_STAGES = "gpt-characters-two-stages"
GPU = {
    "Wide ResNet-28-10": ("gpu-wrn28-10", "wrn28_10"),
    "GPT, 10 million parameters": ("gpu", "gpt"),
    "ResNet-20": ("gpu", "resnet20"),
    "perceptron": ("gpu", "perceptron"),
}
TIMED = {"one process, both cores": "bp-all", "DDP": "ddp", "one process, one core": "bp"}
LINKED = {
    "one machine, both cores": "bp-all",
    "one machine, one core": "bp",
    "DiLoCo, meeting every 64 updates": "diloco steps=64",
    "local SGD, every 64": "local-sgd steps=64",
    "DDP": "ddp",
    "1F1B in Hocket's engine": "hocket-1f1b accumulate=4",
}


def rows_of(record, **wanted):
    """Return the rows of a record with these values, by their labels."""
    rows = json.loads((ROOT / "records" / record / "record.json").read_text())["rows"]
    return {r["row"]: r for r in rows if all(r[name] == wanted[name] for name in wanted)}


def table_below(page, heads):
    """Return the cells of the rows of a table, by the first cell without its quotes."""
    lines = (ROOT / "docs" / page).read_text().partition(heads)[2].partition("\n\n")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:]
    ]
    return {first.strip("`"): others for first, *others in cells}


def label_of(shown):
    """Return the label of a method in records: its options after a space."""
    return shown.replace(":", " ").replace(",", " ")


def test_the_table_of_a_gpu():
    table = table_below("measured.md", "| network | bp | fdg, 2 stages | fdg, 4 |")
    assert table.keys() == GPU.keys()
    for shown, cells in table.items():
        record, network = GPU[shown]
        rows = rows_of(record, network=network)
        columns = ("bp", "fdg, 2 stages", "fdg, 4 stages", "ddg, 4 stages", "dgl, 2 stages")
        assert cells == [f"{rows[column]['ratio']:.2f}" for column in columns]


def test_the_table_of_seconds_on_two_cores():
    rows = {name.partition(",")[0]: row for name, row in rows_of("study-times").items()}
    table = table_below("results.md", "| row | final loss | updates to 1.90 |")
    assert len(table) == 7
    study = {name.partition(",")[0]: row for name, row in rows_of(TWO_STAGES).items()}
    for shown, (final, *cells) in table.items():
        row = rows[label := TIMED.get(shown) or label_of(shown)]
        if final != "as one core":
            assert final == format_spread(study[label]["final"]["test_loss"], 3)
        assert cells == [
            f"{row['updates']['mean']:,.0f}",
            f"{1000 * row['update_s']:.1f}",
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / rows['bp']['seconds']:.2f}",
        ]


def test_the_table_of_two_machines():
    table = table_below("results.md", "| row | first below 2.4, updates |")
    assert len(table) == 9
    records = [rows_of("target", link=SLOW), rows_of("target-local-sgd", link=SLOW)]
    for shown, (first, good, *seconds) in table.items():
        rows = [record.get(LINKED.get(shown) or label_of(shown)) for record in records]
        if first == "not in 150":
            names = [label_of(name) for name in re.findall("[a-z0-9-]+", shown)]
            assert all(records[0][n]["seconds"] is None for n in names if n in records[0])
            continue
        for row, cell in zip(rows, seconds, strict=True):
            if cell == "-":
                continue
            assert int(first) == row["updates"]
            above = [p["updates"] for p in row["curve"] if p["test_loss"] > 2.4]
            later = [p["updates"] for p in row["curve"] if p["updates"] > max(above)]
            assert int(good) == min(n for n in later if n % 10 == 0)
            times = [int(good) * row["update_s"], row["seconds"]]
            found = re.findall(r"\d+", cell)
            assert found == [f"{one:.0f}" for one in times[: len(found)]]


SPEED, EPYC, LARGER = rows_of("speed"), rows_of("speed-amd-epyc"), rows_of("speed-resnet56")
GPTS, LINK = rows_of("gpt-characters-2000"), rows_of("link", mbit_s=100)
IMAGES = rows_of("resnet8-cifar10-held-out") | rows_of("resnet8-cifar10-held-out-others")
PAIRS, MORE = rows_of(TWO_STAGES), rows_of("gpt-characters-rows")
CIFAR = rows_of("resnet20-cifar10")


def loss(rows, label, digits=2):
    return f"{rows[label]['final']['test_loss']['mean']:.{digits}f}"


def wrong(rows, label, digits=1):
    return f"{100 * rows[label]['final']['test_error']['mean']:.{digits}f}"


def above(rows, label, base, digits):
    """Return by how much the loss of a row is above that of another."""
    return f"{float(loss(rows, label, 9)) - float(loss(base, 'bp, stages 1', 9)):.{digits}f}"


def ms(label, key="ms_per_sample"):
    return f"{LINK[label][key]:.2f}"


CLAIMS = {
    "README.md": [
        f"ends at a loss of {loss(GPTS, 'paci accumulate=4+predict, stages 2')} with PACI",
        f"back-propagation ends at {loss(GPTS, 'bp, stages 1')}",
        f"FDG on four stages ends at {loss(GPTS, 'fdg+predict, stages 4')}",
        f"{wrong(IMAGES, 'fdg, stages 2')} % error on two stages, "
        f"{wrong(IMAGES, 'fdg, stages 4')} % on four, "
        f"{wrong(IMAGES, 'bp, stages 1')} % with back-propagation",
        f"FDG on two cores is {SPEED['fdg']['ratio']:.2f} times as fast as ",
        f"and {EPYC['fdg']['ratio']:.2f} times on an AMD EPYC",
        f"is {SPEED['ddp']['ratio']:.2f} and {EPYC['ddp']['ratio']:.2f} times as fast",
    ],
    "docs/results.md": [
        f"end {above(GPTS, 'paci accumulate=12+predict, stages 4', GPTS, 3)} above back-prop",
        f"end {above(PAIRS, 'adl accumulate=4+predict, stages 2', PAIRS, 3)} above it, and",
        f"staleness of one costs {above(MORE, 'fdg, stages 2', GPTS, 2)} on two stages",
        f"cost {above(MORE, 'dgl, stages 2', GPTS, 2)} on two stages and "
        f"{above(MORE, 'dgl, stages 4', GPTS, 2)} on four",
        f"`dgl` ends at {wrong(IMAGES, 'dgl, stages 2')} and "
        f"{wrong(IMAGES, 'dgl, stages 4')} %",
        f"{wrong(CIFAR, 'fdg, stages 2', 2)} % with `fdg`, {wrong(CIFAR, 'bp, stages 1', 2)} % "
        f"with back-propagation, {wrong(CIFAR, 'dgl, stages 2', 2)} % with `dgl`",
    ],
    "docs/measured.md": [
        f"is {SPEED['fdg']['ratio']:.2f} times as fast as one process on the Xeon, and "
        f"{EPYC['fdg']['ratio']:.2f} times on an AMD EPYC",
        f"({SPEED['fdg']['of_limit']:.2f}) and the speed of DDP "
        f"({SPEED['fdg']['ratio'] / SPEED['ddp']['ratio']:.2f})",
        f"{LARGER['fdg']['ratio']:.2f} times one process, "
        f"{LARGER['fdg']['ratio'] / LARGER['ddp']['ratio']:.2f} times DDP",
        f"ResNet-20** ({SPEED['bp-all']['ratio']:.2f}), and slower for ResNet-56 "
        f"({LARGER['bp-all']['ratio']:.2f})",
        f"{ms('fdg slack=1')}** ({ms('fdg slack=1', 'ms_min')} to "
        f"{ms('fdg slack=1', 'ms_max')}); one machine with one core takes {ms('bp')} "
        f"({ms('bp', 'ms_min')} to {ms('bp', 'ms_max')})",
    ],
}


@pytest.mark.parametrize(
    ("page", "claim"), [(page, claim) for page, claims in CLAIMS.items() for claim in claims]
)
def test_a_sentence_has_the_figures_of_its_record(page, claim):
    assert claim in " ".join((ROOT / page).read_text().split())
