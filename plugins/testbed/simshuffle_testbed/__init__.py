"""A measured truth that anyone can repeat: a small network of Linux network namespaces,
measured and simulated.
"""
