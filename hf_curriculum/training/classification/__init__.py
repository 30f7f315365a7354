"""Training classifiers on long tails: losses that know the classes' sizes, and CLIP fine-tuned by its own loss."""
