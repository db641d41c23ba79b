"""What people look at: the cut as text, DOT and Mermaid, the whole graph as one page, and why a value moves.

Every view takes a solution document (the plain dict a solve writes and the cache keeps) and the graph
with its pins. Views that also serve half-way through the passes accept None for the document.
"""
