"""Engines: where an engine's call sites meet selectors and kernels, behind one small interface."""
