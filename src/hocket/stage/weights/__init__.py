"""Weights that a batch meets instead of the newest ones."""
