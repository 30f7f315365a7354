"""A folder for each task: its models, metrics, trainer parts, pages and commands."""
