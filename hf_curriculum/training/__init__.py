"""Training by a plan: arguments, sampler, trainer, callback."""
