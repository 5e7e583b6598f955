"""Commands of the laboratory, which the program `hocket` finds by an entry point."""

COMMANDS = {
    "sweep": (
        "Run the trainings of a study, and compare them in one record.\n\n"
        "Called again, it runs what is missing, and continues what was stopped.",
        "hocket sweep study.toml",
        "hocket sweep study.toml --jobs 2 --out sweeps/mine",
    ),
    "report": (
        "Compare runs or a study in one HTML file.",
        "hocket report runs/*",
        "hocket report sweeps/mine --out study.html",
    ),
    "script": (
        "Print a Python script that trains as a run has trained, to begin one's own with.",
        "hocket script runs/NAME",
        "hocket script runs/NAME --out train.py",
    ),
    "watch": (
        "Show the report of runs in a browser while they train.",
        "hocket watch runs",
        "hocket watch runs --port 8480",
    ),
    "plan": (
        "Forecast speed and memory of each method on a network.\n\n"
        "Each stage is timed alone on this machine, and is assumed to have a device that is as "
        "fast, unless --speeds or --same-machine is given. What stale gradients cost in "
        "accuracy is not forecast.",
        "hocket plan",
        "hocket plan --network resnet20 --data synthetic --stages 2,4 --methods fdg,dgl",
        "hocket plan --speeds 1,0.5 --memory 8GiB,4GiB --plan-out plan.json",
    ),
}
"""What each does, and examples; its function is `NAME_command` in the module of its name."""
