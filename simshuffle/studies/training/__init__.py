"""Accuracy: tables of training runs, what follows from them, and their figures. Reads results;
needs no torch."""
