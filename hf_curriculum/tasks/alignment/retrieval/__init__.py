"""Retrieval of images and captions, evaluated."""
