"""Where images come from, what is done to them, and how batches are made in time; it knows neither MindSpore nor ranks."""
