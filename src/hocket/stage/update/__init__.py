"""Accumulated gradients, their clipping and scale, and the update of the weights."""
