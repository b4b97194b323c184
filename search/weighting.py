"""Which mean of linear lower bounds is the greatest over all ways to share something out: a matrix game, by the dual simplex method.

A game has many more rows (paths of a schedule) than matter: they are added to the programme as they turn out to be violated.
"""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import Floats, Ints

_PIVOTS = 4_000
_SMALL = 1e-9


def best_weights(rows: Floats) -> tuple[Floats, Floats]:
    """Weights of ``rows`` and shares of columns, each adding up to 1, that answer each other.

        max over weights of  min over columns (weights . rows)  =  min over shares of  max over rows (rows . shares)

    Any weights prove a bound, so a game left unfinished costs tightness, not truth.

    Args:
        rows: ``[paths, columns]``, none negative; at least one of them positive throughout.
    """
    scaled = rows / float(rows.max())
    game = _Programme(scaled, first=int(scaled.min(axis=1).argmax()))
    while game.pivots < _PIVOTS:
        reached = scaled @ game.shares
        worst = int(reached.argmax())
        if reached[worst] <= 1 + _SMALL or not game.restrict(worst):
            break
    return _portions(game.weights), _portions(game.shares)


def _portions(values: Floats) -> Floats:
    """What is not negative, adding up to 1; equal where rounding left nothing."""
    kept = np.maximum(np.nan_to_num(values, posinf=0.0), 0.0)
    return kept / kept.sum() if kept.any() else np.full(len(kept), 1 / len(kept))


class _Programme:
    """Shares x over the game's value: max sum x with rows . x <= 1 for the rows so far.

    The table has a line for each basic variable, and the objective's last; its columns are the others, and what they leave. Variables
    are shares (numbered first) and slacks of rows (numbered after them).
    """

    def __init__(self, rows: Floats, *, first: int) -> None:
        self._rows, self._width = rows, rows.shape[1]
        self.pivots = 0
        self._outside: Ints = np.arange(self._width)
        self._inside: Ints = np.array([self._width + first])
        self._table = np.stack([np.append(rows[first], 1.0), np.append(np.full(self._width, -1.0), 0.0)])
        self._exchange(0, int(rows[first].argmin()))  # with it the objective has nothing left to gain: the dual method may start

    @property
    def shares(self) -> Floats:
        """``[columns]``, over the value of the game."""
        return self._values(self._inside, self._table[:-1, -1], slice(self._width))

    @property
    def weights(self) -> Floats:
        """``[rows]``, over the value of the game."""
        return self._values(self._outside, self._table[-1, :-1], slice(self._width, None))

    def _values(self, names: Ints, values: Floats, kept: slice) -> Floats:
        every = np.zeros(self._width + len(self._rows))
        every[names] = values
        return every[kept]

    def restrict(self, row: int) -> bool:
        """Add a row that the shares violate and mend them; False where rounding leaves nothing to mend with."""
        known, added = self._inside < self._width, self._rows[row]
        line = np.append(np.where(self._outside < self._width, added[np.minimum(self._outside, self._width - 1)], 0.0), 1.0)
        line -= added[self._inside[known]] @ self._table[:-1][known]
        self._table = np.concatenate([self._table[:-1], line[None], self._table[-1:]])
        self._inside = np.append(self._inside, self._width + row)
        while self.pivots < _PIVOTS:
            worst = int(self._table[:-1, -1].argmin())
            if self._table[worst, -1] >= -_SMALL:
                return True
            entries = self._table[worst, :-1]
            ratio = np.divide(self._table[-1, :-1], -entries, out=np.full(self._width, np.inf), where=entries < -_SMALL)
            column = int(ratio.argmin())
            if not np.isfinite(ratio[column]):
                return False
            self._exchange(worst, column)
        return False

    def _exchange(self, line: int, column: int) -> None:
        """A basic variable and one of the others change places."""
        table, value = self._table, self._table[line, column]
        factors, scaled = table[:, column].copy(), table[line] / value
        factors[line] = 0.0
        table -= factors[:, None] * scaled
        table[line], table[:, column] = scaled, -factors / value
        table[line, column] = 1 / value
        self._outside[column], self._inside[line] = self._inside[line], self._outside[column]
        self.pivots += 1
