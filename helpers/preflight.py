"""Checks that stop a run that cannot learn, before any time is spent on it."""

from collections.abc import Callable, Sequence
from statistics import mean, pstdev

from helpers.game import Game
from helpers.presets import Preset
from helpers.rewards import Rubric, judge
from helpers.rollout import kind

GROUPS, TIED = 24, 0.9  # groups sampled; share of tied groups from which a run is refused


class PreflightError(ValueError):
    """This run cannot learn; the message says why and what to change."""


def preflight(game: Game, preset: Preset, rubric: Rubric, rows: Sequence[dict], model, tokenizer, generate: Callable) -> dict:
    """Mean reward and count by kind of reply, {kind: (mean, n)}, from the base's own samples. Raises PreflightError."""
    if len(rows) < preset.prompts:
        raise PreflightError(f"expected at least {preset.prompts} rows (one generation batch), got {len(rows)}; collect more")
    if not any(p.requires_grad for p in model.parameters()):
        raise PreflightError("no parameter is trainable; add an adapter to the model first")
    chats = [list(row["prompt"]) for row in rows]
    longest = max(map(len, tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]))
    if longest > preset.max_prompt_tokens:
        raise PreflightError(f"a prompt has {longest} tokens, the preset allows {preset.max_prompt_tokens}; shorten it")
    groups = []
    picked = rows[:GROUPS]
    replies = generate([row["prompt"] for row in picked for _ in range(preset.generations)])
    for at, row in enumerate(picked):
        said = replies[at * preset.generations : (at + 1) * preset.generations]
        groups.append([(j, rubric.reward(j)) for j in judge(game, row["seed"], row["actions"], said)])
    tied = mean(pstdev([reward for _, reward in group]) < 1e-9 for group in groups)
    if tied == 1:
        raise PreflightError(
            f"every reply to a prompt earns the same under rubric {rubric.name}: the reward does not depend on the reply, "
            "so the loss will be about 0 and nothing will be learned; use terms that judge the reply"
        )
    if tied > TIED:
        raise PreflightError(
            f"{tied:.0%} of the groups tie (all {preset.generations} replies earn the same): rows are too easy or too hard"
        )
    by_kind: dict[str, list[float]] = {}
    for group in groups:
        for judgement, reward in group:
            by_kind.setdefault(kind(str(judgement.action), judgement.error), []).append(reward)
    report = {name: (mean(values), len(values)) for name, values in sorted(by_kind.items())}
    state = game.deal(0)
    trivial = kind(str(game.fallback(game.view(state, game.turn(state)))), None)
    best = max(report, key=lambda name: report[name][0])
    if best in (trivial, "invalid reply"):
        listed = ", ".join(f"{name} {value:+.3f} (n={n})" for name, (value, n) in report.items())
        raise PreflightError(
            f"the best kind of reply on average is the trivial {best!r} ({listed}): training would collapse to it; use rows "
            "where the reply matters, a smaller penalty, or a better base"
        )
    return report
