"""What all trainers share: the time budget."""

import time
from types import SimpleNamespace

import pytest

from helpers import trainers


@pytest.mark.parametrize(("spent", "stops"), [(50.0, False), (70.0, True)])
def test_a_time_budget_is_kept_not_passed(monkeypatch, spent, stops):
    deadline, state = trainers.Deadline(time.monotonic(), 120), SimpleNamespace(global_step=0, max_steps=100)
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    deadline.on_train_begin(None, state, control)
    state.global_step = 1  # took `spent`, and so will the next
    monkeypatch.setattr(trainers.time, "monotonic", lambda: deadline.started + spent)
    deadline.on_step_end(None, state, control)
    assert (control.should_training_stop, control.should_save, bool(deadline.stopped)) == (stops, stops, stops)


def test_the_last_step_is_not_called_an_early_stop():
    deadline, state = trainers.Deadline(time.monotonic(), 0), SimpleNamespace(global_step=0, max_steps=1)
    deadline.on_train_begin(None, state, None)
    state.global_step = 1
    deadline.on_step_end(None, state, None)
    assert deadline.stopped is None
