"""Every deal of a council at once: which are individually rational, which efficient, and what the textbooks would choose.

Surpluses here are normalised (1 is a party's best deal, 0 its threshold) and undiscounted. *Individually rational* (IR)
means at or above every threshold. A bargaining solution is taken among the IR deals; ties go to the deal that comes first.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from helpers.games.council_specs import Deal, Spec


@dataclass(frozen=True)
class Solution:
    """deals: (D, issues), options from 0. scores: (D, parties), whole numbers. surplus: (D, parties), at most 1. rational and
    efficient: (D,) masks: IR; on the Pareto frontier of all deals. points: {name: row of its deal}; {} when no deal is IR."""

    deals: np.ndarray
    scores: np.ndarray
    surplus: np.ndarray
    rational: np.ndarray
    efficient: np.ndarray
    points: dict[str, int]

    def row(self, deal: Deal) -> int:
        """The row of a deal: the last issue changes fastest."""
        return int(np.ravel_multi_index(deal, self.deals.max(0) + 1))

    def deal(self, point: str) -> Deal | None:
        """The deal of a named point; None when no deal is IR."""
        return tuple(map(int, self.deals[self.points[point]])) if self.points else None

    @cached_property
    def best(self) -> float:
        """The largest NNW that a deal has; 0 when no deal is IR."""
        return self.nnw(self.deal("Nash")) if self.points else 0.0

    def nnw(self, deal: Deal) -> float:
        """Normalised Nash welfare of a deal, 0..1: see `welfare`."""
        return float(self.welfare(self.surplus[self.row(deal)]))

    def welfare(self, surplus: np.ndarray) -> np.ndarray:
        """Normalised Nash welfare of surpluses (..., parties), those of deals or of what was paid: the geometric mean, over the
        parties, of surplus / its maximum within the IR set; 0 where some surplus is <= 0, or no deal is IR."""
        if not self.rational.any():
            return np.zeros(surplus.shape[:-1])
        best = self.surplus[self.rational].max(0)
        shares = np.divide(surplus, best, out=np.zeros(surplus.shape), where=best > 0)
        return np.where((shares > 0).all(-1), np.exp(np.log(np.where(shares > 0, shares, 1.0)).mean(-1)), 0.0)

    def regret(self, deal: Deal) -> float:
        """How much NNW a deal leaves on the table: the best IR deal's minus its own."""
        return self.best - self.nnw(deal)


def solve(spec: Spec) -> Solution:
    deals = np.array(list(product(*map(range, spec.options))))
    rows = [[np.array(row)[deals[:, i]] for i, row in enumerate(party)] for party in spec.scores]
    scores = np.array([np.sum(party, axis=0) for party in rows]).T
    limits = np.array(spec.thresholds)
    surplus = (scores - limits) / (scores.max(0) - limits)
    rational = (scores >= limits).all(1)
    return Solution(deals, scores, surplus, rational, frontier(scores), points(surplus, rational))


def frontier(scores: np.ndarray) -> np.ndarray:
    """(D,) mask of the deals that no other deal dominates: at least as good for all and better for one."""
    order = np.argsort(-scores.sum(1), kind="stable")  # only a deal with a larger sum can dominate
    left, out = scores[order], np.zeros(len(scores), dtype=bool)
    while len(left):
        first = left[0]
        out[order[0]] = True
        kept = (left > first).any(1) | (left == first).all(1)
        kept[0] = False
        left, order = left[kept], order[kept]
    return out


def points(surplus: np.ndarray, rational: np.ndarray) -> dict[str, int]:
    """The row that each solution chooses among the IR deals. Nash: largest product of surpluses (then largest sum, where all are
    0). Kalai-Smorodinsky: largest smallest share of the ideal, a party's largest surplus within the IR set. Utilitarian: largest
    sum. Egalitarian: largest smallest surplus. Of equals the next smallest decide (leximin)."""
    ir = np.flatnonzero(rational)
    if not len(ir):
        return {}
    own = surplus[ir]
    ideal = own.max(0)
    shares = np.divide(own, ideal, out=np.zeros_like(own), where=ideal > 0)
    total = own.sum(1).round(12)
    return {
        "Nash": int(ir[np.lexsort((-total, -own.prod(1).round(12)))[0]]),
        "Kalai-Smorodinsky": int(ir[leximin(shares)]),
        "utilitarian": int(ir[np.argmax(total)]),
        "egalitarian": int(ir[leximin(own)]),
    }


def leximin(values: np.ndarray) -> int:
    """The row whose smallest value is largest; of equals the next smallest values decide."""
    ordered = np.sort(values, axis=1).round(12)
    return int(np.lexsort(tuple(-column for column in ordered.T[::-1]))[0])
