"""Compare exchange patterns on the same bytes, and judge which is faster."""
