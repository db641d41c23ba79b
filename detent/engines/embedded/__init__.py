"""A small PyTorch engine: CPU first, the same code on a GPU."""
