"""Edges between two processes."""
