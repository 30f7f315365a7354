"""Training captioners: schedules of the reference implementations, scheduled sampling, self-critical fine-tuning."""
