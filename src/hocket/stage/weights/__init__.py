"""Weights that a batch meets instead of the newest ones, and the check of its forward."""
