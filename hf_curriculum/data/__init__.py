"""From files and hubs to rows of one image and one caption, and from rows to batches."""
