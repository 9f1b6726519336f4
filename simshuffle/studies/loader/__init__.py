"""Data loaders: what is fetched for their orders of samples, and how well these orders
mix.
"""
