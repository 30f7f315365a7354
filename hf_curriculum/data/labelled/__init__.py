"""Images with one class each: loaded from any usual form, counted by class, made long-tailed, collated."""
