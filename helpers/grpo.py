"""Turn-level GRPO: TRL's trainer, with one method overridden (GroupTrainer). A row is one decision point; G replies are
sampled for it, and every term of the rubric is one reward function over the same judgements.

Rows come from mixed play and from the policy's own games, refreshed as it learns: the coming rows are replaced every
`preset.refresh` steps. Everything a step depends on is drawn from seeds or saved in a checkpoint, so a killed run resumes
to the same adapter.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import DynamicCache, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.grpo_trainer import unwrap_model_for_generation
from trl.trainer.utils import selective_log_softmax_and_entropy, split_tensor_dict

from helpers.checkpoints import from_earlier_sessions, last_checkpoint, step_of
from helpers.evaluate import steps_done, write_json
from helpers.game import Game
from helpers.models import adapter_in_float32, add_adapter, generator, load, ready
from helpers.players import Model, competent, mixed_player
from helpers.preflight import PreflightError, preflight
from helpers.presets import Preset
from helpers.rewards import TERMS, Rubric, judge
from helpers.rollout import TRAIN, Episode, play, prompts_of, settings_of
from helpers.saving import save_adapter
from helpers.trainers import Deadline, arguments, once
from helpers.warmup import warm_up

ROUNDS = 30  # of games, in which the rows must be found
ROWS_A_TURN = 0.6  # about how many rows each turn that a game may have gives
# For each row that matters: without any, the policy forgets to idle where nothing better is at hand, and does what is forbidden.
OTHERS = 1 / 6
Row = dict[str, Any]  # seed, actions (text), seat, prompt (messages)


def rows_of(game: Game, rubric: Rubric, episodes: Sequence[Episode], others: float = 0.0) -> list[Row]:
    """The decision points of `episodes` where the reply matters: a competent action is worth more than idling, or than the reply
    given there (or else nobody learns which offers to leave alone, nor what the rules forbid). For each of them `others` of the
    other points, drawn at random."""
    expert, rows, rest = competent(game), [], []
    for episode in episodes:
        state, actions = game.deal(episode.seed), episode.actions
        for at, (turn, prompt) in enumerate(zip(episode.turns, prompts_of(game, episode), strict=True)):
            view = game.view(state, turn.seat)
            rng = Random(f"{game.name}/{episode.seed}/{at}")
            replies = [str(game.fallback(view)), turn.reply, *{str(expert(view, rng)): None for _ in range(3)}]
            idle, given, *rewards = (rubric.reward(j) for j in judge(game, episode.seed, actions[:at], replies))
            row = {"seed": episode.seed, "actions": actions[:at], "seat": turn.seat, "prompt": list(prompt)}
            (rows if max(rewards) > min(idle, given) else rest).append(row)
            state = game.step(state, game.parse(turn.action))
    rng = Random(f"others/{[episode.seed for episode in episodes]}")
    return rows + rng.sample(rest, min(len(rest), round(others * len(rows))))


class Rows:
    """The training rows by index, filled ahead of the trainer and kept in rows.jsonl so that a resumed run sees the same."""

    def __init__(self, game: Game, rubric: Rubric, preset: Preset, seed: int, policy_at, path: Path, resumed_at: int | None):
        """policy_at(step): the current policy as a generate function whose luck depends on nothing but the step."""
        self.game, self.rubric, self.preset, self.seed, self.policy_at, self.path = game, rubric, preset, seed, policy_at, path
        self.rows: list[Row] = []
        if resumed_at is None:
            path.write_text("")
            self.fill(0)
        else:
            kept = [json.loads(line) for line in path.read_text().split("\n")[:-1]]  # the last is empty, or torn
            kept = [row for row in kept if row["made_at"] <= resumed_at]
            path.write_text("".join(json.dumps(row) + "\n" for row in kept))
            self.rows = kept

    def fill(self, step: int) -> None:
        """Adds the rows needed until the refresh after `step` (and one batch more: the trainer fetches one ahead)."""
        need = (step + self.preset.refresh + 1) * self.preset.prompts - len(self.rows)
        rng = Random(f"rows/{self.seed}/{step}")
        sources = (
            (Model("policy", self.policy_at(step)), 3),
            (mixed_player(self.game), 1),
        )  # three own games to one of mixed play
        games = math.ceil(need / (4 * ROWS_A_TURN * self.game.max_turns))  # of each share, in a round
        fresh: list[Row] = []
        for _ in range(ROUNDS):
            if len(fresh) >= need:
                break
            for player, share in sources:
                seeds = rng.sample(TRAIN, share * games)
                episodes = play(self.game, seeds, dict.fromkeys(self.game.seats, player))
                fresh += rows_of(self.game, self.rubric, episodes, OTHERS)
        if len(fresh) < need:
            raise PreflightError(
                f"expected {need} decision points where a competent action earns more than idling or than the reply given, "
                f"found {len(fresh)}: under rubric {self.rubric.name} replies hardly matter; change its terms or weights"
            )
        rng.shuffle(fresh)
        new = [{"made_at": step, **row} for row in fresh[:need]]
        with open(self.path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in new)
        self.rows += new

    def dataset(self, steps: int) -> Dataset:
        """A dataset of steps x prompts indices, looked up when the trainer fetches them."""
        columns = ("prompt", "seed", "actions", "seat")
        indices = Dataset.from_dict({"row": list(range(steps * self.preset.prompts))})
        rows = self.rows  # not self: it holds the policy, which datasets would pickle with the function
        return indices.with_transform(lambda batch: {c: [rows[i][c] for i in batch["row"]] for c in columns})


def sample_groups(prompts: list, trainer: GRPOTrainer, batch: int) -> dict[str, list]:
    """TRL rollout function: the replies of a group share one reading of their prompt (its keys and values are kept), which
    costs a G-th of reading it for each. Prompts come repeated G times, neighbours alike; about `batch` replies are sampled
    at once."""
    tokenizer, size = trainer.processing_class, trainer.num_generations
    texts = tokenizer.apply_chat_template(prompts[::size], tokenize=False, add_generation_prompt=True)
    groups = tokenizer(texts, add_special_tokens=False)["input_ids"]
    at_once, replies = max(1, batch // size), []
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
        for start in range(0, len(groups), at_once):
            read = tokenizer.pad({"input_ids": groups[start : start + at_once]}, return_tensors="pt")
            ids, mask = (read[name].to(trainer.accelerator.device) for name in ("input_ids", "attention_mask"))
            places = (mask.cumsum(-1) - 1).clamp(min=0)
            cache = DynamicCache(config=trainer.model.config)
            model(
                input_ids=ids[:, :-1],
                attention_mask=mask[:, :-1],
                position_ids=places[:, :-1],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache.batch_repeat_interleave(size)
            ids, mask = (x.repeat_interleave(size, 0) for x in (ids, mask))
            out = model.generate(
                input_ids=ids, attention_mask=mask, past_key_values=cache, generation_config=trainer.generation_config
            )
            replies += [cut(row, trainer.eos_token_ids) for row in out[:, ids.shape[1] :].tolist()]
    return {"prompt_ids": [ids for ids in groups for _ in range(size)], "completion_ids": replies, "logprobs": None}


class GroupTrainer(GRPOTrainer):
    """TRL's trainer, except that a group's replies also share one reading of their prompt where their log-probabilities are
    computed: they follow it side by side, each blind to the others. The result is TRL's, up to rounding (tested)."""

    def _prepare_inputs(self, generation_batch):
        """As in TRL 1.14.2, except that replies which are learned from in parts are not shuffled before: groups stay whole. The
        shuffle is drawn all the same, so that the next step's luck does not depend on the number of parts."""
        parts = self.args.steps_per_generation
        if parts == 1:
            return super()._prepare_inputs(generation_batch)
        if self._step % parts == 0:
            scored = self._generate_and_score_completions(generation_batch)
            torch.randperm(len(scored["completion_ids"]))
            self._buffered_inputs = split_tensor_dict(scored, parts)
        return self._buffered_inputs[self._step % parts]

    def _full_logits_logps(self, model, input_ids, attention_mask, logits_to_keep, compute_entropy=False, **kwargs):
        """(log-probabilities, entropies or None, None) of the last `logits_to_keep` ids of each row, as in TRL 1.14.2."""
        size, kept = self.num_generations, logits_to_keep
        groups, prompt = len(input_ids) // size, input_ids.shape[1] - kept
        # The trainer has shuffled the replies: alike prompts together again, and at the end back.
        order = torch.unique(input_ids[:, :prompt], dim=0, return_inverse=True)[1].argsort(stable=True)
        input_ids, attention_mask = input_ids[order], attention_mask[order]
        replies, replies_mask = input_ids[:, prompt:], attention_mask[:, prompt:]
        read = attention_mask[::size, :prompt]
        ids = torch.cat([input_ids[::size, :prompt], replies.reshape(groups, -1)], 1)
        real = torch.cat([read, replies_mask.reshape(groups, -1)], 1).bool()
        with torch.device(ids.device):
            places = torch.cat(
                [(read.cumsum(1) - 1).clamp(min=0), read.sum(1, keepdim=True) + torch.arange(kept).repeat(size)], 1
            )
            reply = torch.cat([torch.zeros(prompt), 1 + torch.arange(size).repeat_interleave(kept)])  # 0: part of the prompt
            at = torch.arange(len(reply))
            seen = (at[:, None] >= at) & ((reply[:, None] == reply) | (reply == 0))
            seen = seen & real[:, None] | torch.eye(len(reply), dtype=torch.bool)
        logits = model(
            input_ids=ids, attention_mask=seen[:, None], position_ids=places, logits_to_keep=size * kept + 1, use_cache=False
        ).logits
        first = logits[:, :1].repeat_interleave(size, 0)  # the prompt's last id foretells each reply's first
        logits = torch.cat([first, logits[:, 1:].reshape(groups * size, kept, -1)[:, :-1]], 1)
        logps, entropies = selective_log_softmax_and_entropy(
            logits, replies, entropy_requires_grad=False, temperature=self.temperature, row_mask=replies_mask
        )
        back = order.argsort()
        return logps[back], entropies[back] if compute_entropy else None, None


def cut(ids: list[int], stops: Sequence[int]) -> list[int]:
    """`ids` up to and including the first stop id; models may have several, and one of Qwen's also pads."""
    at = next((at for at, one in enumerate(ids) if one in stops), len(ids))
    return ids[: at + 1]


def finite(name: str, values: list[float]) -> list[float]:
    """`values` of the term of that name. Raises ValueError when one is not finite: TRL would drop its whole group silently."""
    if not all(map(math.isfinite, values)):
        raise ValueError(f"term {name} gave a reward that is not finite; mend the term")
    return values


def reward_functions(game: Game, rubric: Rubric) -> list[Callable]:
    """One TRL reward function for each term, named after it; one judgement of each reply serves all of them."""
    latest: dict[str, Any] = {"completions": None, "judgements": []}

    def judgements(completions, seed, actions):
        if latest["completions"] is not completions:
            out = []
            replies = [completion[0]["content"] for completion in completions]
            at = 0
            while at < len(replies):  # neighbours with the same decision point are one group
                end = at
                while end < len(replies) and (seed[end], actions[end]) == (seed[at], actions[at]):
                    end += 1
                out += judge(game, seed[at], actions[at], replies[at:end])
                at = end
            latest.update(completions=completions, judgements=out)
        return latest["judgements"]

    def function(name: str) -> Callable:
        def reward(prompts, completions, seed, actions, **kwargs) -> list[float]:
            return finite(name, [TERMS[name].value(j) for j in judgements(completions, seed, actions)])

        reward.__name__ = name
        return reward

    return [function(name) for name in rubric.weights]


class Monitor(TrainerCallback):
    """Stops a run that cannot learn, with the reason; refreshes the rows, if there are any to refresh; reports."""

    PATIENCE = 10  # steps in a row without any difference in reward
    CHECK_AT = 3  # by this step the adapter must have moved

    def __init__(self, rows: Rows | None, progress: Callable[[list[dict]], None] | None):
        self.rows, self.progress, self.ties = rows, progress, 0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.before, self.begun_at = fingerprint(model), state.global_step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.begun_at + self.CHECK_AT and fingerprint(model) == self.before:
            raise RuntimeError("the adapter has not changed after the first steps: is the learning rate 0, or nothing trainable?")
        if self.rows and state.global_step % self.rows.preset.refresh == 0 and state.global_step < state.max_steps:
            self.rows.fill(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" not in logs:
            return
        if not math.isfinite(logs["reward"]):
            raise RuntimeError(f"the reward is {logs['reward']} at step {state.global_step}: mend the rubric's terms")
        self.ties = self.ties + 1 if logs["frac_reward_zero_std"] == 1 else 0
        if self.ties == self.PATIENCE:
            raise RuntimeError(
                f"{self.PATIENCE} steps in a row every group's replies earned the same: the reward no longer tells replies apart"
            )
        if self.progress and state.is_world_process_zero:
            self.progress(state.log_history)


def fingerprint(model) -> float:
    with torch.no_grad():
        return sum(p.double().abs().sum().item() for p in model.parameters() if p.requires_grad)


@dataclass
class Trained:
    """What training leaves behind: the model, ready to answer; TRL's log; why it stopped early, if it did."""

    model: Any
    tokenizer: Any
    history: list[dict]
    run: Path
    stopped: str | None


def settings(
    game: Game, preset: Preset, rubric: Rubric, run: Path, seed: int, steps: int, save_steps: int | None
) -> dict[str, Any]:
    """The keywords for GRPOConfig."""
    return dict(
        output_dir=str(run / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=preset.micro_batch // PartialState().num_processes,
        gradient_accumulation_steps=preset.accumulate,
        num_generations=preset.generations,
        learning_rate=preset.learning_rate,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="batch",
        reward_weights=list(rubric.weights.values()),
        max_completion_length=preset.max_new_tokens,
        temperature=preset.temperature,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        shuffle_dataset=False,
        save_steps=save_steps or max(1, min(50, steps // 10)),
        save_total_limit=2,
        use_vllm=preset.vllm,
        ddp_find_unused_parameters=False,
        **arguments(preset, seed),
    )


def config(keywords: dict[str, Any]) -> GRPOConfig:
    """Raises ValueError for a keyword that the installed GRPOConfig does not have: Unsloth's only warns of it."""
    if unknown := keywords.keys() - {field.name for field in fields(GRPOConfig)}:
        raise ValueError(f"expected keywords of this trl's GRPOConfig, got {', '.join(sorted(unknown))}: install the pinned trl")
    return GRPOConfig(**keywords)


def make_trainer(
    model, tokenizer, preset: Preset, args: GRPOConfig, reward_funcs, rows: Dataset, callbacks, kind=None, rollout_func=None
) -> GRPOTrainer:
    """TRL's trainer as a preset needs it at turn level or, for whole episodes, the `kind` of trainer given with its
    `rollout_func`. Raises RuntimeError when the trainer changed the batch."""
    batch = preset.micro_batch // PartialState().num_processes
    if kind is None:
        kind = GroupTrainer if preset.own_sampling else GRPOTrainer
        rollout_func = partial(sample_groups, batch=preset.batch) if preset.own_sampling else None
    trainer = kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=rows,
        callbacks=callbacks,
        rollout_func=rollout_func,
    )
    if trainer.args.per_device_train_batch_size != batch:  # Unsloth does so silently
        raise RuntimeError(
            f"expected batches of {batch}, the trainer made it {trainer.args.per_device_train_batch_size}: "
            "choose other prompts, generations or accumulate"
        )
    adapter_in_float32(model)
    trainer.remove_callback(PrinterCallback)
    return trainer


def finished(run: Path, checkpoint: Path, steps: int) -> bool:
    """Whether training came to its end: its last checkpoint is of the last step, and the log was written after the adapter."""
    return min(step_of(checkpoint), steps_done(run)) >= steps


def from_an_earlier_session(made_from: dict) -> Path | None:
    """An unfinished run with these settings among Kaggle's inputs."""
    for run in from_earlier_sessions("training.json", made_from):
        checkpoint = last_checkpoint(run / "checkpoints")
        if checkpoint and not finished(run, checkpoint, made_from["steps"]):
            return run
    return None


def begin(run: Path, made_from: dict[str, Any], resume: bool) -> Path | None:
    """Notes in the run folder what it is made from, and returns the checkpoint to go on from, if there is one: of an unfinished
    run, also of one among Kaggle's inputs; with `resume` of a finished one too. Raises ValueError when the folder holds a run
    with other settings."""
    note, steps = run / "training.json", made_from["steps"]
    if note.exists() and json.loads(note.read_text()) != made_from:
        raise ValueError(f"{run} holds a run with other settings ({note.name}): take those, or another run folder")
    if not note.exists() and (earlier := from_an_earlier_session(made_from)):
        print(f"taking up the run of an earlier session, {earlier}", flush=True)
        shutil.copytree(earlier, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns(note.name))
        write_json(note, made_from)  # last: without it, what a kill left of the copy is not gone on with
    checkpoint = last_checkpoint(run / "checkpoints") if note.exists() else None
    if checkpoint and finished(run, checkpoint, steps) and not resume:
        checkpoint = None
    if checkpoint:
        print(f"going on with the run in {run} from step {step_of(checkpoint)} of {steps}", flush=True)
    else:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    write_json(note, made_from)
    return checkpoint


def learn(trainer: GRPOTrainer, preset: Preset, run: Path, adapter: Path, checkpoint: Path | None) -> None:
    """Trains, makes the model ready to answer, and saves its adapter and run/history.json."""
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    ready(trainer.model, preset)
    once(save_adapter, trainer.model, preset, adapter)
    once(write_json, run / "history.json", trainer.state.log_history)


def train(
    game: Game,
    preset: Preset,
    rubric: Rubric,
    run: Path,
    seed: int = 0,
    steps: int | None = None,
    resume: bool = False,
    budget_s: float | None = None,
    save_steps: int | None = None,
    progress: Callable[[list[dict]], None] | None = None,
) -> Trained:
    """Trains an adapter, after a warm start where the preset has one, and saves it in run/adapter; checkpoints, rows and history
    lie beside it.

    A run that was killed or stopped is gone on with from its last checkpoint, and one line says so; a finished one begins
    afresh, or with `resume` is left as it is. budget_s: seconds within which training saves and stops cleanly. save_steps:
    steps between checkpoints (None: a tenth of all, at most 50). Raises ValueError when the folder holds a run with other
    settings or there is more than one process, PreflightError when the run cannot learn, TimeoutError when the time is over
    before the warm start is.
    """
    started = time.monotonic()
    if (processes := PartialState().num_processes) > 1:
        raise ValueError(f"expected one process for turn-level training, got {processes}: start it without a launcher")
    steps = steps or preset.steps
    made_from = {
        "game": game.name,
        "settings": settings_of(game),
        "preset": asdict(preset),
        "rubric": asdict(rubric),
        "seed": seed,
        "steps": steps,
    }
    checkpoint = begin(run, made_from, resume)
    base, tokenizer = load(preset)
    model = add_adapter(base, preset, seed)
    if preset.warmup_steps:
        warm_up(game, preset, model, tokenizer, run, seed, budget_s)
    generate = generator(model, tokenizer, preset, seed)
    resumed_at = step_of(checkpoint) if checkpoint else None

    def policy_at(step: int) -> Callable:
        return generator(model, tokenizer, preset, seed * 100_003 + step)

    rows = Rows(game, rubric, preset, seed, policy_at, run / "rows.jsonl", resumed_at)
    if not checkpoint:
        preflight(game, preset, rubric, rows.rows, model, tokenizer, generate)
    callbacks = [Monitor(rows, progress), Deadline(started, budget_s)]
    args = config(settings(game, preset, rubric, run, seed, steps, save_steps))
    trainer = make_trainer(model, tokenizer, preset, args, reward_functions(game, rubric), rows.dataset(steps), callbacks)
    learn(trainer, preset, run, run / "adapter", checkpoint)
    if not generate([rows.rows[0]["prompt"]])[0].strip():
        raise RuntimeError("the trained model answers with nothing: the run is broken")
    return Trained(model, tokenizer, trainer.state.log_history, run, callbacks[1].stopped)
