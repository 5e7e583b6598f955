"""The processes of one training: how they start, find each other, fail and end."""
