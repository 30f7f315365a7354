"""Scores of how well image and caption match."""
