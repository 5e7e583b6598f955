"""Agreement of the replicas of the first stage on the batch before which all stop."""

from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store


@dataclass(frozen=True)
class CommonEnd:
    """Batch before which all replicas stop, once one of them is asked to.

    Replicas may be many batches apart, above all if they meet rarely. So the end, which is in a
    store that they share, moves on with each of them until all know of it.
    """

    store: Store
    replica: int
    replicas: int

    def reached(self, batch: int, *, asked: bool) -> bool:
        """Return True if this replica, asked to stop itself or not, stops before a batch."""
        if not asked and not self.store.check(["end"]):
            return False
        # One value holds the end and the replicas that know of it, so that both change at once.
        value = self.store.compare_set("end", "", "0")
        while True:
            end, *known = map(int, value.split())
            if len(known) == self.replicas:
                return batch >= end
            moved = " ".join(map(str, [max(end, batch + 1), *{*known, self.replica}]))
            value = self.store.compare_set("end", value.decode(), moved)
            if value == moved.encode():
                return False
