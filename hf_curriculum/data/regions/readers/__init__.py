"""Readers of region files, one file per kind of file."""
