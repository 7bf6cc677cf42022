"""Parley: small language models learn to negotiate. `GAMES` maps a game's name to the game with its default settings."""

from helpers.games.market import Market

GAMES = {game.name: game for game in (Market(),)}
