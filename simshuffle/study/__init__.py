"""The engine of every study: cells of work, done once and kept, and results with a
schema.
"""
