"""The dialects: SelIR, in which a kernel selection is written down while it is compiled."""
