"""What self-play of Bargaining spends its time on: `python tests/benchmarks/selfplay.py [PRESET]`. Not a timed test.

First how the time of a training step (16 deals x 2 seats x 4 episodes) is split. Then what it saves to read a chat once: with and
without kept keys and values, in one run, in CPU seconds of one core. There replies are sampled as in training, but the rules are
given a scripted side's actions, so that every episode is as long as can be.
"""

import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers import selfplay  # noqa: E402
from helpers.chats import ChatPlayer  # noqa: E402
from helpers.games.bargaining import Bargaining, hardball  # noqa: E402
from helpers.models import load  # noqa: E402
from helpers.presets import preset  # noqa: E402
from helpers.rollout import TRAIN, play  # noqa: E402

SEEDS, GROUP = 4, 8
STEPS = 5  # of which the first is not counted


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


def step_split(settings) -> dict[str, float]:
    """Mean seconds of a step of joint-grpo by part. generate: the model plays; rules: the rest of playing, and the rewards;
    train: log-probabilities, gradients and the optimizer; other: what lies between (trajectories, padding, advantages)."""
    spent, trainer, reset = Counter(), selfplay.EpisodeTrainer, []

    def timed(name: str, function):
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    def progress(history):
        if len(reset) == 0:
            spent.clear()
        reset.append(time.perf_counter())

    ChatPlayer.__call__ = timed("model", ChatPlayer.__call__)
    selfplay.play = timed("play", selfplay.play)
    trainer._calculate_rewards = timed("rewards", trainer._calculate_rewards)
    trainer._generate_and_score_completions = timed("rollout", trainer._generate_and_score_completions)
    with tempfile.TemporaryDirectory() as run:
        settings = replace(settings, prompts=32, generations=4)
        selfplay.train(Bargaining(), settings, selfplay.ARMS["joint-grpo"], Path(run), steps=STEPS, progress=progress)
    total = reset[-1] - reset[0]
    rules = spent["play"] - spent["model"] + spent["rewards"]
    parts = {"generate": spent["model"], "rules": rules, "train": total - spent["rollout"]}
    parts["other"] = spent["rollout"] - parts["generate"] - rules
    return {name: seconds / (STEPS - 1) for name, seconds in parts.items()}


if __name__ == "__main__":
    settings = preset(*sys.argv[1:] or ["tiny"], game="bargaining")
    parts = step_split(settings)
    total = sum(parts.values())
    print(f"a step of self-play, {total:.2f} s: " + ", ".join(f"{name} {x / total:.1%}" for name, x in parts.items()))
    torch.set_num_threads(1)
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
