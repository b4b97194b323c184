"""Microbenchmarks that fill a measured profile: CuPy and torch on GPUs, torch and gloo on processors."""
