"""The actions of a stage: forward, backward, update, learn, skip."""
