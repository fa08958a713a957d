"""File formats of weights and networks: safetensors, PyTorch, ONNX, MINDIR. Contains no training code."""
