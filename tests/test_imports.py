"""Imports point one way, and the rules run anywhere: `import helpers` brings in no heavy library."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
HEAVY = ("torch", "trl", "unsloth", "transformers", "matplotlib", "ipywidgets")

# Every module imports only modules that stand before it (design.md, Layout). A new module gets its place here.
ORDER = (
    *("game", "games", "helpers", "replies", "rollout", "human", "honesty", "players", "signals", "rewards", "gallery"),
    *("presets", "memory"),
    *("machine", "remote", "models", "tiny", "chats", "saving", "evaluate", "surplus", "splits", "tournament", "judge"),
    *("desk", "solver", "welfare", "exploit", "drift", "preflight", "guards"),
    *("checkpoints", "trainers", "warmup", "grpo", "selfplay", "train", "card", "plots", "widgets", "run", "gpu_check", "kaggle"),
)


def files():
    return {".".join(path.relative_to(TOP).with_suffix("").parts): path for path in sorted(TOP.glob("helpers/**/*.py"))}


def imported(path: Path) -> set[str]:
    """Full names of what a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the full name, not a relative import"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (submodules & set(files())) or {node.module}
    return names


def part(module: str) -> str:
    """The part of the package that a module belongs to: helpers.games.market -> games, helpers -> helpers."""
    names = module.removesuffix(".__init__").split(".")
    return names[1] if len(names) > 1 else names[0]


@pytest.mark.parametrize(
    "module",
    ["helpers", "helpers.replies", "helpers.rollout", "helpers.honesty", "helpers.players", "helpers.rewards", "helpers.gallery"],
)
def test_importing_the_rules_and_rewards_brings_in_no_heavy_library(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    loaded = json.loads(result.stdout)
    assert module in loaded and not set(HEAVY) & set(loaded)


def test_every_module_has_its_place_in_the_order():
    assert {part(module) for module in files()} <= set(ORDER)


@pytest.mark.parametrize("module", files())
def test_a_module_imports_only_parts_of_the_package_that_stand_before_it(module):
    mine = {part(name) for name in imported(files()[module]) if name.split(".")[0] == "helpers"} - {part(module)}
    assert all(ORDER.index(name) < ORDER.index(part(module)) for name in mine), f"{module} imports {sorted(mine)}"


@pytest.mark.parametrize("module", [m for m in files() if part(m) in ("game", "games", "replies")])
def test_rules_and_replies_need_the_standard_library_only(module):
    allowed = sys.stdlib_module_names | {"helpers"} | ({"pydantic"} if part(module) == "replies" else set())
    assert {name.split(".")[0] for name in imported(files()[module])} <= allowed
