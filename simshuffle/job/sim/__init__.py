"""Epochs, jobs, faults and ranks on the clock; the only room that imports simpy."""
