"""What the recipe of DisCL is made of: settings, data, the stages before training, models, evaluation, results."""
