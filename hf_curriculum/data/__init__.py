"""From files and hubs to rows of one picture and one caption, and from rows to batches."""
