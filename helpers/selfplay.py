"""Self-play: GRPO over whole episodes, in TRL's trainer. A row is (seed, seat), the rows of one seed adjacent. For each seed G
joint episodes are played in lockstep, and copy g of a seat's row is that seat's chat in episode g: prompt = system and first
message, completion = reply, message, reply, ..., of which only what the model wrote is learned from. Rewards are compared within
a (seed, seat) across the G episodes.

Who plays is a mixture for each seat, drawn from the seed: the current policy, the frozen base, a saved adapter, a scripted
player.
"""

import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, pstdev
from typing import Any, Literal

import torch
from accelerate import PartialState
from accelerate.utils import gather
from datasets import Dataset
from scipy.stats import rankdata
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.grpo_trainer import unwrap_model_for_generation

from helpers.chats import Chat, ChatPlayer, render
from helpers.game import Game, Seat, replay
from helpers.games.bargaining import BUYER, SELLER
from helpers.grpo import Monitor, Trained, begin, config, finite, learn, make_trainer, settings
from helpers.guards import GUARDS
from helpers.models import add_adapter, generator, load
from helpers.players import SCRIPTED, scripted
from helpers.preflight import TIED, PreflightError
from helpers.presets import Preset
from helpers.rewards import EPISODE_TERMS, SELF_PLAY, Rubric
from helpers.rollout import TRAIN, Episode, Player, messages_of, play, settings_of
from helpers.trainers import Deadline, once

POLICY, BASE = "policy", "base"


@dataclass(frozen=True)
class Arm:
    """One way to train: who plays, and the loss.

    name: of the arm and of the folder that its adapter is saved in.
    players: for each seat who plays it, with weights: "policy" (what is trained), "base" (the same without its adapter), the
        name of a scripted player, or the folder of a saved adapter. Seats that the policy may play are trained.
    loss: TRL's loss_type. With one pass over each batch, as here, the policy is still the one that sampled it: no ratio is
        clipped, and GRPO and CISPO differ only in whether an episode or a token counts alike.
    epsilon_high: GRPO clips the ratio at 1 + this, CISPO at this.
    ranks: whether a group's rewards are replaced by their ranks (the worst is 1, ties share the average).
    kl: weight of the divergence from the base (k3).
    lora_rank, lora_alpha: of the adapter, in place of the preset's.
    """

    name: str
    players: Mapping[Seat, Mapping[str, float]]
    loss: Literal["grpo", "cispo"] = "grpo"
    epsilon_high: float = 0.2
    ranks: bool = True
    kl: float = 0.001
    lora_rank: int = 16
    lora_alpha: int = 32

    @property
    def trained(self) -> tuple[Seat, ...]:
        return tuple(seat for seat, mixture in self.players.items() if POLICY in mixture)

    @property
    def names(self) -> set[str]:
        """Everyone who may play."""
        return {name for mixture in self.players.values() for name in mixture}


GRPO = {"loss": "grpo", "epsilon_high": 0.2}
CISPO = {"loss": "cispo", "epsilon_high": 5.0}
BUY, SELL = {BUYER: {POLICY: 1.0}, SELLER: {BASE: 1.0}}, {BUYER: {BASE: 1.0}, SELLER: {POLICY: 1.0}}
JOINT = {"players": {BUYER: {POLICY: 1.0}, SELLER: {POLICY: 1.0}}, "lora_rank": 32, "lora_alpha": 64}
# The published ones, for Bargaining. An adapter of theirs or ours is loaded with PeftModel.from_pretrained(base, repository,
# subfolder="joint-grpo"); for vLLM download the folder: vllm serve BASE --enable-lora --lora-modules joint-grpo=PATH/joint-grpo
ARMS = {
    arm.name: arm
    for arm in (
        Arm("buyer-grpo", BUY, **GRPO),
        Arm("buyer-cispo", BUY, **CISPO),
        Arm("buyer-grpo-norank", BUY, **GRPO, ranks=False),
        Arm("buyer-cispo-norank", BUY, **CISPO, ranks=False),
        Arm("seller-grpo", SELL, **GRPO),
        Arm("seller-cispo", SELL, **CISPO),
        Arm("joint-grpo", **JOINT, **GRPO),
        Arm("joint-cispo", **JOINT, **CISPO),
    )
}


# --- who plays


def draw(arm: Arm, seed: int) -> dict[Seat, str]:
    """Who plays each seat in all episodes of `seed`; drawn again until the policy plays one."""
    rng = Random(f"players/{seed}")
    while True:
        drawn = {seat: rng.choices(list(mixture), list(mixture.values()))[0] for seat, mixture in arm.players.items()}
        if POLICY in drawn.values():
            return drawn


def add_opponents(model, game: Game, arm: Arm) -> dict[str, str | None]:
    """{player: adapter that speaks for it} of those in `arm` that the model plays; saved adapters are loaded into it, frozen.
    Raises ValueError for an arm that does not fit the game, or a player that is neither known nor a folder with an adapter."""
    if set(arm.players) != set(game.seats) or not arm.trained:
        raise ValueError(f"expected players for {', '.join(game.seats)}, the policy among them, got {dict(arm.players)}")
    adapters: dict[str, str | None] = {POLICY: "default", BASE: None}
    for name in sorted(arm.names - {POLICY, BASE} - SCRIPTED.get(game.name, {}).keys()):
        if not (Path(name) / "adapter_config.json").exists():
            known = ", ".join((POLICY, BASE, *SCRIPTED.get(game.name, {})))
            raise ValueError(f"expected a player of {game.name} ({known}) or the folder of a saved adapter, got {name!r}")
        adapters[name] = f"opponent{len(adapters)}"
        model.load_adapter(name, adapters[name])
    return adapters


# --- rows and trajectories


def rows_of(game: Game, arm: Arm, seeds: Sequence[int]) -> Dataset:
    """A row for each seed and trained seat, made when the trainer fetches it. Its prompt is what the seat would be shown if it
    opened; TRL hands nothing else to the rollout function, so seed and seat stand in the first message."""

    def prompt(seed: int, seat: Seat) -> list[dict[str, Any]]:
        first, *rest = messages_of(game, game.view(game.deal(seed), seat))
        return [{**first, "seed": seed, "seat": seat}, *rest]

    def rows(batch):
        pairs = [(seeds[row // len(arm.trained)], arm.trained[row % len(arm.trained)]) for row in batch["row"]]
        return {
            "prompt": [prompt(seed, seat) for seed, seat in pairs],
            "seed": [seed for seed, _ in pairs],
            "seat": [seat for _, seat in pairs],
        }

    return Dataset.from_dict({"row": list(range(len(seeds) * len(arm.trained)))}).with_transform(rows)


def play_groups(
    prompts: list, trainer: GRPOTrainer, game: Game, arm: Arm, preset: Preset, adapters: Mapping[str, str | None], keep: bool
) -> dict[str, list]:
    """TRL rollout function: the chats of G joint episodes a seed. A seat that never moved, or that another than the policy plays,
    gets a filler of which nothing is learned. Besides what TRL wants, each row has its episode and figures to be logged."""
    tokenizer, size = trainer.processing_class, trainer.num_generations
    rows = [(prompt[0]["seed"], prompt[0]["seat"]) for prompt in prompts]
    block = size * len(arm.trained)
    seeds = [seed for seed, _ in rows[::block]]
    if rows != [(seed, seat) for seed in seeds for seat in arm.trained for _ in range(size)]:
        raise RuntimeError(f"expected whole groups of {size} rows for {', '.join(arm.trained)} of one seed, got {rows}")
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        players: dict[str, Player] = {
            name: ChatPlayer(name, model, tokenizer, preset, adapters[name], size, keep)
            if name in adapters
            else scripted(game, name)
            for name in arm.names
        }
        tables = [{seat: players[name] for seat, name in draw(arm, seed).items()} for seed in seeds for _ in range(size)]
        episodes = play(game, [seed for seed in seeds for _ in range(size)], tables)
    out = {name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "moved", "episode", "figures")}
    for at, (prompt, (_, seat)) in enumerate(zip(prompts, rows, strict=True)):
        number = at // block * size + at % size
        chat = players[POLICY].chats.get((number, seat)) or filler(tokenizer, prompt)
        out["prompt_ids"].append(chat.ids[: chat.prompt])
        out["completion_ids"].append(chat.ids[chat.prompt :])
        out["env_mask"].append(chat.sampled)
        out["moved"].append(any(chat.sampled))
        out["episode"].append(episodes[number])
        out["figures"].append(figures(game, episodes[number]) | {"replies cut off": chat.cut_off})
    check(out, len(prompts), tokenizer.eos_token_id, tokenizer.pad_token_id)
    return out | {"logprobs": None}


def filler(tokenizer, prompt: Sequence[dict[str, str]]) -> Chat:
    ids = tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"]
    return Chat([*ids, tokenizer.eos_token_id], len(ids), [0])


def figures(game: Game, episode: Episode) -> dict[str, float]:
    paid = {f"payoff {seat}": payoff for seat, payoff in episode.payoffs.items()}
    return paid | dict(game.counts(replay(game, episode.seed, episode.actions)))


def check(out: Mapping[str, list], rows: int, stop: int, pad: int) -> None:
    """Raises RuntimeError for trajectories of which the trainer would silently learn the wrong thing, or nothing."""
    for name, values in out.items():
        if len(values) != rows:
            raise RuntimeError(f"expected {rows} {name}, one a row, got {len(values)}")
    for at, (prompt, ids, mask) in enumerate(zip(out["prompt_ids"], out["completion_ids"], out["env_mask"], strict=True)):
        if len(ids) != len(mask):
            raise RuntimeError(f"expected a mask of {len(ids)} for row {at}, got {len(mask)}: what is missing would be learned")
        if not ids or ids[-1] != stop:
            raise RuntimeError(f"expected row {at} to end on the stop id {stop}, got {ids[-1:]}: it would count as cut off")
        if pad != stop and pad in prompt + ids:
            raise RuntimeError(f"expected no pad id {pad} inside row {at}: what follows would be masked")
    if not any(out["moved"]):
        raise RuntimeError("no seat that is trained ever moved: the other players end every episode at once; change the players")


def reward_functions(rubric: Rubric) -> list[Callable]:
    """One TRL reward function for each term, named after it."""

    def function(name: str) -> Callable:
        def reward(prompts, completions, episode, seat, **kwargs) -> list[float]:
            return finite(name, [EPISODE_TERMS[name].value(*pair) for pair in zip(episode, seat, strict=True)])

        reward.__name__ = name
        return reward

    return [function(name) for name in rubric.weights]


# --- training


def rank_scores(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """Each reward's rank in its group of `size` neighbours (the worst is 1, ties share the average), as TRL standardises
    rewards; 0 for NaN, which takes no part."""
    ranks = torch.tensor(rankdata(rewards.cpu().view(-1, size), axis=1, nan_policy="omit"))
    there = (~ranks.isnan()).sum(1, keepdim=True)
    off = ranks - ranks.nanmean(1, keepdim=True)
    spread = ((off**2).nansum(1, keepdim=True) / (there - 1)).sqrt()
    return (off / (spread + 1e-4)).nan_to_num(0.0).flatten().to(rewards)


class EpisodeTrainer(GRPOTrainer):
    """TRL's trainer, except that rows in which the policy never moved take no part in their group, that `ranks` may stand in for
    the rewards, and that checkpoints hold only the adapter that is trained: from one with others beside it, that adapter would
    not be read again."""

    def __init__(self, *args, ranks: bool, **kwargs):
        super().__init__(*args, **kwargs)
        self.ranks = ranks

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        for name in inputs[0]["figures"]:
            self._log_metric(name, mean(row["figures"][name] for row in inputs))
        idle = torch.tensor([not row["moved"] for row in inputs], device=rewards.device)
        rewards[gather(idle)] = torch.nan
        self.sums = (rewards * self.reward_weights.to(rewards.device)).sum(1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        groups = self.sums.view(-1, self.num_generations)
        groups = groups[~groups.isnan().all(1)]  # TRL would count groups that take no part as if their rewards differed
        tied = groups.nan_to_num(-torch.inf).amax(1) - groups.nan_to_num(torch.inf).amin(1) < 1e-6
        self._metrics["train"]["frac_reward_zero_std"][-1] = tied.float().mean().item()
        if self.ranks:
            mine = self.accelerator.process_index * len(inputs)
            output["advantages"] = rank_scores(self.sums, self.num_generations)[mine : mine + len(inputs)]
        return output

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        for name in self.model.peft_config.keys() - {"default"}:
            shutil.rmtree(Path(output_dir) / name)


class Guard(TrainerCallback):
    """Warns, once of each thing, of what the game's guard finds in the log."""

    def __init__(self, game: Game, trained: Sequence[Seat]):
        self.find, self.trained, self.told = GUARDS.get(game.name), trained, set()

    def on_log(self, args, state, control, **kwargs):
        if self.find and state.is_world_process_zero:
            for what, warning in self.find(state.log_history, self.trained).items():
                if what not in self.told:
                    self.told.add(what)
                    warnings.warn(f"step {state.global_step}: {warning}", stacklevel=2)


def preflight(rubric: Rubric, preset: Preset, rows: Dataset, trainer: GRPOTrainer) -> None:
    """Plays one step's episodes. Raises PreflightError when nothing could be learned from them, or prompts are too long."""
    prompts = [prompt for prompt in rows[: preset.prompts]["prompt"] for _ in range(preset.generations)]
    out = trainer.rollout_func(prompts, trainer)
    if (longest := max(map(len, out["prompt_ids"]))) > preset.max_prompt_tokens:
        raise PreflightError(f"a prompt has {longest} tokens, the preset allows {preset.max_prompt_tokens}; shorten it")
    groups: list[list[float]] = []
    for at, (prompt, episode) in enumerate(zip(prompts, out["episode"], strict=True)):
        groups += [[]] if at % preset.generations == 0 else []
        if out["moved"][at]:
            seat = prompt[0]["seat"]
            groups[-1].append(sum(weight * EPISODE_TERMS[name].value(episode, seat) for name, weight in rubric.weights.items()))
    tied = mean(pstdev(group) < 1e-9 for group in groups if group)
    if tied > TIED:
        illegal = mean(turn.error is not None for episode in out["episode"] for turn in episode.turns)
        raise PreflightError(
            f"{tied:.0%} of the groups tie (all episodes of a seed earn a seat the same under rubric {rubric.name}): nothing can "
            f"be learned; {illegal:.0%} of the replies are no legal action: if that is much, take a better base, else other terms"
        )


def train(
    game: Game,
    preset: Preset,
    arm: Arm,
    run: Path,
    rubric: Rubric = SELF_PLAY,
    seed: int = 0,
    steps: int | None = None,
    resume: bool = False,
    budget_s: float | None = None,
    save_steps: int | None = None,
    progress: Callable[[list[dict]], None] | None = None,
) -> Trained:
    """Trains an arm in run/ARM and saves its adapter in run/adapters/ARM: a repository of several arms is run/adapters.

    A step plays preset.prompts / (trained seats) seeds, preset.generations episodes each. Several processes share them out, whole
    seeds each, and play what one would. resume, budget_s, save_steps: as in helpers.grpo.train. With Unsloth max_prompt_tokens
    must have room for all but the last reply of a chat. Raises ValueError for a game, a preset or a number of processes that does
    not fit and for a folder with another run, PreflightError when the run cannot learn.
    """
    started = time.monotonic()
    if game.memory != "chat":
        raise ValueError(f"expected a game with chat memory, got {game.name}, whose turns are trained one by one, without an arm")
    if preset.vllm:
        raise ValueError("expected vllm off, got on: self-play samples with the model that it trains")
    seats, processes = len(arm.trained), PartialState().num_processes
    if preset.prompts % (seats * processes) or preset.micro_batch % processes:
        raise ValueError(
            f"expected prompts to be a multiple of {seats} trained seats x {processes} processes and the replies learned from at "
            f"once one of {processes}, got {preset.prompts} and {preset.micro_batch}: change prompts, generations or accumulate"
        )
    preset = replace(preset, lora_rank=arm.lora_rank, lora_alpha=arm.lora_alpha)
    steps, folder = steps or preset.steps, run / arm.name
    made_from = {
        "game": game.name,
        "settings": settings_of(game),
        "preset": asdict(preset),
        "arm": asdict(arm),
        "rubric": asdict(rubric),
        "seed": seed,
        "steps": steps,
    }
    checkpoint = once(begin, folder, made_from, resume)
    base, tokenizer = load(preset)
    model = add_adapter(base, preset, seed)
    adapters = add_opponents(model, game, arm)
    seeds = Random(f"self-play/{seed}").sample(TRAIN, steps * preset.prompts // len(arm.trained))
    rows, deadline = rows_of(game, arm, seeds), Deadline(started, budget_s)
    args = config(settings(game, preset, rubric, folder, seed, steps, save_steps) | loss_settings(arm))
    trainer = make_trainer(
        model,
        tokenizer,
        preset,
        args,
        reward_functions(rubric),
        rows,
        [Monitor(None, progress), Guard(game, arm.trained), deadline],
        kind=partial(EpisodeTrainer, ranks=arm.ranks),
        # Unsloth's own sampling keeps keys and values in its own way.
        rollout_func=partial(play_groups, game=game, arm=arm, preset=preset, adapters=adapters, keep=preset.own_sampling),
    )
    if not checkpoint:
        preflight(rubric, preset, rows, trainer)
    learn(trainer, preset, folder, run / "adapters" / arm.name, checkpoint)
    if not generator(model, tokenizer, preset, seed)([rows[0]["prompt"]])[0].strip():
        raise RuntimeError("the trained model answers with nothing: the run is broken")
    return Trained(model, tokenizer, trainer.state.log_history, folder, deadline.stopped)


def loss_settings(arm: Arm) -> dict[str, Any]:
    """The keywords for GRPOConfig in which an arm differs from turn-level training."""
    return {"loss_type": arm.loss, "epsilon_high": arm.epsilon_high, "beta": arm.kl, "scale_rewards": "group"}
