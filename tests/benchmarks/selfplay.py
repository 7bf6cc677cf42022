"""What it saves to read a chat once: `python tests/benchmarks/selfplay.py [PRESET]`. Self-play of Bargaining with and without
kept keys and values, in one run. CPU seconds of one core. Not a timed test.

Replies are sampled as in training, but the rules are given a scripted side's actions, so that every episode is as long as can be.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers.chats import ChatPlayer  # noqa: E402
from helpers.games.bargaining import Bargaining, hardball  # noqa: E402
from helpers.models import load  # noqa: E402
from helpers.presets import preset  # noqa: E402
from helpers.rollout import TRAIN, play  # noqa: E402

SEEDS, GROUP = 4, 8


class Meter:
    """Seconds and ids (padding included) that the model spends on reading (many ids a call) and on writing (one id a call)."""

    def __init__(self, model):
        self.forward, self.ids, self.seconds = model.forward, {"read": 0, "written": 0}, {"read": 0.0, "written": 0.0}

    def __call__(self, input_ids=None, **given):
        start = time.process_time()
        out = self.forward(input_ids=input_ids, **given)
        kind = "read" if input_ids.shape[1] > 1 else "written"
        self.ids[kind] += input_ids.numel()
        self.seconds[kind] += time.process_time() - start
        return out


def measure(model, tokenizer, settings, rounds: int, keep: bool, group: int) -> tuple[float, Meter, int]:
    """(seconds in all, meter, ids that were sampled) of SEEDS x GROUP episodes."""
    policy = ChatPlayer("policy", model, tokenizer, settings, group=group, keep=keep)

    def player(requests):
        policy(requests)
        return [str(hardball(request.view, request.rng)) for request in requests]

    player.name = "policy"
    game, forward = Bargaining(rounds=rounds), model.forward
    model.forward = meter = Meter(model)
    torch.manual_seed(0)
    start = time.process_time()
    play(game, [seed for seed in TRAIN[:SEEDS] for _ in range(GROUP)], dict.fromkeys(game.seats, player))
    seconds = time.process_time() - start
    model.forward = forward
    return seconds, meter, sum(sum(chat.sampled) for chat in policy.chats.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = preset(*sys.argv[1:] or ["tiny"])
    settings = replace(settings, max_new_tokens=24)
    model, tokenizer = load(settings)
    measure(model, tokenizer, settings, 1, True, GROUP)  # warm-up
    for rounds in (2, 6):
        for name, keep, group in (("read once", True, GROUP), ("read once, alone", True, 1), ("read anew", False, 1)):
            seconds, meter, sampled = measure(model, tokenizer, settings, rounds, keep, group)
            per_second = {kind: meter.ids[kind] / meter.seconds[kind] for kind in meter.ids}
            print(
                f"{rounds} rounds, {name:16} {seconds:5.1f} s for {sampled:5} sampled ids ({sampled / seconds:4.0f} a second); "
                f"{meter.ids['read']:6} ids read in {meter.seconds['read']:4.1f} s ({per_second['read']:5.0f} a second), "
                f"{meter.ids['written']:6} written in {meter.seconds['written']:4.1f} s ({per_second['written']:5.0f} a second)"
            )
