"""Predicted against measured: reads runs, scores the cost model on them, and says what it could not score."""
