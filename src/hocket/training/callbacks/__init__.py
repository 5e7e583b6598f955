"""Callbacks that come with Hocket."""
