"""Batches that threads prepare ahead of their use, in the order in which they are used.

Threads, and not processes: reading files, decoding images and PyTorch's operations let other
threads run, tensors need not be copied from one process to another, and nothing is forked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

AHEAD = 2
"""Results for each worker that are ready or in work."""


def prepare_ahead(
    prepare: Callable[[Key], Value], keys: Iterable[Key], workers: int
) -> Iterator[Value]:
    """Yield the result for each key, in order; some later ones are prepared meanwhile.

    Args:
        prepare: Returns the result for a key; several threads call it at the same time.
        keys: The keys.
        workers: Number of threads; 0 to prepare each result when the caller wants it.

    Raises:
        Exception: Preparing a result raised it; it is raised again when its turn comes.
    """
    if not workers:
        yield from map(prepare, keys)
        return
    waiting: deque[Future[Value]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="hocket-data")
    try:
        for key in keys:
            waiting.append(pool.submit(prepare, key))
            if len(waiting) == AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also if the rest is not wanted
        pool.shutdown(wait=False, cancel_futures=True)
