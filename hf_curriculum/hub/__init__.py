"""The Hub: scored data sets, cards, and errors in words."""
