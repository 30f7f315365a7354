"""Scores onto data: as columns, in parts, over several machines, from files, and shuffled as controls."""
