"""Measurements: what Detent itself takes."""
