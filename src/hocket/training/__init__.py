"""The trainer that a user holds, and the epochs, checkpoints and metrics behind it."""
