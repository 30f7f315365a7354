"""What the recipe of weakly supervised detection is made of: settings, data, evaluation, results."""
