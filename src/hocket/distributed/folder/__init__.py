"""The folder through which a launcher and its processes communicate."""
