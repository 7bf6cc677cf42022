"""bootstrap.sh, the Makefile and the packaging files, with stub interpreters: no network, nothing installed."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
TOOLS = ("sh", "make", "awk", "cat", "chmod", "cmp", "cp", "df", "dirname", "grep", "mkdir", "mv", "tail")
PYTHON = """#!/bin/sh
# Stands in for Python: tells of every call in calls.txt, and fails where the test says so.
case "$*" in
    "-c import sys"*) exit ${OLD:-0} ;;
    "-c import venv"*) exit ${NO_VENV:-0} ;;
    "-m venv .venv") mkdir -p .venv/bin && echo >.venv/pyvenv.cfg && cp "$0" .venv/bin/python ;;
    "-m pip install"*) echo "$*" >>calls.txt; echo "${PIP_SAYS:-}"; exit ${PIP_FAILS:-0} ;;
    "-m helpers.run"*) printf '%s\\n' "$@" >>calls.txt ;;
esac
"""


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def fresh():
    """A fresh checkout in a folder with a space in its name, a PATH with one stub Python, and a function to run commands there.

    Not in tmp_path: that is closed to other users, as one of whom the read-only test runs.
    """
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    (base / "bin").mkdir()
    for tool in TOOLS:
        (base / "bin" / tool).symlink_to(shutil.which(tool))
    script(base / "bin" / "sleep", "#!/bin/sh\n")
    script(base / "bin" / "python3.12", PYTHON)
    folder = base / "my folder"
    folder.mkdir()
    for name in ("bootstrap.sh", "Makefile", "requirements.txt", "requirements-test.txt"):
        shutil.copy(TOP / name, folder)

    def call(*command, user=None, **environment):
        environment = {"PATH": str(base / "bin"), "MIN_MEMORY_MB": "0", "MIN_DISK_MB": "0"} | environment
        return subprocess.run(command, cwd=folder, env=environment, user=user, capture_output=True, text=True, timeout=60)

    yield folder, call
    shutil.rmtree(base)


def refusal(done):
    """The one line that a refused set-up writes, without its prefix; and the exit status is not 0."""
    lines = done.stderr.splitlines()
    assert done.returncode != 0 and len(lines) == 1 and lines[0].startswith("parley: "), done
    return lines[0].removeprefix("parley: ")


def test_the_second_call_installs_nothing_until_the_requirements_change(fresh):
    folder, call = fresh
    for _ in range(2):
        assert call("make", "setup").returncode == 0
    assert len((folder / "calls.txt").read_text().splitlines()) == 1
    with (folder / "requirements.txt").open("a") as file:
        file.write("another\n")
    assert call("make", "setup").returncode == 0
    assert len((folder / "calls.txt").read_text().splitlines()) == 2


def test_what_only_tests_use_is_installed_for_them_without_its_dependencies_and_for_nothing_else(fresh):
    folder, call = fresh
    assert call("make", "run").returncode == 0
    told = (folder / "calls.txt").read_text()
    assert "-r requirements.txt" in told and "requirements-test.txt" not in told
    for _ in range(2):
        assert call("make", "test").returncode == 0
    installed = [line for line in (folder / "calls.txt").read_text().splitlines() if line.startswith("-m pip install")]
    assert [line.split()[-3:] for line in installed] == [
        ["2", "-r", "requirements.txt"],
        ["--no-deps", "-r", "requirements-test.txt"],
    ]
    with (folder / "requirements-test.txt").open("a") as file:
        file.write("another\n")
    assert call("make", "setup").returncode == call("make", "test").returncode == 0
    assert (folder / "calls.txt").read_text().count("-m pip install") == 3


def test_make_run_passes_its_variables_to_the_notebooks(fresh):
    folder, call = fresh
    done = call(
        "make", "run", "SEED=3", "RUN=runs/a b", "RESUME=1", "OVERRIDES=steps=9, refresh=3", """ARGS=-p RUBRIC '{"a": 1}'"""
    )
    assert done.returncode == 0, done.stderr
    given = ["-p", "GAME", "market", "-p", "PRESET", "tiny", "-p", "SEED", "3", "-p", "RUN"]
    told = (folder / "calls.txt").read_text().splitlines()[1:]
    given += ["runs/a b", "-p", "OVERRIDES", "steps=9, refresh=3", "-p", "RESUME", "True"]
    assert told == ["-m", "helpers.run", *given, "-p", "RUBRIC", '{"a": 1}']


def test_make_alone_lists_every_target(fresh):
    _, call = fresh
    listed = re.findall(r"^make (\w+) +\S", call("make").stdout, re.M)
    phony = re.search(r"\.PHONY: (.*)", (TOP / "Makefile").read_text())[1]
    assert listed == phony.split()


def test_no_supported_python_is_told(fresh):
    _, call = fresh
    assert refusal(call("sh", "bootstrap.sh", OLD="1")).startswith("no Python 3.11, 3.12 or 3.13 on the PATH: install one")


def test_a_named_python_that_does_not_serve_is_told_and_no_other_is_taken(fresh):
    folder, call = fresh
    assert "PYTHON=python9 is not a working Python 3.11" in refusal(call("sh", "bootstrap.sh", PYTHON="python9"))
    assert not (folder / ".venv").exists()


def test_a_missing_venv_module_is_told_with_the_package_that_has_it(fresh):
    _, call = fresh
    assert "apt install python3-venv" in refusal(call("sh", "bootstrap.sh", NO_VENV="1"))


def test_a_venv_that_is_something_else_is_told_and_left_alone(fresh):
    folder, call = fresh
    (folder / ".venv").write_text("mine")
    assert refusal(call("sh", "bootstrap.sh")).startswith(".venv is in the way and is not a Python environment: move it")
    assert (folder / ".venv").read_text() == "mine"


def test_a_broken_venv_is_told(fresh):
    folder, call = fresh
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").touch()
    assert "remove it (rm -rf .venv)" in refusal(call("sh", "bootstrap.sh"))


def test_a_read_only_folder_is_told(fresh):
    folder, call = fresh
    folder.chmod(0o555)
    nobody = 65534 if os.geteuid() == 0 else None  # to root every folder is writable
    assert refusal(call("sh", "bootstrap.sh", user=nobody)).startswith("this folder cannot be written to")


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="free memory is only known from /proc/meminfo")
def test_too_little_memory_is_told_with_the_figures(fresh):
    _, call = fresh
    told = refusal(call("sh", "bootstrap.sh", MIN_MEMORY_MB="999999999"))
    assert re.match(r"only \d+ MB of memory are free, 999999999 MB are needed: close other programs", told)


def test_a_full_disk_is_told(fresh):
    _, call = fresh
    assert re.match(r"only \d+ MB of disk are free", refusal(call("sh", "bootstrap.sh", MIN_DISK_MB="9999999999")))
    told = refusal(call("sh", "bootstrap.sh", PIP_FAILS="1", PIP_SAYS="OSError: [Errno 28] No space left on device"))
    assert told.startswith("the disk is full")


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "cannot reach the package index"),
        ("ERROR: No matching distribution found for x", "pip failed: ERROR: No matching distribution found for x"),
    ],
)
def test_a_failed_installation_is_told_and_tried_again_by_the_next_call(fresh, says, told):
    folder, call = fresh
    assert refusal(call("sh", "bootstrap.sh", PIP_FAILS="1", PIP_SAYS=says)).startswith(told)
    assert call("sh", "bootstrap.sh").returncode == 0
    assert len((folder / "calls.txt").read_text().splitlines()) == 2


def requirements(name):
    lines = (line.split("#")[0].strip() for line in (TOP / name).read_text().splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt"])
def test_every_requirement_is_pinned(name):
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9.]+", line) for line in requirements(name))


def test_unsloth_is_tested_in_the_version_for_gpus_and_no_test_package_changes_a_pin():
    test, gpu, pinned = (requirements(f"requirements{kind}.txt") for kind in ("-test", "-gpu", ""))
    assert [line for line in test if "unsloth" in line] == [line for line in gpu if "unsloth" in line]
    assert not {line.split("==")[0] for line in test} & {line.split("==")[0] for line in pinned}
    assert "torch==2.13.0" in pinned and "trl==1.14.2" in pinned


def test_the_kaggle_template_has_a_title_that_matches_its_id():
    kernel = json.loads((TOP / "kaggle_kernel.json").read_text())
    assert kernel["title"].lower().replace(" ", "-") == kernel["id"].split("/")[1]
    assert kernel["machine_shape"] == "NvidiaTeslaT4" and kernel["enable_gpu"] is True
    assert not any("/" in kernel[name] for name in ("code_file", "title"))
