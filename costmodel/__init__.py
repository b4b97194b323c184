"""The cost model: the only part of autopar that computes seconds and bytes."""
