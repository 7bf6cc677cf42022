"""A warm start for a model that hardly ever writes a legal action: supervised steps on scripted play, before GRPO goes on with
the same adapter. TRL's SFTTrainer; only the replies are learned, up to and including the stop token, never the prompts.

What it watches are positions of mixed play (each move competent or random), and at each one action: in three of four cases
the competent player's, else a random legal one. So a warm-started model has seen good play; it is no untrained base, and is
a row of its own in the tables of notebook 05.
"""

import json
import shutil
import time
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from random import Random

import torch
from datasets import Dataset, disable_progress_bars
from transformers import PrinterCallback
from transformers.modeling_layers import GradientCheckpointingLayer
from trl import SFTConfig, SFTTrainer

from helpers.checkpoints import from_earlier_sessions, last_checkpoint, step_of
from helpers.evaluate import write_json
from helpers.game import Game
from helpers.models import adapter_in_float32, ready
from helpers.players import competent, mixed_player
from helpers.presets import Preset
from helpers.rollout import TRAIN, play, prompts_of, settings_of
from helpers.saving import save_adapter
from helpers.trainers import Deadline, arguments

EXAMPLES, AT_ONCE = 8, 4  # examples a step, and how many of them are read at once
RATE = 2e-3  # peak learning rate
POSITIONS = 4  # seen for each one that is learned from
EXPERT = 0.75  # share of the competent player's actions
# Fields of a preset that change GRPO only.
NOT_USED = ("steps", "prompts", "generations", "learning_rate", "refresh", "batch", "temperature", "accumulate", "vllm")
NOTE = "made_from.json"  # in the warm start's folder; no run's note, or it would be taken for a run


def examples(game: Game, count: int, seed: int) -> list[dict]:
    """Prompts and completions (messages) of scripted play on TRAIN seeds, in random order. Half of them are as they come; in the
    other half the kinds of action that the competent player takes come by turns while they last, because the rare ones, such as
    building, decide a game."""
    expert, rng = competent(game), Random(f"warmup/{game.name}/{seed}")
    found, kinds = [], {}
    mixed = dict.fromkeys(game.seats, mixed_player(game))
    while sum(map(len, kinds.values())) < POSITIONS * count:
        [episode] = play(game, [rng.choice(TRAIN)], mixed)
        state = game.deal(episode.seed)
        for turn, prompt in zip(episode.turns, prompts_of(game, episode), strict=True):
            view = game.view(state, turn.seat)
            best = expert(view, rng)
            action = best if rng.random() < EXPERT else game.sample(view, rng)
            reply = [{"role": "assistant", "content": str(action)}]
            rows = kinds.setdefault(type(best), []) if len(found) >= count // 2 else found
            rows.append({"prompt": list(prompt), "completion": reply})
            state = game.step(state, game.parse(turn.action))
    found += [row for rows in zip_longest(*kinds.values()) for row in rows if row]
    found = found[:count]
    rng.shuffle(found)
    return found


def warm_up(game: Game, preset: Preset, model, tokenizer, run: Path, seed: int = 0, budget_s: float | None = None) -> float:
    """Trains the adapter of `model` for `preset.warmup_steps` steps and saves it in run/warmup/adapter, or gives it the weights
    of a warm start that was finished before; the seconds that this took. The model is ready to answer afterwards.

    One that was killed or stopped, here or in an earlier session on Kaggle, is gone on with from its last checkpoint. The folder
    can be copied to a run with other settings of GRPO. Raises ValueError when it holds a warm start with other settings, and
    TimeoutError, having saved, before it takes longer than `budget_s` seconds.
    """
    start, folder = time.monotonic(), run / "warmup"
    note, adapter, history = folder / NOTE, folder / "adapter", folder / "history.json"
    used = {name: value for name, value in asdict(preset).items() if name not in NOT_USED}
    made_from = {"game": game.name, "settings": settings_of(game), "preset": used, "seed": seed}
    if note.exists() and json.loads(note.read_text()) != made_from:
        raise ValueError(f"{folder} holds a warm start with other settings ({note.name}): take those, or another run folder")
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)  # nobody knows what made it
        for earlier in from_earlier_sessions(NOTE, made_from)[:1]:
            print(f"taking up the warm start of an earlier session, {earlier}", flush=True)
            shutil.copytree(earlier, folder, ignore=shutil.ignore_patterns(NOTE))
    checkpoint = last_checkpoint(folder / "checkpoints")
    write_json(note, made_from)  # after the copy: a torn one is made again
    if history.exists():  # which is written last
        model.load_adapter(str(adapter), "default", is_trainable=True)
        return time.monotonic() - start
    if checkpoint:
        print(f"going on with the warm start in {folder} from step {step_of(checkpoint)} of {preset.warmup_steps}", flush=True)
    disable_progress_bars()
    settings = SFTConfig(
        output_dir=str(folder / "checkpoints"),
        max_steps=preset.warmup_steps,
        per_device_train_batch_size=AT_ONCE,
        gradient_accumulation_steps=EXAMPLES // AT_ONCE,
        learning_rate=RATE,
        max_length=preset.max_tokens,
        completion_only_loss=True,
        save_steps=max(1, min(50, preset.warmup_steps // 10)),
        save_total_limit=2,
        **arguments(preset, seed),
    )
    rows = Dataset.from_list(examples(game, preset.warmup_steps * EXAMPLES, seed))
    deadline = Deadline(start, budget_s)
    trainer = SFTTrainer(model=model, processing_class=tokenizer, args=settings, train_dataset=rows, callbacks=[deadline])
    adapter_in_float32(model)
    trainer.remove_callback(PrinterCallback)
    with compiled(model, preset):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if deadline.stopped:
        raise TimeoutError(f"the warm start needs more than its {deadline.stopped}")
    ready(model, preset)
    save_adapter(model, preset, adapter)
    write_json(history, trainer.state.log_history)
    return time.monotonic() - start


@contextmanager
def compiled(model, preset: Preset):
    """Meanwhile the model's layers are compiled, where there is a C++ compiler: a step takes half the time on a CPU."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    layers = layers if preset.device == "cpu" and shutil.which("g++") else []
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    yield
    for layer in layers:
        del layer.forward
