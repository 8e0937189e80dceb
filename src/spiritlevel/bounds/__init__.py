"""What is guaranteed of networks that were not tested, and under which assumptions."""
