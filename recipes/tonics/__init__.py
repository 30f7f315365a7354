"""Parts of `tonics_alignment.py` and `tonics_tables.py`."""
