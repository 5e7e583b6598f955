"""Where to cut: the first layer of every stage but the first."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The cuts of a network.

    Attributes:
        cuts: Names of the layers at which stages 1, 2, ... begin.
    """

    cuts: tuple[str, ...]

    @property
    def stages(self) -> int:
        """K."""
        return len(self.cuts) + 1
