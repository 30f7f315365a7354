"""Scores of images alone."""
