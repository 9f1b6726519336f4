"""A user's own loader, run by processes, killed, and resumed with others."""
