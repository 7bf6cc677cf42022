"""What all of TRL's trainers share here, supervised or not: keywords, a time budget, and what only the main process does."""

import time
from collections.abc import Callable
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from helpers.presets import Preset


def arguments(preset: Preset, seed: int) -> dict[str, Any]:
    """What every trainer is told: the keywords that depend on the hardware, and quiet ones."""
    return dict(
        lr_scheduler_type="cosine",
        warmup_steps=5,
        optim="adamw_torch_fused",
        adam_beta2=0.95,
        use_cpu=(preset.device, preset.dtype) == ("cpu", "bfloat16"),  # transformers wants it said
        fp16=preset.dtype == "float16",
        bf16=preset.dtype == "bfloat16",
        gradient_checkpointing=preset.checkpointing,
        seed=seed,
        data_seed=seed,
        logging_steps=1,
        report_to="none",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )


def once(function: Callable, *given):
    """What function(*given) returns in the main process, in all of them: what writes files must be called once, and what a clock
    decides must be decided alike."""
    [result] = broadcast_object_list([function(*given) if PartialState().is_main_process else None])
    return result


class Deadline(TrainerCallback):
    """Saves and stops before a time budget is exceeded; `stopped` then says so."""

    def __init__(self, started: float, budget_s: float | None):
        """started: when the budget began, by time.monotonic. None: no limit."""
        self.started, self.budget_s, self.stopped = started, budget_s, None

    def on_train_begin(self, args, state, control, **kwargs):
        self.begun_at, self.begun = state.global_step, time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        if self.budget_s is not None and state.global_step < state.max_steps and once(self.late, state.global_step):
            self.stopped = f"time budget of {self.budget_s:.0f} s: stopped at step {state.global_step}, run again to resume"
            control.should_training_stop = control.should_save = True

    def late(self, step: int) -> bool:
        """Whether one more step would exceed the budget."""
        now = time.monotonic()
        step_s = (now - self.begun) / (step - self.begun_at)
        return now - self.started + step_s > self.budget_s
