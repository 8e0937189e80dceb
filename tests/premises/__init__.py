"""Random small networks, the truth about them by brute force, and what is confronted with it."""
