"""Time to accuracy: a training after each epoch, joined with the simulated time. No
torch.
"""
