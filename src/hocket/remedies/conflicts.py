"""Remedies that a method cannot have, or not together."""

from collections.abc import Sequence

from hocket.remedies.remedy import Remedy


def remedy_problems(
    remedies: Sequence[Remedy], *, late: bool, hold: str, linearize: str
) -> list[str]:
    """Return each reason why a method cannot have these remedies, as text.

    Args:
        remedies: Remedies of the method.
        late: True if gradients of the method are late.
        hold: Version of the weights that its forwards have.
        linearize: Weights that its backwards have.
    """
    strangers = [remedy for remedy in remedies if not isinstance(remedy, Remedy)]
    if strangers:
        return [
            f"remedies has {stranger!r}, which is no remedy; give one such as "
            "hocket.remedies.T1()"
            for stranger in strangers
        ]
    problems = []
    if remedies and not late:
        problems.append(
            f"there is no late gradient that {_names(remedies)} could correct; leave remedies "
            "out, or use a method whose gradients have a delay"
        )
    kinds = [type(remedy) for remedy in remedies]
    twice = [remedy for remedy in dict.fromkeys(remedies) if kinds.count(type(remedy)) > 1]
    if twice:
        problems.append(f"{_names(twice[:1])} is given more than once; keep one of them")
    movers = [remedy for remedy in remedies if remedy.moves]
    if len(movers) > 1:
        problems.append(
            f"{_names(movers)} each move the weights of the same batch; keep one of them"
        )
    backwards = [remedy for remedy in movers if remedy.moves == "backward"]
    if backwards and linearize == "stash":
        problems.append(
            f"{_names(backwards)} moves the weights of a backward, which linearize='stash' "
            "takes from the forward; use linearize='live' or 'recompute', or leave it out"
        )
    elif movers and hold != "newest":
        problems.append(
            f"{_names(movers)} moves the newest weights, and with hold={hold!r} a stage "
            "forwards with older ones on purpose; leave hold at 'newest', or the remedy out"
        )
    comparing = [remedy for remedy in remedies if remedy.compares]
    if comparing and movers:
        problems.append(
            f"{_names(comparing)} compares the weights of a forward with the present ones, and "
            f"{_names(movers)} moves them; keep one of the two"
        )
    if comparing and hold != "newest":
        problems.append(
            f"{_names(comparing)} compares the newest weights of a forward with the present "
            f"ones, and with hold={hold!r} a forward has older ones; leave hold at 'newest', "
            "or the remedy out"
        )
    return problems


def _names(remedies: Sequence[Remedy]) -> str:
    return ", ".join(type(remedy).__name__ for remedy in remedies)
