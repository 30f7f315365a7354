"""Figures of a curriculum run: pure functions from numbers to a matplotlib `Figure`, in light and dark."""
