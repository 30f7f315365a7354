"""What recipes of several papers share."""
