"""Batches on their way to the device; `contract/test_gpu.py` copies to a GPU."""

import torch

from hocket.training.session.batches import Upload

CPU = torch.device("cpu")


def test_a_batch_that_is_in_place_is_not_copied():
    values = torch.ones(2, 3, 4, 4)
    assert Upload(CPU, channels_last=False)(values) is values


def test_images_get_the_memory_format():
    images, targets = Upload(CPU, channels_last=True)((torch.ones(2, 3, 4, 4), torch.ones(2)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert targets.is_contiguous()


class Recorded:
    """A stream, or a tensor on a GPU, that writes down what is asked of it."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def wait_stream(self, other):
        self.calls.append(f"{self.name} waits for {other.name}")

    def record_stream(self, stream):
        self.calls.append(f"{self.name} is used by {stream.name}")

    def __enter__(self):
        self.calls.append(f"{self.name} begins")

    def __exit__(self, *error):
        self.calls.append(f"{self.name} ends")


def test_a_copy_to_a_gpu_has_memory_and_a_stream_of_its_own(monkeypatch):
    """With streams and memory that only write down what is asked of them."""
    calls: list[str] = []
    copies, user = Recorded("copies", calls), Recorded("user", calls)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copies)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: user)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    values = torch.ones(2)

    class Pinned:
        def copy_(self, other):
            calls.append("pinned" if other is values else "another batch is pinned")
            return self

        def to(self, device, non_blocking):
            calls.append(f"copy to {device}, waits: {not non_blocking}")
            return Recorded("batch", calls)

    monkeypatch.setattr(torch, "empty_like", lambda value, pin_memory, memory_format: Pinned())
    Upload(torch.device("cuda", 0), channels_last=False)._move(values)
    assert calls == [
        "pinned",
        "copies begins",
        "copy to cuda:0, waits: False",
        "copies ends",
        "user waits for copies",
        "batch is used by user",
    ]
