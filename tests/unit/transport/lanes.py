"""A backend within one process."""

from collections import deque

import torch

from hocket.distributed import wire
from hocket.transport.processes.backend import Backend, Lane


class Lanes(Backend):
    """Backend whose posted receives take the tensors of each lane in order, as gloo does."""

    device = torch.device("cpu")

    def __init__(self):
        self.sent = {lane: deque() for lane in Lane}
        self.posted = {lane: 0 for lane in Lane}
        self.waited = []

    def send(self, tensor, lane):
        self.sent[lane].append(tensor)
        return tensor

    def wait(self, handle):
        self.waited.append(handle)

    def post(self, spec, lane):
        self.posted[lane] += 1

        def arrive():
            tensor = wire.empty_tensor(spec)
            if tensor.numel():
                sent = self.take(lane)
                assert sent.nbytes == tensor.nbytes, "gloo would abort the process"
                wire.tensor_bytes(tensor).copy_(wire.tensor_bytes(sent))
            return tensor

        return arrive

    def take(self, lane):
        return self.sent[lane].popleft()
