"""Images generated from others, level by level."""
