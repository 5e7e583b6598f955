"""Facades for programs written for other libraries, which nothing else here imports."""
