"""From a model to a more robust one: candidates, weight interpolation, search within a budget, choice on validation images."""
