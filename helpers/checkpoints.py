"""Where a training that was cut off goes on: the checkpoints of TRL's trainers, also those of an earlier session on Kaggle."""

import json
from collections.abc import Mapping
from pathlib import Path

from helpers.machine import INPUTS


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint: the trainer's state is written last, so one without it was cut off by a kill."""
    whole = [path for path in folder.glob("checkpoint-*") if is_json(path / "trainer_state.json")]
    return max(whole, key=step_of, default=None)


def is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return False
    return True


def from_earlier_sessions(note: str, made_from: Mapping) -> list[Path]:
    """The folders among Kaggle's inputs, where an earlier session's output can be attached, whose file `note` says just this."""
    return [path.parent for path in sorted(INPUTS.rglob(note)) if is_json(path) and json.loads(path.read_text()) == made_from]
