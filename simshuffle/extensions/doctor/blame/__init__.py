"""Find who makes the steps of a real training job slow, and what simulated ranks waited
for.
"""
