"""Data sources, image transforms, samplers and loaders. No MindSpore, no communication between ranks."""
