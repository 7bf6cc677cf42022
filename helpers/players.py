from helpers.games.market import Greedy

COMPETENT = {"market": Greedy()}
