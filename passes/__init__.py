"""The passes, one a file: file, class, command-line name and test share one name; ``pipeline`` composes them."""
