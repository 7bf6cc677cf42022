"""Mixed play for the tests: every seat is random, competent or half of each, so that all parts of a game are visited."""

from random import Random

from helpers.game import Game
from helpers.players import competent


def walk(game: Game, seed: int):
    """Yields (actions so far, state) at every decision point of a mixed episode, and last the finished state."""
    rng, expert = Random(f"tests/{game.name}/{seed}"), competent(game)
    skill = {seat: rng.choice((0.0, 0.5, 1.0)) for seat in game.seats}
    state, actions = game.deal(seed), []
    while seat := game.turn(state):
        yield list(actions), state
        view = game.view(state, seat)
        action = expert(view, rng) if rng.random() < skill[seat] else game.sample(view, rng)
        state = game.step(state, action)
        actions.append(str(action))
    yield actions, state


def finish(game: Game, seed: int):
    """(actions, state) at the end of the mixed episode of `seed`."""
    *_, last = walk(game, seed)
    return last
