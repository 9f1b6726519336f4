"""Figures for papers: one file a kind, each from the tables of results alone."""
