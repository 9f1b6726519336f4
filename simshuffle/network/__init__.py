"""Network models: compiled kernels and their Python face, without SimPy."""
