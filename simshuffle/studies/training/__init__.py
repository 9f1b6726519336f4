"""Accuracy: tables of training runs, what follows from them, and their figures. No
torch.
"""
