"""Shared by all tests: nothing is skipped in CI, the flag that rewrites golden files, and Qwen's real vocabulary."""

import base64
import importlib.metadata
import os

import pytest
import tiktoken
from hypothesis import settings

# No deadlines: a busy machine is not a bug. Derandomized: the same commit gives the same verdict.
settings.register_profile("parley", deadline=None, derandomize=True)
settings.load_profile("parley")

# How Qwen cuts text into words before its merges (digits one by one).
QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def pytest_addoption(parser):
    parser.addoption("--regenerate-playthroughs", action="store_true", help="rewrite tests/playthroughs instead of comparing")


def pytest_collection_modifyitems(items):
    """In CI a test that lacks what it needs fails instead of being skipped: the set-up is what is wrong then."""
    if os.environ.get("CI"):
        for item in items:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skipif"]


@pytest.fixture
def regenerate(request) -> bool:
    return request.config.getoption("--regenerate-playthroughs")


@pytest.fixture(scope="session")
def tokens():
    """tokens(text): how many Qwen2.5 tokens a text has; <|im_start|> and <|im_end|> are one each."""
    path = importlib.metadata.distribution("dashscope").locate_file("dashscope/resources/qwen.tiktoken")
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    frame = {"<|im_start|>": len(ranks) + 1, "<|im_end|>": len(ranks) + 2}  # <|endoftext|> comes first
    encoding = tiktoken.Encoding("qwen", pat_str=QWEN_WORDS, mergeable_ranks=ranks, special_tokens=frame)
    return lambda text: len(encoding.encode(text, allowed_special="all"))


@pytest.fixture(scope="session")
def prompt_tokens(tokens):
    """prompt_tokens(game, view): Qwen2.5 tokens of system and user message in the chat frame, up to where the reply begins."""
    return lambda game, view: tokens(
        f"<|im_start|>system\n{game.system(view)}<|im_end|>\n<|im_start|>user\n{game.describe(view)}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
