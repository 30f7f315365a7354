"""Parts of `reference_model.py`."""
