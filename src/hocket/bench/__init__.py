"""Measurements of Hocket itself, each kept as a record from which its tables are rendered."""
