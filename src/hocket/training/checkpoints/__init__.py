"""What a checkpoint of a training holds, and how one is resumed."""
