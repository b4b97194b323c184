"""Frozen value types and their rules. Imports nothing but the standard library."""
