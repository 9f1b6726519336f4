"""Compare exchange patterns that move equal bytes, and judge which is faster."""
