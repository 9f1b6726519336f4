"""The SimPy processes; the only room that imports simpy."""
