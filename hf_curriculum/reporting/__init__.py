"""Figures, the report of a run and the inspection page of a scored data set."""
