"""Commands of the laboratory, which the program `hocket` finds by an entry point."""

COMMANDS = {
    "sweep": "Run the trainings of a study, and compare them in one record.",
    "report": "Compare runs or a study in one HTML file.",
    "watch": "Show the report of runs in a browser while they train.",
    "plan": "Rehearse a network on this machine and forecast each method's speed and memory.",
}
"""What each does, by its name; its function is `NAME_command` in the module of its name."""
