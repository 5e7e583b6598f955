"""Batches on their way to the device; `contract/test_gpu.py` copies to a GPU."""

import torch

from hocket.training.session.batches import DetachOnce, Upload

CPU = torch.device("cpu")


def test_a_batch_that_is_in_place_is_not_copied():
    values = torch.ones(2, 3, 4, 4)
    assert Upload(CPU, DetachOnce(), channels_last=False)(values) is values


def test_images_get_the_memory_format():
    images, targets = Upload(CPU, DetachOnce(), channels_last=True)(
        (torch.ones(2, 3, 4, 4), torch.ones(2))
    )
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert targets.is_contiguous()
