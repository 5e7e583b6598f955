"""Connections from outside to the ports of process groups are found, closed and kept out.

While a group forms, gloo gives a connection to the first that sends the number of a pair of
processes; any user of the machine can do that. Each process therefore tells the others, in a
store that only they can write, the addresses of both ends of its connections. A stranger's is
one whose other end no process has. The address of one end would not do: a stranger can connect
from the port of a process to another port. Once the group is formed, its ports take no
connection any more.
"""

import json
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from hocket.distributed.network.sockets import TcpSocket, own_sockets, owner_of, readable
from hocket.errors import HangError, PeerLostError

T = TypeVar("T")
ACCEPT_S = 1.0
"""Seconds that gloo may take to accept the connections that wait at its ports."""
POLL_S = 0.01
"""Seconds between two looks at them."""


def form_without_strangers(
    form: Callable[[], T], store: Store, *, rank: int, size: int, timeout_s: float
) -> T:
    """Form process groups, and let only the processes of this training stay connected.

    All processes must call it, at the same time.

    Args:
        form: Forms the groups in this process, and returns them.
        store: Store of these groups, to which only the processes of the training write.
        rank: Rank of this process.
        size: Number of processes.
        timeout_s: Seconds to wait for the others to have formed their groups.

    Returns:
        The result of ``form``.

    Raises:
        PeerLostError: A stranger has sent data, and may have taken the place of a process.
        HangError: A process has not formed its groups in time.
    """
    store = PrefixStore("door", store)

    # Tell all processes some values, and return the values of all.
    def exchange(values: list[Any], name: str) -> list[Any]:
        store.set(f"{name}/{rank}", json.dumps(values))
        keys = [f"{name}/{other}" for other in range(size)]
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            missing = [str(other) for other in range(size) if not store.check([keys[other]])]
            raise HangError(
                f"process {', '.join(missing)} of {size} did not connect to the others within "
                f"{timeout_s:g} s"
            ) from error
        return [value for key in keys for value in json.loads(store.get(key))]

    # Form the groups, and tell all processes which connections are theirs.
    before = {each.inode for each in own_sockets()}
    groups = form()
    formed = _opened_since(before)
    ends = [(each.local, each.remote) for each in formed if each.connected]
    members = {(local, remote) for local, remote in exchange(ends, "connected")}

    # Refuse further connections, and end strangers' connections.
    for each in formed:
        if each.listening:
            each.refuse_connections()
    suspects = _disconnect_strangers(before, members)
    if told := exchange(suspects, "strangers"):
        raise PeerLostError(
            "while the processes of this training connected to each other, somebody else sent "
            f"data to their ports: {', '.join(told)}; the connections are closed; start the "
            "training again, and find out who that was"
        )
    return groups


def form_default_group(store: Store, rank: int, size: int, timeout_s: float) -> None:
    """Initialize torch.distributed with gloo, without strangers.

    Args:
        store: Store for this group alone.
        rank: Rank of this process.
        size: Number of processes.
        timeout_s: Seconds that an operation of the group, and its start, waits for a process.
    """
    timeout = timedelta(seconds=timeout_s)
    form = partial(distributed.init_process_group, "gloo", store=store, timeout=timeout)
    form = partial(form, rank=rank, world_size=size)
    form_without_strangers(form, store, rank=rank, size=size, timeout_s=timeout_s)


def _opened_since(inodes: Collection[int]) -> list[TcpSocket]:
    return [each for each in own_sockets() if each.inode not in inodes]


def _disconnect_strangers(
    inodes: Collection[int], members: Collection[tuple[str, str]]
) -> list[str]:
    """End the connections of strangers to ports of the new groups.

    Args:
        inodes: Sockets that are older than the groups.
        members: Local and remote address of each end that a process of the training has.

    Returns:
        Descriptions of the strangers that have sent data. One that has sent nothing, such as a
        scan of ports, has taken no process's place.
    """
    suspects = []
    end_s = time.monotonic() + ACCEPT_S
    while True:
        sockets = _opened_since(inodes)
        ports = {each.local_port for each in sockets if each.listening}
        connected = [each for each in sockets if each.connected and each.local_port in ports]
        strangers = [c for c in connected if (c.remote, c.local) not in members]
        for each in strangers:
            if each.received_bytes():
                user = owner_of(each.remote, each.local)
                owner = "" if user is None else f" of user {user}"
                suspects.append(f"{readable(each.remote)}{owner}")
        for each in strangers:
            each.shut_down()
        waiting = any(each.listening and each.queued for each in sockets)
        if not (strangers or waiting) or time.monotonic() > end_s:
            return suspects
        time.sleep(POLL_S)  # only what gloo has accepted can be closed
