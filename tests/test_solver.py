"""The solver against brute force in plain Python, and on the two public games of LLM-Deliberation."""

import json
import time
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path
from random import Random

import numpy as np
import pytest

from helpers.games.council_specs import Spec, load
from helpers.solver import solve

PUBLIC = Path(__file__).parents[2] / "shared" / "data" / "scorable_games.json"


def small(seed) -> Spec:
    """A random game of 2 to 4 parties and at most 27 deals, often with ties and without any individually rational deal."""
    rng = Random(seed)
    n, options = rng.randint(2, 4), [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
    scores = tuple(tuple(tuple(rng.randint(1, 6) for _ in range(k)) for k in options) for _ in range(n))
    limits = tuple(rng.randint(0, sum(map(max, rows)) * 9 // 10) for rows in scores)
    return Spec(tuple("ABC"[: len(options)]), tuple("abcd"[:n]), scores, limits)


def brute(spec):
    """(deals, exact surpluses) of all deals."""
    deals = list(product(*map(range, spec.options)))
    parties = range(len(spec.names))
    exact = {
        d: [Fraction(spec.score(i, d) - spec.thresholds[i], spec.best(i) - spec.thresholds[i]) for i in parties] for d in deals
    }
    return deals, exact


def dominates(a, b) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def test_masks_frontier_and_points_agree_with_brute_force_on_200_random_games():
    empty = 0
    for seed in range(200):
        spec = small(seed)
        found = solve(spec)
        deals, exact = brute(spec)
        assert [tuple(map(int, row)) for row in found.deals] == deals
        assert [found.row(d) for d in deals] == list(range(len(deals)))
        assert np.allclose(found.surplus, [[float(x) for x in exact[d]] for d in deals])
        rational = [d for d in deals if min(exact[d]) >= 0]
        assert [deals[i] for i in np.flatnonzero(found.rational)] == rational
        efficient = [d for d in deals if not any(dominates(exact[other], exact[d]) for other in deals)]
        assert [deals[i] for i in np.flatnonzero(found.efficient)] == efficient
        if not rational:
            empty += 1
            assert found.points == {} and found.deal("Nash") is None and found.nnw(deals[0]) == 0
            continue
        ideal = [max(exact[d][i] for d in rational) for i in range(len(spec.names))]
        shares = {d: [x / top if top else 0 for x, top in zip(exact[d], ideal, strict=True)] for d in rational}
        assert found.deal("utilitarian") == max(rational, key=lambda d: sum(exact[d]))
        assert found.deal("egalitarian") == max(rational, key=lambda d: sorted(exact[d]))
        assert found.deal("Kalai-Smorodinsky") == max(rational, key=lambda d: sorted(shares[d]))
        assert found.deal("Nash") == max(rational, key=lambda d: (prod(exact[d]), sum(exact[d])))
        for d in deals:
            good = all(x > 0 for x in exact[d])
            expected = float(prod(x / top for x, top in zip(exact[d], ideal, strict=True))) ** (1 / len(ideal)) if good else 0
            assert found.nnw(d) == pytest.approx(expected)
            assert found.regret(d) >= -1e-9
        assert found.regret(found.deal("Nash")) == 0
    assert 5 < empty < 150


def test_welfare_takes_any_surpluses_and_the_best_deal_has_no_regret():
    found = solve(small(3))
    everything = found.welfare(found.surplus)
    assert everything.shape == (len(found.deals),) and everything.max() > 0
    assert list(everything) == [found.nnw(tuple(deal)) for deal in found.deals]
    assert found.best == pytest.approx(everything.max()) and found.regret(found.deal("Nash")) == 0
    ideal = found.surplus[found.rational].max(0)
    assert float(found.welfare(ideal)) == pytest.approx(1) and float(found.welfare(ideal / 2)) == pytest.approx(0.5)
    assert float(found.welfare(np.array([0.0, *ideal[1:]]))) == float(found.welfare(-ideal)) == 0.0


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public score tables are not beside the checkout")
def test_counts_of_the_two_public_games():
    specs = load(str(PUBLIC))
    wanted = {entry["name"]: entry["counts_for_checking"] for entry in json.loads(PUBLIC.read_text())["games"]}
    assert set(specs) == set(wanted) and wanted["base"]["pass_without_bonus"] == 55
    for name, spec in specs.items():
        reached = solve(spec).scores >= np.array(spec.thresholds)
        vetoes = reached[:, list(spec.vetoes)].all(1)
        assert len(reached) == wanted[name]["deals"] == 720
        assert int(reached.all(1).sum()) == wanted[name]["unanimous_without_bonus"]
        assert int(((reached.sum(1) >= 5) & vetoes).sum()) == wanted[name]["pass_without_bonus"]
        others = np.delete(reached, spec.p1, axis=1).all(1)  # 10 more for p1 when all agree
        unanimous = others & (solve(spec).scores[:, spec.p1] + 10 >= spec.thresholds[spec.p1])
        assert int(unanimous.sum()) == wanted[name]["unanimous_with_bonus"]
        assert int((((reached.sum(1) >= 5) & vetoes) | unanimous).sum()) == wanted[name]["pass_with_p1_plus_10_if_unanimous"]


def test_a_game_of_five_issues_with_four_options_is_solved_in_less_than_ten_milliseconds():
    rng = Random(0)
    scores = tuple(tuple(tuple(rng.randint(0, 30) for _ in range(4)) for _ in range(5)) for _ in range(6))
    spec = Spec(tuple("ABCDE"), tuple("abcdef"), scores, (50,) * 6)
    spent = []
    for _ in range(10):
        start = time.process_time()
        assert len(solve(spec).deals) == 1024
        spent.append(time.process_time() - start)
    assert min(spent) < 0.010
