"""Metrics of captions."""
