"""The commands of `hf-curriculum`, one file each; `cli.py` puts them together."""
