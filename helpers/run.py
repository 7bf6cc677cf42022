"""Notebooks 01-05 headless, from one command: `make run`, which is `python -m helpers.run` at the top of the repository.

Papermill runs a notebook and exits 0 even when a parameter is misspelt, so everything is checked before the first kernel starts.
"""

import argparse
import ast
import fcntl
import importlib.metadata
import io
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import papermill
from nbclient.exceptions import DeadKernelError
from nbconvert import HTMLExporter
from traitlets.config import Config

from helpers import game_named
from helpers.evaluate import commit, steps_done, table, write_json
from helpers.presets import named

NOTEBOOKS = "notebooks/0[1-5]_*.ipynb"
DEFAULTS = {"GAME": "market", "PRESET": "tiny", "SEED": "0", "RUN": "runs/latest"}
VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy", "scipy", "pandas")
SHOWN = ("table payoff", "projects built", "trades", "deals", "outside the zone", "invalid replies", "n")  # where there are such
HEARTBEAT_S = 20
HEADLESS = {
    "PARLEY_HEADLESS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The kernel "python3" must be this environment's: neither the user's own spec of that name nor one on a path comes first.
    "JUPYTER_PREFER_ENV_PATH": "1",
    "JUPYTER_PATH": "",
}
QUIET_KERNEL = Config(KernelManager={"transport_encryption": "auto"})  # without it each kernel warns on the terminal

Parameters = dict[str, object]


class RunError(Exception):
    """What stops a run, as a message for the person who started it."""


def parameters_of(notebooks: Sequence[Path]) -> dict[Path, Parameters]:
    """Each notebook's parameters with their default values. Raises ValueError for a notebook without a parameters cell."""
    known = {}
    for notebook in notebooks:
        found = papermill.inspect_notebook(str(notebook))
        if not found:
            raise ValueError(f"expected a cell tagged `parameters` in {notebook}, found none")
        known[notebook] = {name: ast.literal_eval(info["default"]) for name, info in found.items()}
    return known


def typed(known: Mapping[Path, Parameters], given: Mapping[str, str]) -> Parameters:
    """The given texts as values of their defaults' types. Raises ValueError for a name that no notebook knows or a bad value."""
    defaults = {name: value for parameters in known.values() for name, value in parameters.items()}
    values: Parameters = {}
    for name, text in given.items():
        if name not in defaults:
            raise ValueError(f"expected a parameter among {', '.join(defaults)}, got {name!r}")
        kind = type(defaults[name])
        try:
            values[name] = {"True": True, "False": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            expected = {bool: "True or False", int: "a whole number", float: "a number"}[kind]
            raise ValueError(f"expected {name} to be {expected}, got {text!r}") from None
    return values


@contextmanager
def claimed(run: Path):
    """Holds the run folder's lock file, so that two runs never write one folder. Raises RunError when it can not."""
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        lock = open(run.parent / f".{run.name}.lock", "w")  # noqa: SIM115
    except OSError as error:
        raise RunError(f"cannot write into {run.parent} ({error.strerror}): choose another folder with RUN=...") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another run is writing {run}: wait for it, or choose another folder with RUN=...") from None
        yield


def open_run(run: Path, settings: Mapping[str, object], resume: bool) -> dict:
    """Makes the run folder ready and returns what it was made from, which made_from.json in it holds.

    An older run is moved aside, never overwritten; with `resume` it is gone on with. Raises RunError when its settings differ
    then, and for a folder that is no run.
    """
    note = run / "made_from.json"
    if resume:
        if not note.exists():
            raise RunError(f"there is no run to go on with in {run}: leave out RESUME")
        made_from = json.loads(note.read_text())
        if made_from["settings"] != settings:
            raise RunError(
                f"{run} was made from {made_from['settings']}, not {settings}: give those settings, or leave out RESUME"
            )
        return made_from
    if run.exists() and any(run.iterdir()):
        if not note.exists() and "runs" not in run.parts:
            raise RunError(f"{run} exists and is not a run: choose another folder with RUN=...")
        aside = run.with_name(f"{run.name}-{datetime.now():%Y%m%d-%H%M%S}")
        run.rename(aside)
        print(f"moved the earlier {run} to {aside}")
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in VERSIONS}}
    made_from = {"settings": dict(settings), "commit": commit(), "versions": versions, "seconds": 0.0}
    write_json(note, made_from)
    return made_from


def unfinished(run: Path) -> str:
    """How far training got when its time ran out, such as "step 4 of 9"; empty when it came to its end or never began."""
    if not (done := steps_done(run)):
        return ""
    steps = json.loads((run / "training.json").read_text())["steps"]
    return f"step {done} of {steps}" if done < steps else ""


def clock(seconds: float) -> str:
    """12:34 for minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def heartbeat(line: Callable[[], str]):
    """Prints line() every HEARTBEAT_S seconds while the body runs."""
    done = threading.Event()

    def beat():
        while not done.wait(HEARTBEAT_S):
            print(line(), flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_notebook(notebook: Path, out: Path, parameters: Parameters) -> None:
    """Runs one notebook into the folder `out` and writes its HTML beside it. Raises RunError naming the cell that failed."""
    executed, said, start, cell_number = out / notebook.name, io.StringIO(), time.monotonic(), 0

    def count(cell, cell_index):
        nonlocal cell_number
        cell_number = cell_index + 1

    def progress() -> str:
        latest = "".join(f", {line[:80]}" for line in said.getvalue().strip().splitlines()[-1:])
        return f"  {notebook.stem}: cell {cell_number} of {cells}, {clock(time.monotonic() - start)}{latest}"

    def failed(what: str, source: str = "") -> RunError:
        cell = "".join(f"\n    | {line}" for line in source.splitlines()[:12])
        took = clock(time.monotonic() - start)
        return RunError(f"{notebook.stem} failed in cell {cell_number} after {took}: {what}{cell}\n    so far: {executed}")

    cells = len(json.loads(notebook.read_text(encoding="utf-8"))["cells"]) + 1  # papermill adds one with the parameters
    try:
        with heartbeat(progress):
            done = papermill.execute_notebook(
                str(notebook),
                str(executed),
                parameters,
                kernel_name="python3",
                progress_bar=False,
                stdout_file=said,
                on_cell_start=count,
                config=QUIET_KERNEL,
            )
    except papermill.PapermillExecutionError as error:
        raise failed(f"{error.ename}: {error.evalue[:500]}", error.source) from error
    except DeadKernelError as error:
        raise failed("the kernel died (most often: out of memory; close other programs and go on with RESUME=1)") from error
    if any(cell.metadata.papermill.status != "completed" for cell in done.cells):  # sys.exit(0) in a cell skips the rest silently
        raise failed("it stopped before its last cell")
    html, _ = HTMLExporter().from_filename(str(executed))
    executed.with_suffix(".html").write_text(html, encoding="utf-8")
    print(f"{notebook.stem} done in {clock(time.monotonic() - start)}", flush=True)


def report(run: Path) -> str:
    """The result table and comparisons of run/summary.json as text, and where to look for more."""
    summary = json.loads((run / "summary.json").read_text())
    found = table(summary["rows"], summary["optimum"])
    lines = ["", found[[name for name in SHOWN if name in found]].to_string(), ""]
    for name, label in (("trained_vs_random", "trained - random"), ("trained_vs_base", "trained - untrained base")):
        x = summary["comparisons"][name]
        percent = "{value:+.0f} % [{low:+.0f}, {high:+.0f}]".format(**x["percent"]) if x["percent"] else "no percentage"
        lines.append("{}: {value:+.2f} [{low:+.2f}, {high:+.2f}] table payoff, {}".format(label, percent, **x))
    lines.append("share of the attainable: {value:.2f} [{low:.2f}, {high:.2f}]".format(**summary["share_of_attainable"]))
    lines.append("in brackets: 95 % intervals over {n} held-out seeds".format(**summary["rows"]["trained"]["table payoff"]))
    lines += [
        "",
        f"{run} took {clock(summary['seconds'])}. Look at {run}/notebooks/*.html, plots/*.png, model_card.md, summary.json",
    ]
    return "\n".join(lines)


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """{parameter: text} from the command line, on top of DEFAULTS."""
    parser = argparse.ArgumentParser(prog="python -m helpers.run", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a notebook parameter")
    return DEFAULTS | dict(parser.parse_args(argv).p)


def main(argv: Sequence[str]) -> None:
    """Runs the notebooks and prints the results. Raises RunError, whose text is all that a user needs to see."""
    given = arguments(argv)
    notebooks = sorted(Path().glob(NOTEBOOKS))
    if not notebooks:
        raise RunError(f"no {NOTEBOOKS} in this folder: start at the top of the repository")
    try:
        known = parameters_of(notebooks)
        values = typed(known, given)
        game_named(values["GAME"])
        preset = named(values["PRESET"], values.get("OVERRIDES", ""), values["GAME"])
    except ValueError as error:
        raise RunError(str(error)) from error
    values["PRESET"] = preset.name  # "auto" is settled once, for all notebooks
    run, resume = Path(values.pop("RUN")), values.pop("RESUME", False)
    settings = {name: value for name, value in values.items() if name != "MINUTES"}  # the time may be another when it goes on
    needs_hub = not preset.embedded or values.get("ADAPTER") or values.get("HUB_REPO")
    os.environ.update(HEADLESS | ({} if needs_hub else {"HF_HUB_OFFLINE": "1"}))
    with claimed(run):
        made_from = open_run(run, settings, resume)
        (run / "notebooks").mkdir(exist_ok=True)
        pages = {notebook: (run / "notebooks" / notebook.name).with_suffix(".html") for notebook in notebooks}
        if unfinished(run):  # then neither the notebook that trains (only that takes RESUME) nor what follows it is done
            trains = next(i for i, notebook in enumerate(notebooks) if "RESUME" in known[notebook])
            for notebook in notebooks[trains:]:
                pages[notebook].unlink(missing_ok=True)
        for notebook in notebooks:
            if pages[notebook].exists():
                print(f"{notebook.stem} was done before")
                continue
            wanted = {"RUN": str(run), "RESUME": resume, **values}
            start = time.monotonic()
            try:
                print(f"{notebook.stem} ...", flush=True)
                run_notebook(notebook, run / "notebooks", {name: wanted[name] for name in known[notebook] if name in wanted})
            finally:
                made_from["seconds"] += time.monotonic() - start
                write_json(run / "made_from.json", made_from)
        summary = run / "summary.json"
        if not summary.exists():
            raise RunError(f"{notebooks[-1].stem} ended without writing {summary}")
        write_json(summary, json.loads(summary.read_text()) | {"seconds": round(made_from["seconds"], 1)})
        print(report(run))
        if stopped := unfinished(run):
            print(f"training stopped at {stopped}: go on with RESUME=1")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RunError as error:
        sys.exit(f"parley: {error}")
    except KeyboardInterrupt:
        sys.exit("parley: stopped; go on with the same settings and RESUME=1")
