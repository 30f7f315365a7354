"""Flamingo: text attends to images in layers of its own."""
