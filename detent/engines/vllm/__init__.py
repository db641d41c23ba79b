"""vLLM as an engine under test."""
