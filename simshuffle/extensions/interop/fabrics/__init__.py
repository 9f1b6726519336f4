"""Real fabrics: what tools say of a machine's network, read and written, one file a
format.
"""
