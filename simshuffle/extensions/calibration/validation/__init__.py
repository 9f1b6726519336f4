"""Predicted against measured: every published number in ``validation/`` beside what the simulator
says."""
