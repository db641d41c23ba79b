"""Developers' tools, ``detent-opt`` first among them."""
