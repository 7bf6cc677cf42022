"""How much faster the embedded model plays 64 episodes in lockstep than one after another: `python tests/benchmarks/lockstep.py`.

Both ways in one run, on shortened games; every episode is played both ways.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers.games.market import Market
from helpers.models import generator, load
from helpers.players import Model
from helpers.presets import preset
from helpers.rollout import VALID, play

game, tiny = Market(rounds=2), preset("tiny")
player = Model("base", generator(*load(tiny), tiny))
everyone, seeds = dict.fromkeys(game.seats, player), VALID[:64]
play(game, seeds[:2], everyone)  # warm-up
start = time.perf_counter()
play(game, seeds, everyone)
together = time.perf_counter() - start
start = time.perf_counter()
for seed in seeds:
    play(game, [seed], everyone)
apart = time.perf_counter() - start
print(f"64 episodes in lockstep {together:.1f} s, one after another {apart:.1f} s: {apart / together:.1f} times faster")
