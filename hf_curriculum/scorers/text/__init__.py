"""Scores of captions alone."""
