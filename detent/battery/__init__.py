"""The battery: cells that show whether other requests change a request's bits, and who changed them."""
