"""Parley: small language models learn to negotiate. `GAMES` maps a game's name to the game with its default settings."""

from helpers.games.market import Market

GAMES = {game.name: game for game in (Market(),)}


def game_named(name: str):
    """The game of that name. Raises ValueError for an unknown one."""
    if name not in GAMES:
        raise ValueError(f"expected GAME to be one of {', '.join(GAMES)}, got {name!r}")
    return GAMES[name]
