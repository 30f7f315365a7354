"""Parts of `tonics_alignment.py`."""
