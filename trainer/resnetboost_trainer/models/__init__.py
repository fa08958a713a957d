"""Networks: architecture table, layers, initialization, parameter names, half precision. No training, no ranks."""
