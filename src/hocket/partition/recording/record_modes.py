"""Recordings of a network in all modes in which its stages will work."""

from contextlib import nullcontext

from torch import nn

from hocket.modes import evaluation_mode
from hocket.partition.recording.recorder import record_forward
from hocket.partition.recording.recording import EVALUATION, TRAINING, ForwardMode, Recording
from hocket.tree import Tree


def record_modes(
    network: nn.Module, samples: dict[ForwardMode, Tree], repeated: frozenset[str]
) -> dict[ForwardMode, Recording]:
    """Record the forward in all modes, as far as the network takes single inputs.

    Args:
        network: The network, which is set to training mode unless it is in it.
        samples: Inputs for each mode. Those for evaluation become those for training if the
            network takes no other number of rows, as with graphs and time steps.
        repeated: Modules in which every stage repeats what depends on discrete inputs only.
    """
    recordings = {}
    if not network.training:
        network.train(True)
    for mode in samples:
        with nullcontext() if mode.training else evaluation_mode(network):
            try:
                recordings[mode] = record_forward(network, samples[mode], repeated)
            except Exception:
                if mode == TRAINING:
                    raise
                if mode == EVALUATION:
                    samples[mode] = samples[TRAINING]
                    recordings[mode] = record_forward(network, samples[mode], repeated)
                # BatchNorm, for example, cannot train on a single element.
    return recordings
