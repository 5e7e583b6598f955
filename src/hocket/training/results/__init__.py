"""Metrics of epochs and evaluations, and how they are shown."""
