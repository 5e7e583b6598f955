"""Steps of the actions of a stage, which wait for its other replicas."""

from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar, cast

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Steps that ``yield`` divides; each needs that all replicas have done the one before."""


def advance(steps: Steps[T]) -> T | None:
    """Do the next step; return the result if it was the last one, and None otherwise."""
    try:
        next(steps)
    except StopIteration as end:
        return cast(T, end.value)
    return None


def in_turn(replicas: Iterable[Steps[T]]) -> list[T]:
    """Do the steps of several replicas, each step of all before the next; return the results.

    >>> def steps(name):
    ...     print("first of", name)
    ...     yield
    ...     return f"result of {name}"
    >>> in_turn([steps("a"), steps("b")])
    first of a
    first of b
    ['result of a', 'result of b']
    """
    results: dict[Steps[T], T] = {}
    runs = list(replicas)
    try:
        while len(results) < len(runs):
            for run in runs:
                if run not in results:
                    try:
                        next(run)
                    except StopIteration as end:
                        results[run] = end.value
    finally:
        for run in runs:
            run.close()  # one that an error has left behind
    return [results[run] for run in runs]
