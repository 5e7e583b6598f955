"""Engines, which execute programs in one process or in many."""
