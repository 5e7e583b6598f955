"""PipeDream's 1F1B by its workers (arXiv 1806.03377), and PACI (2606.07881).

Worker k (of K, from 0) admits K-1-k batches, then forwards and back-propagates in turn. It
starts each action as soon as its packet is there. PipeDream stashes weights; PACI does not, and
updates after every ``accumulate`` backwards. PipeMare's T1 (1910.05124) and staleness-aware
learning rates (1511.05950) scale the learning rate of an update. SpecTrain (1809.02839)
forwards with weights that are predicted for the update of the batch; PipeMare's T2 estimates in
its backward those of its forward, and its T3 empties the pipeline before the first updates;
DC-ASGD (1609.08326) corrects its gradients; Ringmaster (2501.16168) drops those that are late.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reference._linearize import Batches, LiveSGD, Loss, backward, forward, leaf
from reference.spike import SpikeSGD

Order = Callable[[int, int], str]
Move = Callable[[torch.optim.Optimizer, int], list[Tensor]]


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    loss: Loss,
    lr: float,
    accumulate: int = 1,
    linearize: str = "stash",
    rate: Callable[[int, int, list[int]], float] = lambda k, t, staleness: 1.0,
    ahead: Move | None = None,
    behind: Move | None = None,
    correct: Callable[[nn.Module, list[Tensor], torch.optim.Optimizer], None] | None = None,
    spikes: bool = False,
    flushed: int = 0,
    limit: float = float("inf"),
    order: Order | None = None,
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` in place until drained; return the loss of each batch.

    Update t of worker k has the learning rate lr * rate(k, t, staleness of its gradients). A
    forward with s updates until its backward has ahead(optimizer, s) added to its weights, and
    the backward behind(optimizer, s). The gradients of a batch are corrected by correct(module,
    weights of its forward, optimizer). With spikes, SGD is that of 2003.11666.
    Before each of the first ``flushed`` updates the pipeline is empty (PipeMare's T3).
    Gradients that are later than ``limit`` updates are dropped. A worker does its actions in
    the order order(workers behind it, batches), that of `one_f_one_b` if not given.
    """
    K, N = len(modules), len(batches)
    kind = LiveSGD if linearize == "live" else torch.optim.SGD
    sgd = [kind(m.parameters(), lr, **options) for m in modules]
    if spikes:
        late = [(K - 1 - k) / accumulate for k in range(K)]
        pairs = zip(modules, late, strict=True)
        sgd = [SpikeSGD(m.parameters(), lr, **options, delay=delay) for m, delay in pairs]
    x = [deque(leaf(x) for x, _ in batches), *(deque() for _ in range(K - 1))]
    g, kept, losses = [deque() for _ in range(K)], [deque() for _ in range(K)], []
    count, version = [0] * K, [0] * K
    then = [deque() for _ in range(K)]
    seen, stale = [deque() for _ in range(K)], [[] for _ in range(K)]

    def update(k: int) -> None:
        count[k] = 0
        if not stale[k]:  # all gradients were dropped
            return
        for p in (p for p in modules[k].parameters() if p.grad is not None):
            p.grad = p.grad / len(stale[k])
        sgd[k].param_groups[0]["lr"] = lr * rate(k, version[k], stale[k])
        sgd[k].step()
        version[k], stale[k] = version[k] + 1, []
        sgd[k].zero_grad()

    sizes = [accumulate] * flushed + [N - accumulate * flushed]
    for size in sizes:  # each enters when the pipeline is empty
        todo = [deque((order or one_f_one_b)(K - 1 - k, size)) for k in range(K)]
        while any(todo):
            for k in range(K):
                while todo[k] and (x[k] if todo[k][0] == "F" else g[k] or k == K - 1):
                    if todo[k].popleft() == "F":
                        how = linearize if k < K - 1 else "live"  # back-propagated at once
                        due = (count[k] + len(kept[k])) // accumulate
                        with moved(modules[k], ahead(sgd[k], due) if ahead and due else None):
                            out, mine = forward(modules[k], x[k].popleft(), how)
                        kept[k].append(mine)
                        seen[k].append(version[k])
                        then[k].append([p.data.clone() for p in modules[k].parameters()])
                        if k < K - 1:
                            x[k + 1].append(out)
                        continue
                    late = version[k] - seen[k].popleft()
                    if k < K - 1:
                        sums = [p.grad for p in modules[k].parameters()]
                        modules[k].zero_grad()
                        with moved(modules[k], behind(sgd[k], late) if behind else None):
                            back = backward(modules[k], kept[k].popleft(), g[k].popleft())
                        if correct:
                            correct(modules[k], then[k].popleft(), sgd[k])
                        for p, total in zip(modules[k].parameters(), sums, strict=True):
                            if late > limit:
                                p.grad = total
                            elif total is not None:
                                p.grad = total + p.grad
                    else:  # the loss of the batch just forwarded
                        _, inputs, out = kept[k].popleft()
                        value = loss(out, batches[len(losses)][1])
                        value.backward()
                        back = inputs.grad
                        losses.append(value.item())
                    if k:
                        g[k - 1].append(back)
                    count[k] += 1
                    if late <= limit:
                        stale[k].append(late)
                    if count[k] == accumulate:
                        update(k)
    for k in (k for k in range(K) if count[k]):  # the last, partial groups
        update(k)
    return losses


@contextmanager
def moved(module: nn.Module, moves: list[Tensor] | None) -> Iterator[None]:
    """Add to the weights for as long as the context lasts, unseen by autograd."""
    now = [p.data.clone() for p in module.parameters()]
    for p, move in zip(module.parameters(), moves or [], strict=False):
        p.data.add_(move)
    yield
    for p, value in zip(module.parameters(), now, strict=True):
        p.data.copy_(value)


def one_f_one_b(ahead: int, batches: int) -> str:
    """Return the order of a worker's forwards and backwards, for example FFFBFBBB."""
    ahead = min(ahead, batches)
    return "F" * ahead + "FB" * (batches - ahead) + "B" * ahead
