"""The parts of `recipes/photographs.py`."""
