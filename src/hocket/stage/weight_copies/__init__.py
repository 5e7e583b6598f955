"""Weights and buffers at the versions that batches in flight need."""
