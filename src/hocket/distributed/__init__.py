"""The processes of one training: how they start, meet, fail and end."""
