"""Figures of README.md and of the pages of results, by a few words of their sentences.

A number comes from a record or from the code, and is compared as precisely as it is printed. A
tuple has numbers that print the same. A text is a setting, a goal or a published figure.
"""

import json
import math
import subprocess
from collections import defaultdict
from functools import cache, partial
from pathlib import Path
from statistics import median

from benchmarks.harness.updates_to_target import points, stays_below
from contract.library_networks import CASES
from hocket.methods import METHODS, parse_method
from hocket.remedies import REMEDIES

ROOT = Path(__file__).parents[3]


@cache
def read(record):
    return json.loads((ROOT / "records" / record / "record.json").read_text())


def rows_of(record, **wanted):
    """Return the rows of a record with these values, by their labels."""
    rows = [{"forecast": False} | row for row in read(record)["rows"]]
    wanted = {"forecast": False} | wanted
    return {r["row"]: r for r in rows if all(r[name] == wanted[name] for name in wanted)}


def column(record, key="ratio", **wanted):
    """Return a value of each row of a record that has it, by the row's label."""
    rows = rows_of(record, **wanted).items()
    return {label: row[key] for label, row in rows if row.get(key) is not None}


def limits(record, *labels, name="ratio", **wanted):
    rows, ends = rows_of(record, **wanted), (f"{name}_min", f"{name}_max")
    return [rows[label][end] for label in labels for end in ends]


def earlier(commit, record, key="ratio", **wanted):
    """Return a value of rows of a record at a commit; no number is in it if git lacks that."""
    command = ["git", "show", f"{commit}:records/{record}/record.json"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if shown.returncode:
        return defaultdict(lambda: math.nan)
    rows = [r for r in json.loads(shown.stdout)["rows"] if wanted.items() <= r.items()]
    return {r["row"]: r[key] for r in rows if key in r and "forecast" not in r}


def finals(record, metric, factor=1):
    """Return the mean of the seeds at the end of a study, by the row's label."""
    ends = column(record, "final").items()
    return {label: factor * end[metric]["mean"] for label, end in ends}


def lateness(method, stages=6):
    """Return the mean updates of the first stage between forward and backward of a batch."""
    return parse_method(method).steady.staleness(0, stages)


def pick(values, *labels):
    return [values[label] for label in labels]


def above(values, base):
    return {label: value - base for label, value in values.items()}


def shares(values, base):
    return {label: value / values[base] for label, value in values.items()}


def span(values):
    return [min(values), max(values)]


def to_the_loss(record, link):
    """Return seconds to the loss over a link, as shares of those on one core.

    Rows of one machine use no link, and have the median over all links.
    """
    over = [column(record, "seconds", link=x) for x in read(record)["settings"]["links"]]
    alone = {label: median(x[label] for x in over) for label in ("bp", "bp-all")}
    return shares(column(record, "seconds", link=link) | alone, "bp")


def best_pipeline(ratios):
    """Return how many times as fast as the fastest pipeline `fdg` is."""
    return ratios["fdg"] / max(ratios[label] for label in ratios if "microbatches" in label)


# What is learned: losses and errors in percent, by the labels of rows.
BP, FDG_4, DGL = "bp, stages 1", "fdg+predict, stages 4", ("dgl, stages 2", "dgl, stages 4")
ADL_4, PACI_4 = (f"{name} accumulate=4+predict, stages 2" for name in ("adl", "paci"))
PACI_44 = "paci accumulate=4+predict, stages 4"
ADL_12, PACI_12 = (f"{name} accumulate=12+predict, stages 4" for name in ("adl", "paci"))
GPTS = finals("gpt-characters-2000", "test_loss")
COST = above(GPTS | finals("gpt-characters-rows", "test_loss"), GPTS[BP])
LITTLE = span([loss for label, loss in GPTS.items() if label.startswith(("paci", "adl"))])
PAIRS = finals("gpt-characters-two-stages", "test_loss")
PAIR_ENDS = column("gpt-characters-two-stages", "final")
PAIR_COST = above(PAIRS, PAIRS[BP])
SPREADS = [column("gpt-characters-2000", "final")[BP], PAIR_ENDS[BP]]
BRIEF = finals("gpt-characters-500", "test_loss")
GAINS = [
    BRIEF[f"{x}, stages 4, optimizer AdamW"] - BRIEF[f"{x}+predict, stages 4, optimizer AdamW"]
    for x in ("ddg", "fdg", "adl accumulate=4")
]
PUBLISHED = finals("gpt-characters-published", "test_loss")
COSINES = column("gpt-characters-rows", "gradient_error")
SMALLEST = [min(stage["cosine"] for stage in COSINES[label]) for label in DGL]
IMAGES = finals("resnet8-cifar10-held-out", "test_error", 100)
IMAGES |= finals("resnet8-cifar10-held-out-others", "test_error", 100)
CIFAR = finals("resnet20-cifar10", "test_error", 100)
PRECISE = column("resnet20-precision", "final")["precision bf16"]["test_error"]
POINTS = above(IMAGES, IMAGES[BP])
STALE = [label for label in IMAGES if label != BP and not label.startswith("dgl")]
ON_TWO = max(POINTS[x] for x in STALE if x.endswith("2") and not x.startswith("paci"))
ON_FOUR = span([POINTS[label] for label in STALE if label.endswith("4")])
IMAGE_ENDS = column("resnet8-cifar10-held-out", "final")

# Seconds to a loss, as shares of those on one core.
FREE, FAR = "none", "100Mbit,20ms"
TIME, FAR_TIME = (to_the_loss("target", link) for link in (FREE, FAR))
XEON_TIME = to_the_loss("target-xeon", FAR)
LARGE_ENDS, PEAKS_MIB = (column("target", x, link=FAR) for x in ("final_loss", "peak_mib"))
FORECAST = partial(column, "target", "seconds", forecast=True)
XEON_SIX = column("target-xeon", "seconds", link=FAR, forecast=True, machines=6)
SIX_TIME = shares(FORECAST(link=FAR, machines=1) | FORECAST(link=FAR, machines=6), "bp")
CHECKED = [
    row["update_s"] / timed[label]["update_s"]
    for link in read("target")["settings"]["links"]
    for timed in [rows_of("target", link=link)]
    for label, row in rows_of("target", link=link, forecast=True, machines=2).items()
    if label in timed
]
SIX = finals("target/trainings/6-machines/methods", "test_loss")
ADL, PACI_16 = "adl accumulate=4+predict", "paci accumulate=16+predict"
BEST_ADL, FINE_ADL = (
    f"adl accumulate={count} order=forward-first codec=int8+predict" for count in (8, 16)
)
# Of a second seed without times: updates, and by how much it then takes longer.
SEEDS = read("target/trainings/2-machines/methods")["rows"]
SECOND = {row["row"]: row["runs"][0]["curve"] for row in SEEDS}
ADL_SEED, FINE_SEED = (
    SECOND[f"adl accumulate={count},order=forward-first+predict, stages 2"] for count in (8, 16)
)
NEEDED = [stays_below(points(curve), 1.7) for curve in (ADL_SEED, SECOND[BP])]
FIRST_NEEDED = column("target", "updates", link=FAR)
LONGER = NEEDED[0] / NEEDED[1] / (FIRST_NEEDED[BEST_ADL] / FIRST_NEEDED["bp"])
FINE_NEEDED = stays_below(points(FINE_SEED), 1.7)
FINE_LONGER = FINE_NEEDED / NEEDED[1] / (FIRST_NEEDED[FINE_ADL] / FIRST_NEEDED["bp"])
FINE_ENDS = LARGE_ENDS[FINE_ADL], FINE_SEED[-1]["test_loss"]
SECOND_ABOVE = ADL_SEED[-1]["test_loss"] - SECOND[BP][-1]["test_loss"]
SIX_ADL = "adl accumulate=16,order=forward-first+predict"
SIX_END = SIX[SIX_ADL] - LARGE_ENDS["bp"]
LOCAL, DILOCO = "local-sgd every=16", "diloco every=16"
WAITS, BLOCKS = "hocket-gpipe accumulate=8", "1f1b microbatches=4"
OTHERS = "bp-all", LOCAL, "ddp"
LINKED = BEST_ADL, LOCAL, ADL, WAITS, BLOCKS, "ddp"
OF_PIPELINE = FAR_TIME[BEST_ADL] / FAR_TIME[WAITS]
OF_MEMORY = shares({label: max(peaks) for label, peaks in PEAKS_MIB.items()}, BEST_ADL)

# Samples per second of two processes, and times of steps, as multiples of a plain loop.
SPEED, EPYC, LARGER = column("speed"), column("speed-amd-epyc"), column("speed-resnet56")
FDG = [rows_of(name)["fdg"] for name in ("speed", "speed-amd-epyc", "speed-resnet56")]
TUNED, RANGES = column("speed-schedules"), limits("speed-amd-epyc", "fdg", "ddp")
ZEN4, ZEN4_FDG = column("speed-amd-epyc-zen4"), rows_of("speed-amd-epyc-zen4")["fdg"]
ALL_SPEEDS = [SPEED, EPYC, ZEN4, LARGER, TUNED, column("speed-resnet56-schedules")]
FDG_SPEEDS = [ratios["fdg"] for ratios in ALL_SPEEDS]
OF_DDP = [ratios["fdg"] / ratios["ddp"] for ratios in ALL_SPEEDS]
BEST = [best_pipeline(column(name)) for name in ("speed-schedules", "speed-resnet56-schedules")]
FIRST_SPEEDS = [earlier("e128f00", name) for name in ("speed", "speed-resnet56")]
BY_HAND = [ratios["fdg"] / ratios["fdg-by-hand"] for ratios in FIRST_SPEEDS]
DRAWN = ("independent", "ddp", "fdg", "1f1b microbatches=8")
FAST_LINK, LINK = (column("link", "ms_per_sample", mbit_s=rate) for rate in (1000, 100))
MAPS = column("link-vq", "ms_per_sample", mbit_s=10)
VQ = [x["ms_per_sample"] for x in read("link-vq")["rows"] if x["row"] == "dgl codec=vq"]
STAGED = ("fdg, 2 stages", "fdg, 4 stages", "ddg, 4 stages", "dgl, 2 stages")
WIDE, COMPILED_GPT = column("gpu-wrn28-10"), column("gpu-compiled", network="gpt")
GPT, SMALL, FLAT = (column("gpu", network=name) for name in ("gpt", "resnet20", "perceptron"))
TICKS = column("gpu", "stage_tick_ms", network="resnet20")
VARIED = [r["ratio_max"] / r["ratio_min"] for r in read("gpu")["rows"]]
STEPS, COMPILED = column("overhead"), column("overhead-compiled")
GOAL, FIRST_STEPS = column("overhead", "goal"), earlier("e128f00", "overhead")
HELD, SHORT = column("overhead", "allocated_mib"), column("overhead", "above_ms")
AGAIN = [x for x, how in column("overhead", "linearize").items() if how == "recompute"]
LEAST_MIB, MOST_MIB = (
    {label: sum(mib) for label, mib in column("memory", "measured", stages=stages).items()}
    for stages in (2, 6)
)
VERSIONS = read("versions")["rows"]
TORCH, PYTHON = ([".".join(r[n].split(".")[:2]) for r in VERSIONS] for n in ("torch", "python"))

EXPECTED = {
    "of its gradients": [GPTS[BP], *LITTLE, "half", GPTS["ddg+predict, stages 4"], GPTS[FDG_4]]
}
README = EXPECTED | {
    "remedies for stale gradients": [len(METHODS), len(REMEDIES)],
    "unmodified models": [len({case.name for case in CASES if not case.refused})],
    "costs a GPT little": ["half", GPTS[PACI_12], GPTS[ADL_12], GPTS[BP]],
    "costs it much": [GPTS[FDG_4], *pick(IMAGES, "fdg, stages 4", "fdg+predict, stages 4", BP)],
    "on two cores is": [SPEED["fdg"], EPYC["fdg"]],
    "times as fast, one process": [x[row] for row in ("ddp", "bp-all") for x in (SPEED, EPYC)],
    "A larger GPT reaches": [
        *("1.7", FAR_TIME[BEST_ADL], LONGER * FAR_TIME[BEST_ADL], XEON_TIME[BEST_ADL]),
        LARGE_ENDS[BEST_ADL] - LARGE_ENDS["bp"],
    ],
    "Both cores take": [
        *(times[label] for label in OTHERS for times in (FAR_TIME, XEON_TIME)),
        FAR_TIME[WAITS],
    ],
    "Forecast for six": [SIX_TIME[FINE_ADL], SIX_END, SIX_TIME["gpipe"]],
}
RESULTS = EXPECTED | {
    "| Characters |": ["half", *(x - GPTS[BP] for x in LITTLE), COST[FDG_4]],
    "| Images |": [ON_TWO, *ON_FOUR, *pick(POINTS, *DGL)],
    "Four busy stages end": [COST[PACI_12], "0.03"],
    "two rows end": [(PAIR_COST[ADL_4], COST["adl accumulate=12, stages 2"]), "0.01"],
    "in two studies": [GPTS[PACI_4], PAIRS[PACI_4]],
    "Seeds differ by": [tuple(end["test_loss"]["deviation"] for end in SPREADS)],
    "staleness of one costs": [COST["fdg, stages 2"]],
    "not stale, but point": [*pick(COST, *DGL), *SMALLEST],
    "Prediction lowers": [tuple(GAINS), "500"],
    "With the published rate": [PUBLISHED[BP], "1.88"],
    "On two stages stale": [ON_TWO, POINTS[PACI_4], "0.5"],
    "On four stages they cost": [*ON_FOUR, POINTS["fdg, stages 4"], POINTS[PACI_44]],
    "order of the others": [100 * x for x in IMAGE_ENDS[FDG_4]["test_error"]["values"]],
    "points on two stages and": [*pick(POINTS, *DGL), *pick(IMAGES, *DGL)],
    "| Two machines |": ["100", FAR_TIME[BEST_ADL], LONGER * FAR_TIME[BEST_ADL], "0.58"],
    "train a GPT of": [read("target")["settings"]["parameters"] / 1e6, "1.7", "1,000", "64"],
    "Seconds to the loss, one": [
        *("1", "100", "20", TIME["bp-all"]),
        *(times[label] for label in LINKED for times in (TIME, FAR_TIME)),
    ],
    "ADL takes": [FAR_TIME[BEST_ADL], "0.58", XEON_TIME[BEST_ADL], FAR_TIME["bp-all"]],
    "A second seed needs": [*NEEDED, LONGER * FAR_TIME[BEST_ADL], LONGER * OF_PIPELINE],
    "It ends 0": [SECOND_ABOVE],
    "of the best pipeline": [OF_PIPELINE, "0.85"],
    "Memory is": [1 / OF_MEMORY["bp"], 1 / OF_MEMORY[DILOCO], "0.60"],
    "It ends at": [*pick(LARGE_ENDS, BEST_ADL, "dgl", "bp"), "0.01"],
    "(second seed 1": [*FINE_ENDS, FAR_TIME[FINE_ADL], FINE_LONGER * FAR_TIME[FINE_ADL]],
    "updates stale, ends": [
        *(lateness("paci:accumulate=16"), SIX[PACI_16]),
        *(lateness("adl:accumulate=16,order=forward-first"), SIX[SIX_ADL], SIX["dgl"]),
    ],
    "With four gradients an": [
        *(lateness("paci:accumulate=4"), SIX["paci accumulate=4+predict"]),
        *(lateness("adl:accumulate=4"), SIX[ADL]),
    ],
    "On six machines": [
        *(SIX_TIME[FINE_ADL], "100", "20", SIX_TIME["gpipe"]),
        *(SIX_TIME[FINE_ADL] / SIX_TIME["gpipe"], "0.60", XEON_SIX["dgl"] / XEON_SIX["gpipe"]),
    ],
    "For two machines forecasts": span(CHECKED),
    "| back-propagation |": [CIFAR[BP], "7.78"],
    "| `fdg` |": [CIFAR["fdg, stages 2"], "7.92"],
    "gradients shrunk": [CIFAR["fdg shrink=0.5, stages 2"], "half", "7.23"],
    "| `adl:accumulate=4` |": [CIFAR["adl accumulate=4, stages 2"]],
    "| `dgl` |": [CIFAR["dgl, stages 2"]],
    "With one seed, and": [100 * x for x in PRECISE["values"]],
}
MEASURED = {
    "Dots on two machines": [ratios[label] for label in DRAWN for ratios in (SPEED, EPYC)],
    "| Two processes |": [*span(FDG_SPEEDS), "1.90", *span(OF_DDP), *BEST],
    "| A slow link |": ["100", LINK["ddp"] / LINK["bp"]],
    "| One GPU |": [
        *span([100 * (WIDE[label] - 1) for label in STAGED]),
        *span([ratios[label] for label in STAGED for ratios in (SMALL, FLAT)]),
    ],
    "| The engine |": [100 * (STEPS["fdg"] - 1)],
    "one core on the Xeon": [SPEED["fdg"], EPYC["fdg"], "1.90"],
    "the Xeon it also": ["0.97", FDG[0]["of_limit"], SPEED["fdg"] / SPEED["ddp"]],
    "On the EPYC it meets": [FDG[1]["of_limit"], EPYC["fdg"] / EPYC["ddp"], *RANGES],
    "is cut more": [LARGER["fdg"], LARGER["fdg"] / LARGER["ddp"], FDG[2]["of_limit"]],
    "Processor time misses": ["1.05", *span([row["cpu_ratio"] for row in FDG])],
    "One process with both": [SPEED["bp-all"], LARGER["bp-all"]],
    "the best pipeline for": [*BEST, TUNED["fdg"], TUNED["fdg"] / TUNED["ddp"]],
    "A slower EPYC gives": [ZEN4["fdg"], ZEN4_FDG["of_limit"], ZEN4["fdg"] / ZEN4["ddp"]],
    "The engine takes": [*(100 * (1 - share) for share in reversed(BY_HAND)), *BY_HAND],
    "waits if the other one": [100 * max(FDG[n]["waiting"]) for n in (0, 2)],
    "removes the wait": [x["fdg order=forward-first"] for x in (SPEED, LARGER)],
    "perceptron, with": [read("link")["settings"]["parameters"] / 1e6],
    "the rate of the link": [
        *(FAST_LINK["ddp"], LINK["ddp"], "100", FAST_LINK["fdg"], LINK["fdg"]),
    ],
    "with an extra delay of": [
        *("100", *pick(LINK, "ddp", "1f1b microbatches=4", "fdg")),
        *("1", LINK["fdg slack=1"], *limits("link", "fdg slack=1", name="ms", mbit_s=100)),
        *(LINK["bp"], *limits("link", "bp", name="ms", mbit_s=100)),
    ],
    "opposite case": ["10", *pick(MAPS, "dgl", "dgl codec=bf16", "dgl codec=vq", "bp")],
    "at every rate": [*span(VQ), "100"],
    "| Wide ResNet-28-10 |": pick(WIDE, "bp", *STAGED),
    "| GPT, 10 million parameters |": ["10", *pick(GPT, "bp", *STAGED)],
    "| ResNet-20 |": pick(SMALL, "bp", *STAGED),
    "| perceptron |": pick(FLAT, "bp", *STAGED),
    "Where the host": [(TICKS["fdg, 2 stages"], TICKS["fdg, 4 stages"]), max(VARIED)],
    "Two processes on one GPU": [GPT["fdg, 2 processes"], WIDE["fdg, 2 processes"]],
    "Streams gain": [WIDE["fdg, 4 stages, streams"], WIDE["fdg, 4 stages"]],
    "Compiled, the GPT": [
        x[row] for x in (COMPILED_GPT, GPT) for row in ("fdg, 2 stages, compiled", "compiled")
    ],
    "Time of a step of each method": [
        "1",
        *span([STEPS[label] for label in STEPS if label not in [*SHORT, *AGAIN]]),
        *span(pick(STEPS, *AGAIN)),
    ],
    "the plain loop's time": [STEPS["bp"], STEPS["fdg"], *limits("overhead", "bp", "fdg")],
    "An earlier record has": [FIRST_STEPS["bp"], GOAL["bp"]],
    "Compiled, `bp` on two": [COMPILED["bp"], GOAL["bp"], COMPILED["fdg"]],
    "Two processes hold": [
        mib for label in ("fdg", "fdg-by-hand") for mib in rows_of("speed")[label]["peak_mib"]
    ],
    "FDG holds": [HELD["fdg"], column("overhead", "by_hand_mib")["fdg"], HELD["plain"]],
    "perceptron of short steps": [
        *span([SHORT[label] for label in SHORT if "forward" not in label]),
        *span([SHORT[label] for label in SHORT if "own forward" in label]),
        *span([SHORT[label] for label in SHORT if "plain forward" in label]),
    ],
    "of a reversible network": pick(MOST_MIB, "adl:accumulate=4", "paci:accumulate=4", "petra"),
    "With two stages `petra`": [LEAST_MIB["petra"], LEAST_MIB["fdg"]],
    "chosen tests pass": [tuple(r["passed"] for r in VERSIONS), *TORCH, *span(PYTHON)],
}
FIGURES = {"README.md": README, "docs/results.md": RESULTS, "docs/measured.md": MEASURED}

# Figures of sentences that have no measured one, and what they are.
SETTINGS = {
    "README.md": {
        "Three stages on one time axis": ("2 6", "batches of a program"),
        "A dozen papers": ("dozen", "papers of the methods"),
        "the same script": ("2 2", "processes and machines to use"),
        "On Linux with Python": ("3.11", "a version"),
        "if memory is scarce": ("2", "a formula"),
        "is about as fast as one machine": ("100 20", "a link"),
        "Status: version": ("0.1.0", "a version"),
        "Licence": ("2.0", "a version"),
    },
    "docs/results.md": {
        "learns Shakespeare": ("2,000", "length of the training"),
        "ResNet-8 learns CIFAR-10": ("32", "size of the batches"),
        "| row | here": ("30 300", "lengths of trainings"),
        "On two machines 0.58": ("0.58 0.01 0.60", "goals"),
    },
    "docs/measured.md": {
        "All rows train ResNet-20": ("128", "size of the batches"),
        "Two stages of ResNet-20 under FDG": ("1 0", "numbers of stages"),
        "Times of a step": ("1", "the base of the ratios"),
        "| network | bp |": ("2 4 4 2", "numbers of stages"),
        "Records on CPUs": ("2.13 2.11.0 3.12", "versions"),
    },
}
