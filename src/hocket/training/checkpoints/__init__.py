"""Checkpoints of a training: their contents, and how one is resumed."""
