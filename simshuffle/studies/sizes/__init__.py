"""What each rank holds, reads and sends in an epoch."""
