"""Notebooks 01-05: one structure, one set-up cell, stored executed and clean, and they run (nbval on the defaults, papermill)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

from helpers import GAMES
from helpers.games.bargaining import Bargaining
from helpers.players import FLOORS, SCRIPTED

REPO = Path(__file__).parent.parent
NOTEBOOKS = ("01_environment_setup", "02_random_baseline", "03_reward_design", "04_grpo_training", "05_evaluation")
PARAMETERS = {"GAME": '"market"', "PRESET": '"auto"', "SEED": "0", "RUN": '"runs/latest"', "OVERRIDES": '""'}  # the defaults
SMALL = {"EPISODES": 4, "STEPS": 2}  # for those notebooks that have them
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|Users|usr|opt|var|content|kaggle)/|\b[A-Z]:\\")
PRESENT = [name for name in NOTEBOOKS if (REPO / "notebooks" / f"{name}.ipynb").exists()]
each_notebook = pytest.mark.parametrize("name", PRESENT)


def path_of(name: str) -> Path:
    return REPO / "notebooks" / f"{name}.ipynb"


def load(name: str):
    return nbformat.read(path_of(name), as_version=4)


def tagged(notebook) -> int:
    """Where the cell tagged `parameters` is."""
    [place] = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    return place


def setup(notebook) -> int:
    """Where the set-up cell is: the first code cell after the parameters."""
    start = tagged(notebook) + 1
    return next(i for i, cell in enumerate(notebook.cells[start:], start) if cell.cell_type == "code")


def texts(notebook):
    """All text in a notebook: sources and outputs, without images."""
    for cell in notebook.cells:
        yield cell.source
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield from (str(data) for kind, data in output.get("data", {}).items() if not kind.startswith("image/"))


def test_the_five_notebooks_exist_and_no_other_takes_their_numbers():
    assert sorted(path.stem for path in (REPO / "notebooks").glob("0[1-5]_*.ipynb")) == list(NOTEBOOKS)


@each_notebook
def test_a_notebook_opens_with_title_claim_needs_and_badges(name):
    first = load(name).cells[0]
    title, claim, needs = first.source.split("\n\n")[:3]
    assert first.cell_type == "markdown" and title.startswith(f"# {name[:2]} ") and claim.endswith(".")
    assert "**Needs:**" in needs and "**Takes** " in needs
    place = f"github/parley-authors/parley/blob/main/notebooks/{name}.ipynb"
    assert f"https://colab.research.google.com/{place}" in first.source
    assert f"https://www.kaggle.com/notebooks/welcome?src=https://{place.replace('github', 'github.com', 1)}" in first.source


@each_notebook
def test_a_notebook_has_the_shared_parameters_and_picks_its_preset_by_the_hardware(name):
    found = {key: info["default"] for key, info in papermill.inspect_notebook(str(path_of(name))).items()}
    assert PARAMETERS.items() <= found.items()


@each_notebook
def test_the_set_up_cell_is_the_same_in_every_notebook(name):
    first, this = load(PRESENT[0]), load(name)
    assert this.cells[setup(this)].source == first.cells[setup(first)].source


@each_notebook
def test_cells_are_few_and_short(name):
    notebook = load(name)
    assert len(notebook.cells) - setup(notebook) - 1 <= 30
    for i, cell in enumerate(notebook.cells):  # the set-up cell has more to do, before helpers/ is there to do it
        assert cell.cell_type == "markdown" or len(cell.source.splitlines()) < (26 if i == setup(notebook) else 20), cell.source


@each_notebook
def test_a_notebook_ends_with_what_we_saw_and_one_exercise(name):
    last = load(name).cells[-1]
    assert last.cell_type == "markdown" and "## What we saw" in last.source
    assert sum(cell.source.count("**Exercise.**") for cell in load(name).cells) == last.source.count("**Exercise.**") == 1


@each_notebook
def test_a_notebook_is_stored_executed_from_top_to_bottom_without_an_error(name):
    code = [cell for cell in load(name).cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]  # a gap is where papermill's cell with the parameters was dropped
    assert counts == sorted(set(counts)) and counts[0] == 1
    assert not [
        output for cell in code for output in cell.outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]


@each_notebook
def test_a_stored_notebook_is_small_and_carries_no_widget_state_timing_or_machine_path(name):
    notebook = load(name)
    assert path_of(name).stat().st_size < 1_000_000
    assert notebook.metadata.kernelspec.name == "python3" and "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert not {"execution", "papermill"} & set(cell.metadata)
        assert not [
            output for output in cell.get("outputs", []) if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
        ]
    assert [found[0] for text in texts(notebook) if (found := ABSOLUTE.search(text))] == []


@pytest.mark.parametrize(
    "parameter, expected",
    [
        ({"GAME": "chess"}, "expected GAME to be one of market"),
        ({"PRESET": "huge"}, "expected PRESET to be one of tiny"),
        ({"OVERRIDES": "learning=1"}, "expected OVERRIDES as"),
    ],
)
def test_an_unknown_game_preset_or_field_is_a_clear_error_of_the_set_up_cell(parameter, expected):
    notebook = load(PRESENT[0])
    values = {"GAME": "market", "PRESET": "tiny", "SEED": 0, "RUN": "runs/latest", "OVERRIDES": "", **parameter}
    code = "\n".join(f"{name} = {value!r}" for name, value in values.items()) + "\n" + notebook.cells[setup(notebook)].source
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO / "notebooks", capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ValueError: {expected}" in done.stderr and repr(*parameter.values()) in done.stderr


@pytest.fixture
def copied(tmp_path):
    """A copy of what notebooks need, so that default parameters write into no run of the person who tests."""
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for folder in ("helpers", "notebooks"):
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(REPO / "requirements-gpu.txt", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESENT if not name.startswith("04")])
def test_a_notebook_run_on_its_defaults_gives_the_stored_output_where_that_is_fixed(copied, name):
    if name.startswith("05"):  # two models in 200 episodes take minutes, and nothing that is compared depends on their number
        path = copied / "notebooks" / f"{name}.ipynb"
        path.write_text(path.read_text().replace("EPISODES = 200", "EPISODES = 8"))
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "-p", "no:cacheprovider", f"notebooks/{name}.ipynb"]
    # Without PARLEY_HEADLESS, so that the reward lab is built with its widgets.
    env = {key: value for key, value in os.environ.items() if key != "PARLEY_HEADLESS"} | {"JUPYTER_PREFER_ENV_PATH": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": ""}  # the stored outputs are those of the preset for a CPU
    done = subprocess.run(command, cwd=copied, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@each_notebook
def test_the_code_after_the_set_up_names_no_game_and_none_of_its_players_and_actions(name):
    """What differs between games stands in tables of helpers/, by the game's name."""
    notebook = load(name)
    games = {game.name: game for game in (*GAMES.values(), Bargaining())}
    named = [*games, *FLOORS.values(), *(name for players in SCRIPTED.values() for name in players if name != "pass")]
    counted = {figure for game in games.values() for figure in game.counts(game.deal(0))} - {"deals"}  # every game is dealt
    words = [*named, *counted, *(verb for game in games.values() for verb in game.verbs if verb != "pass"), "pass("]
    for cell in notebook.cells[setup(notebook) + 1 :]:
        if cell.cell_type == "code":
            assert [word for word in words if re.search(rf"(?<!\w){re.escape(word)}", cell.source)] == [], cell.source


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
@each_notebook
def test_papermill_runs_a_notebook_alone_with_small_parameters(tmp_path, monkeypatch, name, game):
    monkeypatch.setenv("PARLEY_HEADLESS", "1")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    known = papermill.inspect_notebook(str(path_of(name)))
    parameters = {"GAME": game, "PRESET": "tiny", "SEED": 1, "RUN": str(tmp_path / "run")}
    parameters |= {key: value for key, value in SMALL.items() if key in known}
    done = papermill.execute_notebook(
        str(path_of(name)), str(tmp_path / "done.ipynb"), parameters, kernel_name="python3", cwd=str(REPO), progress_bar=False
    )
    assert done.metadata.papermill.exception is None
    assert any(text.startswith(f"game {game}, preset tiny, seed 1") for text in texts(done))  # what the set-up cell prints
