"""Why a real training waits for its data, what helps, and what it would do on other
machines.
"""
