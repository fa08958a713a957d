"""Data sources, one module each: readers of files into arrays or images. No transforms, no sampling."""
