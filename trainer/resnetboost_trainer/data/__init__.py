"""Where images come from, what is done to them, and how batches are made. Knows neither MindSpore nor ranks."""
