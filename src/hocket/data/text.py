"""Text files for next-token prediction, with one token for each character."""

# Shapes: N characters, B batch, T context.

from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Generator, Tensor

from hocket.data.batches import Batches
from hocket.data.dataset import Data
from hocket.data.randomness import send_to_device
from hocket.errors import DataError, OptionError


@final
class Windows:
    """Windows of T + 1 consecutive tokens: T inputs and, for each, the token that follows it.

    Args:
        tokens_N: Text of at least T + 1 tokens, (N,).
        context: T, the number of inputs in a window.
        jitter: Whether each window starts up to T - 1 tokens later than its regular position,
            so that every epoch has other windows.
    """

    def __init__(self, tokens_N: Tensor, context: int, *, jitter: bool) -> None:
        self.tokens_N = tokens_N
        self.context = context
        self.jitter = jitter

    def __len__(self) -> int:
        return (len(self.tokens_N) - 1) // self.context

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs (B, T) and targets (B, T), int64."""
        starts_B = rows_B * self.context
        if self.jitter:
            starts_B += torch.randint(self.context, rows_B.shape, generator=rng, device="cpu")
            starts_B.clamp_(max=len(self.tokens_N) - self.context - 1)
        places_BT = starts_B[:, None] + torch.arange(self.context + 1, device="cpu")
        windows = self.tokens_N[send_to_device(places_BT, self.tokens_N.device)].long()
        # Copies, because inputs and targets would share memory otherwise.
        return windows[:, :-1].clone(), windows[:, 1:].clone()

    def to(self, device: torch.device) -> "Windows":
        """Return the same windows of the text on a device, where batches are made of it."""
        return Windows(self.tokens_N.to(device), self.context, jitter=self.jitter)

    def divide(self, held: int, test: "Windows") -> tuple["Windows", "Windows"]:
        """Return the beginning of the text, and its end of `held` windows, placed as in `test`.

        A window at random would share most of its text with those that train.
        """
        end = len(self.tokens_N) - held * self.context - 1
        return (
            Windows(self.tokens_N[:end], self.context, jitter=self.jitter),
            Windows(self.tokens_N[end:], self.context, jitter=test.jitter),
        )


def text(*, data_dir: Path, batch_size: int, seed: int = 0, context: int = 64) -> Data:
    """Load a UTF-8 text: its first nine tenths for training, the rest for the test.

    Args:
        data_dir: The text file, or a folder with exactly one file `*.txt`.
        batch_size: Number of windows in a batch.
        seed: Seed of the positions and the order of training windows.
        context: Number of characters in one input.

    Raises:
        DataError: The file is missing, ambiguous, not UTF-8, or too short for one window.
        OptionError: `context` is below 1.
    """
    if context < 1:
        raise OptionError(f"context is {context}; give 1 or more characters")

    # Find the file: this one, or the only text file of the folder.
    files = [data_dir] if data_dir.is_file() else sorted(data_dir.glob("*.txt"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"no text at {data_dir}: it is no file, and has {len(files)} text files ({names}), "
            "wanted exactly 1; give the path of the file itself"
        )
    (path,) = files

    # Read it, with a token for each character.
    try:
        # Newlines stay as they are: each is one or two characters, as in the file.
        characters = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error}); convert it to UTF-8") from error
    codes_N = np.frombuffer(characters.encode("utf-32-le"), dtype=np.uint32)
    vocabulary, tokens = np.unique(codes_N, return_inverse=True)
    tokens_N = torch.from_numpy(tokens.astype(np.int32))

    # Divide it.
    train_length = len(tokens_N) * 9 // 10
    shortest = len(tokens_N) - train_length
    if shortest < context + 1:
        raise DataError(
            f"{path} has {len(tokens_N)} characters, of which a tenth, {shortest}, is the "
            f"test: too short for one window of {context} + 1; give a longer text or "
            "a smaller context"
        )
    train = Windows(tokens_N[:train_length], context, jitter=True)
    test = Windows(tokens_N[train_length:], context, jitter=False)
    return Data(
        name="text",
        train=Batches(train, batch_size, seed=seed, shuffle=True),
        test=Batches(test, batch_size),
        classes=len(vocabulary),
        shape=(context,),
        kind="tokens",
    )
