"""Where images come from, what is done to them, and how batches are made; it knows neither MindSpore nor ranks."""
