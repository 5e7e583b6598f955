"""The version of Hocket, which processes and checkpoints compare."""

__version__ = "0.1.0"
