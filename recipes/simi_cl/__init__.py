"""What Simi-CL's recipe is made of: settings, data and scores, evaluation, results."""
