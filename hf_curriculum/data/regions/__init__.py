"""Regions of images from the files of detectors."""
