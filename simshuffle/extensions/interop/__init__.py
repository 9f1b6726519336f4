"""Fabrics and runs as other tools read and write them."""
