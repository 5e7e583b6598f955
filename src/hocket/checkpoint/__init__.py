"""Where a training has come to, on disk: whole, checked, and without code in it."""

from hocket.checkpoint.directory import Manifest as Manifest
from hocket.checkpoint.writer import Checkpoints as Checkpoints
from hocket.checkpoint.writer import CheckpointWriter as CheckpointWriter
