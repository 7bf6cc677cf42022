"""How fast the rules are: `python tests/benchmarks/rules.py`. CPU seconds of one core; no model. Not a timed test.

The bar is 15,000 turns a second of random play with view and prompt text, because rules must never be what training waits for.
"""

import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers import GAMES  # noqa: E402
from helpers.rewards import RUBRICS, judge  # noqa: E402

SECONDS, REPLIES = 3.0, 64


def turns_a_second(game) -> float:
    """Random play with view, prompt text (system and description) and action text at every turn."""
    turns, seed, start = 0, 0, time.process_time()
    while (spent := time.process_time() - start) < SECONDS:
        state, rng = game.deal(seed), Random(seed)
        while seat := game.turn(state):
            view = game.view(state, seat)
            game.system(view), game.describe(view)
            action = game.sample(view, rng)
            str(action)
            state = game.step(state, action)
            turns += 1
        seed += 1
    return turns / spent


def seconds_to_judge(game) -> float:
    """One training batch: REPLIES sampled replies at 8 decision points in mid-game, all terms of the default rubric."""
    groups = []
    for seed in range(8):
        state, rng, actions = game.deal(seed), Random(seed), []
        while len(actions) < game.max_turns // 2 and (seat := game.turn(state)):
            action = game.sample(game.view(state, seat), rng)
            state = game.step(state, action)
            actions.append(str(action))
        view = game.view(state, game.turn(state))
        groups.append((seed, actions, [str(game.sample(view, rng)) for _ in range(REPLIES // 8)]))
    start = time.process_time()
    for seed, actions, replies in groups:
        for judgement in judge(game, seed, actions, replies):
            RUBRICS["default"].reward(judgement)
    return time.process_time() - start


if __name__ == "__main__":
    for game in GAMES.values():
        print(f"{game.name}: {turns_a_second(game):,.0f} turns a second of random play with view and prompt text (bar: 15,000)")
        print(f"{game.name}: {1000 * seconds_to_judge(game):.0f} ms to judge {REPLIES} replies (bar: 5 % of a training step)")
