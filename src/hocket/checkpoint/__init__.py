"""Checkpoints on disk: complete or absent, protected by checksums, and free of code."""

from hocket.checkpoint.directory import Manifest as Manifest
from hocket.checkpoint.writer import Checkpoints as Checkpoints
from hocket.checkpoint.writer import CheckpointWriter as CheckpointWriter
