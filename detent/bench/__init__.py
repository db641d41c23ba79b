"""Measurements of Detent itself and of what it does to serving."""
