"""File formats of weights and networks: safetensors, PyTorch, ONNX, MINDIR. Knows no training."""
