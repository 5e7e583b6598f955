"""A training as a file: its choices, its folder, and the tables and pictures of its result."""
