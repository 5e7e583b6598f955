"""The processes of one training: joining, leaving, replacing one."""
