"""Parts of `vlm_sft.py`."""
