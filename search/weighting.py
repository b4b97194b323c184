"""Which mean of linear lower bounds is the greatest over all ways to share something out: a matrix game, by the simplex method."""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import Floats

_PIVOTS = 4_000
_SMALL = 1e-9


def best_weights(rows: Floats) -> tuple[Floats, Floats]:
    """Weights of ``rows`` and shares of columns, each adding up to 1, that answer each other.

        max over weights of  min over columns (weights . rows)  =  min over shares of  max over rows (rows . shares)

    Any weights prove a bound, so a game left unfinished costs tightness, not truth.

    Args:
        rows: ``[paths, columns]``, positive.
    """
    count, width = rows.shape
    # shares over the game's value: max sum x with rows . x <= 1; the weights are what the rows cost. Slacks are a first solution
    table = np.ones((count + 1, width + 1))
    table[:count, :width] = rows / float(rows.max())
    table[-1, :width], table[-1, -1] = -1.0, 0.0
    outside, inside = np.arange(width), np.arange(width, width + count)
    for _ in range(_PIVOTS):
        column = int(table[-1, :-1].argmin())
        if table[-1, column] >= -_SMALL:
            break
        entries = table[:-1, column]
        row = int(np.divide(table[:-1, -1], entries, out=np.full(count, np.inf), where=entries > _SMALL).argmin())
        _pivot(table, row, column)
        outside[column], inside[row] = inside[row], outside[column]
    shares, weights = np.zeros(width + count), np.zeros(width + count)
    shares[inside] = np.maximum(table[:-1, -1], 0.0)
    weights[outside] = np.maximum(table[-1, :-1], 0.0)
    return weights[width:] / weights[width:].sum(), shares[:width] / shares[:width].sum()


def _pivot(table: Floats, row: int, column: int) -> None:
    """Exchange what ``row`` and ``column`` stand for, in place."""
    value = table[row, column]
    factors, line = table[:, column].copy(), table[row] / value
    factors[row] = 0.0
    table -= np.outer(factors, line)
    table[row], table[:, column] = line, -factors / value
    table[row, column] = 1 / value
