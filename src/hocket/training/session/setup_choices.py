"""Choices that the bits of a training depend on, compared when it is resumed."""

import re

from hocket.checkpoint.directory import Manifest
from hocket.errors import CheckpointError, format_problems
from hocket.options import split_at_commas
from hocket.stage.setup import Setup


def setup_choices(setup: Setup) -> dict[str, str]:
    """Return the options that the bits of a training depend on, as text."""
    return {
        name: as_text(getattr(setup, name))
        for name in (
            "method",
            "codec",
            "seed",
            "precision",
            "batchnorm",
            "scheduler_unit",
            "warmup_updates",
            "clip",
            "stage_speeds",
        )
    }


def as_text(value: object) -> str:
    """Return the text of a choice, the same in all processes."""
    if isinstance(value, frozenset):  # whose order may differ
        value = sorted(value)
    # So does the address of an object that has no better name.
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def require_same_setup(manifest: Manifest, setup: Setup) -> None:
    """Refuse to continue another training.

    Raises:
        CheckpointError: With every option that differs.
    """
    choices = setup_choices(setup)
    problems = [
        _tell_change(name, choices.get(name, "unknown"), str(was))
        for name, was in manifest.setup.items()
        if choices.get(name) != was
    ]
    if problems:
        raise CheckpointError(
            format_problems("the checkpoint is of another training", problems)
        )


def _tell_change(name: str, now: str, was: str) -> str:
    """Name an option that differs, and of a method only the entries that do.

    Args:
        name: Name of the option.
        now: Its value as text.
        was: Its value in the checkpoint.
    """
    if name != "method":
        return f"{name} is {now}, and was {was}"
    new, old = (
        {entry.strip() for entry in split_at_commas(_without_paper(text)[len("Method(") : -1])}
        for text in (now, was)
    )
    has, had = ", ".join(sorted(new - old)), ", ".join(sorted(old - new))
    return (
        f"the method has {has}, and had {had}; to begin with the weights of the checkpoint, "
        "resume a trainer of its method and load its state_dict() into a new network"
    )


def _without_paper(method: str) -> str:
    """Return the text of a method without its reference, which has commas of its own."""
    return re.sub(r"paper=('[^']*'|\"[^\"]*\"), ", "", method)
