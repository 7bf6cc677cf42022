"""`helpers.run` on stub notebooks: what it refuses, what it leaves behind, what it prints."""

import json
import os
import sys

import nbformat
import pytest

from helpers import run
from helpers.run import RunError, main

PARAMETERS = 'GAME = "market"\nPRESET = "tiny"\nSEED = 0\nRUN = "runs/latest"'


def interval(value):
    return {"value": value, "low": value - 1, "high": value + 1, "n": 200}


def row(payoff):
    return {"table payoff": interval(payoff), "projects built": interval(1), "invalid replies": interval(0), "turns": interval(9)}


SUMMARY = {
    "seconds": 0,
    "optimum": 20,
    "rows": {"random": row(2.0), "untrained base": row(3.0), "trained": row(6.0)},
    "comparisons": {
        "trained_vs_random": {**interval(4.0), "percent": interval(200.0)},
        "trained_vs_base": {**interval(3.0), "percent": None},
    },
    "share_of_attainable": {"value": 0.22, "low": 0.2, "high": 0.25},
}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty folder with notebooks/, made the working folder; returns a function that writes a stub notebook into it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # HEADLESS stays inside the test
    (tmp_path / "notebooks").mkdir()

    def write(name, *cells, parameters=PARAMETERS):
        first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        notebook = nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, cells)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, tmp_path / "notebooks" / name)

    return write


def test_a_misspelt_parameter_is_refused_with_the_known_names(course):
    course("01_stub.ipynb")
    with pytest.raises(RunError, match="GAME, PRESET, SEED, RUN, got 'STEP'"):
        main(["-p", "STEP", "20"])


def test_a_value_of_the_wrong_type_is_refused(course):
    course("01_stub.ipynb")
    with pytest.raises(RunError, match="expected SEED to be a whole number, got 'one'"):
        main(["-p", "SEED", "one"])
    course("04_stub.ipynb", parameters=PARAMETERS + "\nRESUME = False")
    with pytest.raises(RunError, match="expected RESUME to be True or False, got 'yes'"):
        main(["-p", "RESUME", "yes"])


def test_text_that_looks_like_python_stays_text_where_the_default_is_text(course):
    known = {"notebook": {"RUBRIC": "default", "STEPS": 0, "RESUME": False}}
    given = {"RUBRIC": '{"progress": 1}', "STEPS": "20", "RESUME": "True"}
    assert run.typed(known, given) == {"RUBRIC": '{"progress": 1}', "STEPS": 20, "RESUME": True}


@pytest.mark.parametrize("name", ["GAME", "PRESET"])
def test_an_unknown_game_or_preset_is_refused_before_anything_is_written(course, tmp_path, name):
    course("01_stub.ipynb")
    with pytest.raises(RunError, match=f"expected {name} to be one of .*, got 'poker'"):
        main(["-p", name, "poker"])
    assert not (tmp_path / "runs").exists()


def test_fields_of_the_preset_are_changed_in_every_notebook_and_a_bad_change_is_refused(course, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "report", lambda folder: "")
    course(
        "05_stub.ipynb",
        "open(f'{RUN}/summary.json', 'w').write('{}'); open(f'{RUN}/got', 'w').write(f'{PRESET} {OVERRIDES}')",
        parameters=PARAMETERS + '\nOVERRIDES = ""',
    )
    with pytest.raises(RunError, match="expected steps to be valid .*got 'many'"):
        main(["-p", "OVERRIDES", "steps=many"])
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr("helpers.presets.first_gpu", lambda: None)
    main(["-p", "PRESET", "auto", "-p", "OVERRIDES", "steps=9, refresh=3"])
    assert (tmp_path / "runs" / "latest" / "got").read_text() == "tiny steps=9, refresh=3"
    settings = json.loads((tmp_path / "runs" / "latest" / "made_from.json").read_text())["settings"]
    assert (settings["PRESET"], settings["OVERRIDES"]) == ("tiny", "steps=9, refresh=3")


@pytest.mark.parametrize(("given", "offline"), [([], "1"), (["-p", "ADAPTER", "a/b"], None), (["-p", "HUB_REPO", "a/b"], None)])
def test_the_embedded_model_needs_no_hub_unless_an_adapter_comes_from_there_or_goes_there(
    course, tmp_path, monkeypatch, given, offline
):
    monkeypatch.setattr(run, "report", lambda folder: "")
    monkeypatch.delitem(os.environ, "HF_HUB_OFFLINE", raising=False)
    course(
        "05_stub.ipynb",
        "import os\nfrom pathlib import Path",
        "Path(RUN, 'summary.json').write_text('{}')\nPath(RUN, 'got').write_text(str(os.environ.get('HF_HUB_OFFLINE')))",
        parameters=PARAMETERS + '\nADAPTER = ""\nHUB_REPO = ""',
    )
    main(given)
    assert (tmp_path / "runs" / "latest" / "got").read_text() == str(offline)


def test_a_notebook_without_a_parameters_cell_is_refused(course):
    course("01_stub.ipynb", parameters="")
    with pytest.raises(RunError, match=r"expected a cell tagged `parameters` in notebooks/01_stub.ipynb"):
        main([])


def test_a_run_executes_the_notebooks_in_order_in_this_environment_and_prints_the_results(course, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "HEARTBEAT_S", 0.05)
    for other in ("user", "path"):  # kernels of the same name that a user may have must not be taken
        spec = tmp_path / other / "kernels" / "python3"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text('{"argv": ["false"], "display_name": "other", "language": "python"}')
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "path"))
    course(
        "01_first.ipynb",
        "import os, sys, time\nprint('step 3 of 9')\ntime.sleep(0.5)",
        "open(f'{RUN}/first', 'w').write(' '.join([sys.executable, os.environ['PARLEY_HEADLESS'], str(SEED)]))",
    )
    course(
        "05_last.ipynb", f"import json\nassert open(f'{{RUN}}/first')\njson.dump({SUMMARY!r}, open(f'{{RUN}}/summary.json', 'w'))"
    )
    course("06_other.ipynb", "1 / 0")  # is not part of the run

    main(["-p", "SEED", "7"])

    latest = tmp_path / "runs" / "latest"
    assert (latest / "first").read_text() == f"{sys.executable} 1 7"
    assert sorted(p.name for p in (latest / "notebooks").iterdir()) == [
        "01_first.html",
        "01_first.ipynb",
        "05_last.html",
        "05_last.ipynb",
    ]
    made_from = json.loads((latest / "made_from.json").read_text())
    assert made_from["settings"] == {"GAME": "market", "PRESET": "tiny", "SEED": 7}
    assert {"python", "torch", "trl"} <= made_from["versions"].keys()
    assert json.loads((latest / "summary.json").read_text())["seconds"] == round(made_from["seconds"], 1) > 0
    printed = capsys.readouterr().out
    assert "01_first: cell 3 of 4" in printed and "step 3 of 9" in printed
    assert "6.00 [5.00, 7.00]" in printed and "20.00" in printed
    assert "trained - random: +4.00 [+3.00, +5.00] table payoff, +200 % [+199, +201]" in printed
    assert "share of the attainable: 0.22 [0.20, 0.25]" in printed
    assert str(tmp_path) not in (latest / "notebooks" / "05_last.ipynb").read_text()  # no machine path

    with pytest.raises(RunError, match="not {'GAME': 'market', 'PRESET': 'tiny', 'SEED': 8}"):
        course("04_train.ipynb", "assert RESUME", parameters=PARAMETERS + "\nRESUME = False")
        main(["-p", "SEED", "8", "-p", "RESUME", "True"])
    main(["-p", "SEED", "7", "-p", "RESUME", "True"])
    printed = capsys.readouterr().out
    assert "01_first was done before" in printed and "04_train done" in printed


def test_training_that_ran_out_of_time_is_gone_on_with_and_all_that_follows_is_made_anew(course, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "report", lambda folder: "")
    count = "from pathlib import Path\nwith open(f'{{RUN}}/times-{}', 'a') as file: file.write('x')"
    train = """import json
steps = 9 if RESUME else 4  # the second time it comes to its end
Path(RUN, "training.json").write_text(json.dumps({"steps": 9}))
Path(RUN, "history.json").write_text(json.dumps([{"step": steps}, {"step": steps, "train_runtime": 1.0}]))"""
    more = PARAMETERS + "\nRESUME = False\nMINUTES = 0"
    course("01_first.ipynb", count.format(1))
    course("04_train.ipynb", count.format(4), train, parameters=more)
    course("05_last.ipynb", count.format(5), "Path(RUN, 'summary.json').write_text('{}')")
    latest = tmp_path / "runs" / "latest"

    def times():
        return [len((latest / f"times-{n}").read_text()) for n in (1, 4, 5)]

    main(["-p", "MINUTES", "1"])
    assert times() == [1, 1, 1]
    assert capsys.readouterr().out.splitlines()[-1] == "training stopped at step 4 of 9: go on with RESUME=1"
    course("05_last.ipynb", "1 / 0")
    with pytest.raises(RunError, match="05_last failed"):
        main(["-p", "RESUME", "True"])  # the time for training may be another
    assert times() == [1, 2, 1]
    course("05_last.ipynb", count.format(5), "Path(RUN, 'summary.json').write_text('{}')")
    main(["-p", "RESUME", "True"])
    assert times() == [1, 2, 2]  # what was made of the unfinished training is not taken for the result
    main(["-p", "RESUME", "True"])
    assert times() == [1, 2, 2] and "training stopped" not in capsys.readouterr().out


def test_the_first_failing_notebook_stops_the_run_and_says_which_cell(course, tmp_path):
    course("01_bad.ipynb", "x = 1", "y = 0\nx / y")
    course("02_never.ipynb")
    with pytest.raises(RunError) as stopped:
        main([])
    assert "01_bad failed in cell 4 after 0:" in str(stopped.value)
    assert "ZeroDivisionError: division by zero\n    | y = 0\n    | x / y\n" in str(stopped.value)
    assert [p.name for p in (tmp_path / "runs" / "latest" / "notebooks").iterdir()] == ["01_bad.ipynb"]


def test_a_notebook_that_ends_before_its_last_cell_is_a_failure(course):
    course("01_quits.ipynb", "import sys\nsys.exit(0)", "assert False")
    with pytest.raises(RunError, match="01_quits failed in cell 3 .* it stopped before its last cell"):
        main([])


def test_an_earlier_run_is_moved_aside_with_all_that_it_holds(tmp_path, capsys):
    folder = tmp_path / "runs" / "latest"
    run.open_run(folder, {"SEED": 0}, resume=False)
    (folder / "adapter").write_text("precious")
    run.open_run(folder, {"SEED": 1}, resume=False)
    aside = next(p for p in folder.parent.iterdir() if p.name.startswith("latest-"))
    assert (aside / "adapter").read_text() == "precious"
    assert not (folder / "adapter").exists()
    assert str(aside) in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(RunError, match="is not a run"):
        run.open_run(tmp_path / "photos", {}, resume=False)
    assert (tmp_path / "photos" / "cat.png").exists()


def test_resuming_needs_a_run_to_go_on_with(tmp_path):
    with pytest.raises(RunError, match="no run to go on with"):
        run.open_run(tmp_path / "runs" / "latest", {}, resume=True)


def test_two_runs_never_write_one_folder(tmp_path):
    with run.claimed(tmp_path / "runs" / "latest"):
        with pytest.raises(RunError, match="another run is writing"), run.claimed(tmp_path / "runs" / "latest"):
            pass
        with run.claimed(tmp_path / "runs" / "other"):
            pass


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write into .*: choose another folder"), run.claimed(tmp_path / "file" / "latest"):
        pass
