"""Captioners on stored regions."""
