"""The networks: their architecture, layers, initialization and names of weights. No training, no ranks."""
