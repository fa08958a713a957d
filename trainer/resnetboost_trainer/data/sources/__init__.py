"""Data sources, one module each: reads files into arrays or images. No transforms, no sampling."""
