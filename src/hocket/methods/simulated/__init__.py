"""Wrappers of a method: other delays, staleness or speeds than its own."""
