"""The loop over epochs, and evaluation."""
