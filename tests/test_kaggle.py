"""Self-contained notebooks: built, checked, run far from the repository, pushed by the official client to a stub."""

import base64
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import nbformat
import papermill
import pytest

from helpers import GAMES, kaggle, machine

REPO = Path(__file__).parent.parent
NAMES = ("01_environment_setup", "02_random_baseline", "03_reward_design", "04_grpo_training", "05_evaluation")
PLATFORMS = {
    "kaggle": {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "COLAB_RELEASE_TAG": "its image is built upon Colab's"},
    "colab": {"COLAB_RELEASE_TAG": "release"},
    "elsewhere": {},
}
PARAMETERS = 'GAME, PRESET, SEED, RUN, OVERRIDES = "market", "tiny", 7, "runs/latest", ""\n'
OFFLINE = """
import socket
def refused(*args): raise OSError("this test has no network")
socket.socket.connect = socket.getaddrinfo = refused
"""
# Stands in for pip: writes down what it was asked and what its constraints file held.
PIP = """
import os, pathlib, sys
asked = sys.argv[1:]
pathlib.Path("pip-asked.txt").write_text("\\n".join(asked))
pathlib.Path("pip-kept.txt").write_text(pathlib.Path(asked[asked.index("-c") + 1]).read_text())
if "PIP_FAILS" in os.environ:
    sys.exit("ERROR: No matching distribution found for it\\nWARNING: unrelated")
"""
# A sitecustomize that sends the client to the stub: its address is fixed otherwise.
CLIENT_TO_STUB = """
import os
from kagglesdk import kaggle_env
kaggle_env._env_to_endpoint[kaggle_env.KaggleEnv.PROD] = os.environ["STUB"]
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that `build` wrote."""
    out = tmp_path_factory.mktemp("build")
    kaggle.build(out, "somebody")
    return out


@pytest.fixture
def empty(tmp_path):
    """An empty folder to run in; beside it are a stub pip and a place for temporary files."""
    for folder in ("empty", "stubs", "tmp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stubs" / "pip.py").write_text(PIP)
    return tmp_path / "empty"


def notebook_of(path: Path):
    return nbformat.read(path, as_version=4)


def set_up_cell(notebook) -> str:
    return next(cell.source for cell in notebook.cells if "machine.prepare()" in cell.source)


def packed_cell(notebook) -> str:
    return next(cell.source for cell in notebook.cells if cell.get("id") == "helpers")


def archive_of(notebook) -> zipfile.ZipFile:
    text = packed_cell(notebook).split('"""')[1]
    return zipfile.ZipFile(io.BytesIO(base64.b64decode(text)))


def environment(empty: Path, more: dict) -> dict:
    """The test's own variables without any that tell of a platform or lead to the repository."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("COLAB_", "KAGGLE_", "CUDA_")) and k not in machine.DEFAULTS}
    return ours | {"PYTHONPATH": str(empty.parent / "stubs"), "TMPDIR": str(empty.parent / "tmp")} | more


def run(code: str, empty: Path, more: dict | None = None):
    """Runs code in another Python in the empty folder, without a network and without the repository on its path."""
    return subprocess.run(
        [sys.executable, "-"],  # from stdin: the packed helpers are longer than an argument may be
        input=OFFLINE + PARAMETERS + code,
        cwd=empty,
        env=environment(empty, more or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


def needing(notebook, line: str) -> str:
    """The packed cell and the set-up cell, with one more line in the list of requirements."""
    return f"{packed_cell(notebook)}\nopen(HELPERS + '/requirements-gpu.txt', 'a').write('\\n{line}\\n')\n{set_up_cell(notebook)}"


@contextmanager
def server(answer):
    """A server on loopback whose answer(path, body) gives (status, kind, data); yields its address and the requests it saw."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append((self.path, dict(self.headers), body))
            status, kind, data = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *args):
            pass

    stub = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=stub.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{stub.server_port}", seen
    finally:
        stub.shutdown()
        thread.join()
        stub.server_close()


# Built notebooks


def test_build_writes_a_folder_for_kaggle_and_a_notebook_for_colab_for_each_of_the_five(built):
    assert sorted(path.name for path in (built / "kaggle").iterdir()) == list(NAMES)
    assert sorted(path.stem for path in (built / "colab").iterdir()) == list(NAMES)
    for name in NAMES:
        assert {path.name for path in (built / "kaggle" / name).iterdir()} == {"kernel-metadata.json", f"{name}.ipynb"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_built_passes_the_check(built, name):
    assert kaggle.problems(built / "kaggle" / name) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_built_notebook_is_valid_without_outputs_and_far_under_one_megabyte(built, name):
    for path in (built / "kaggle" / name / f"{name}.ipynb", built / "colab" / f"{name}.ipynb"):
        notebook = notebook_of(path)
        nbformat.validate(notebook)
        assert path.stat().st_size < 500_000
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.parametrize("name", NAMES)
def test_a_built_notebook_has_the_cells_of_the_stored_one_and_one_more_right_after_the_parameters(built, name):
    stored = [cell.source for cell in notebook_of(REPO / "notebooks" / f"{name}.ipynb").cells]
    cells = notebook_of(built / "kaggle" / name / f"{name}.ipynb").cells
    [place] = [i for i, cell in enumerate(cells) if cell.id == "helpers"]
    assert "parameters" in cells[place - 1].metadata.tags
    assert [cell.source for cell in cells if cell.id != "helpers"] == stored


def test_the_archive_holds_all_code_but_no_weights_and_names_its_commit(built):
    packed = archive_of(notebook_of(built / "colab" / f"{NAMES[0]}.ipynb"))
    code = {str(path.relative_to(REPO)) for path in REPO.glob("helpers/**/*.py")}
    assert code < set(packed.namelist()) and not [name for name in packed.namelist() if name.endswith((".safetensors", ".pyc"))]
    assert packed.read("helpers/commit.txt").decode() == kaggle.commit()
    for game in GAMES:
        weights = REPO / "helpers" / "tiny" / game / "model.safetensors"
        assert packed.read(f"helpers/tiny/{game}/model.sha256").decode() == machine.sha256(weights)


def test_the_same_files_give_the_same_archive():
    assert kaggle.archive() == kaggle.archive()


def test_only_training_and_evaluation_ask_for_a_gpu_and_evaluation_sees_what_training_left(built):
    found = {name: json.loads((built / "kaggle" / name / "kernel-metadata.json").read_text()) for name in NAMES}
    assert [name for name in NAMES if found[name]["enable_gpu"]] == ["04_grpo_training", "05_evaluation"]
    assert {found[name]["machine_shape"] for name in NAMES[:3]} == {""}
    assert {found[name]["machine_shape"] for name in NAMES[3:]} == {"NvidiaTeslaT4"}
    assert found["05_evaluation"]["kernel_sources"] == [found["04_grpo_training"]["id"]] == ["somebody/parley-grpo-training"]
    assert all(found[name]["kernel_sources"] == [] for name in NAMES[:4])


def test_04_keeps_every_field_of_the_template_but_its_owner(built):
    template = json.loads((REPO / "kaggle_kernel.json").read_text())
    made = json.loads((built / "kaggle" / "04_grpo_training" / "kernel-metadata.json").read_text())
    assert made == template | {"id": "somebody/parley-grpo-training"}


def test_what_is_changed_in_the_template_is_so_in_04_and_05_sees_04_under_its_new_name(tmp_path, monkeypatch):
    changed = {"id": "someone/another-name", "title": "Another name", "is_private": False, "dataset_sources": ["someone/tiny"]}
    (tmp_path / "kaggle_kernel.json").write_text(json.dumps(kaggle.template() | changed))
    monkeypatch.setattr(kaggle, "TOP", tmp_path)
    monkeypatch.delenv("KAGGLE_USERNAME", raising=False)
    monkeypatch.setattr(kaggle, "build", lambda out, owner: owners.append(owner) or [])
    owners = []
    kaggle.main(["build"])
    assert owners == ["someone"]
    four, five = (
        kaggle.kernel(notebook_of(REPO / "notebooks" / f"{name}.ipynb"), name, "someone")
        for name in ("04_grpo_training", "05_evaluation")
    )
    assert {field: four[field] for field in changed} == changed
    assert five["kernel_sources"] == ["someone/another-name"] and five["id"] == "someone/parley-evaluation"
    assert (five["is_private"], five["dataset_sources"]) == (False, ["someone/tiny"])


# The check


WRONG = {
    "id": [
        "OWNER/parley-grpo-training",
        "parley-grpo-training",
        "somebody/another-slug",
        "code/somebody/parley-grpo-training",
        None,
    ],
    "title": ["GRPO", "Parley GRPO training " * 3, "Parley GRPO träining", 5],
    "code_file": ["missing.ipynb", "../04_grpo_training.ipynb", "script.py", ""],
    "language": ["r", ""],
    "kernel_type": ["script"],
    "is_private": ["true", None],
    "enable_gpu": ["true", False],
    "enable_internet": [1],
    "machine_shape": ["NvidiaTeslaP100", "", None],
    "dataset_sources": [["datasets/somebody/tiny"], ["datasets/tiny"], ["tiny"], "somebody/tiny"],
    "competition_sources": [["competitions/titanic"]],
    "kernel_sources": [["code/somebody/parley-grpo-training"], ["somebody/"], [None]],
    "model_sources": [
        ["somebody/model"],
        ["models/somebody/model/transformers/small/1"],
        ["somebody/model/transformers/small/new"],
    ],
    "keywords": ["game", ["Not A Tag!"]],
    "docker_image_pinning_type": ["newest"],
}


@pytest.fixture
def training(built, tmp_path):
    """A copy of the built folder of 04, and a function that changes its metadata and gives the problems."""
    folder = shutil.copytree(built / "kaggle" / "04_grpo_training", tmp_path / "04_grpo_training")
    path = folder / "kernel-metadata.json"

    def change(**fields):
        path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | fields).items() if v is not ...}))
        return kaggle.problems(folder)

    return folder, change


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_wrong_field_is_refused_by_its_name_with_what_was_expected(training, field, value):
    _, change = training
    [line] = change(**{field: value})
    assert "expected" in line and (field in line or field == "code_file") and (str(value) in line)


@pytest.mark.parametrize("field", kaggle.FIELDS)
def test_a_missing_field_is_refused(training, field):
    _, change = training
    [line] = change(**{field: ...})
    assert line.endswith(f"expected the field {field}, it is missing")


def test_every_field_has_a_wrong_value_in_this_test():
    assert set(WRONG) == set(kaggle.FIELDS)


def test_a_field_that_the_client_does_not_know_is_refused(training):
    _, change = training
    [line] = change(gpu=True)
    assert "got 'gpu', which the client ignores" in line


def test_right_sources_with_and_without_a_version_are_accepted(training):
    _, change = training
    sources = {"dataset_sources": ["some_body/tiny-weights"], "kernel_sources": ["somebody/parley-grpo-training/3"]}
    assert change(**sources, model_sources=["qwen-lm/qwen-3/transformers/0.6b/1"], competition_sources=["titanic"]) == []


def test_metadata_that_is_missing_or_no_json_is_refused(training):
    folder, change = training
    (folder / "kernel-metadata.json").write_text("{")
    assert "expected JSON in" in kaggle.problems(folder)[0]
    (folder / "kernel-metadata.json").write_text("[]")
    assert kaggle.problems(folder)[0].endswith("got list: build again")
    (folder / "kernel-metadata.json").unlink()
    assert "expected JSON in" in kaggle.problems(folder)[0]


def test_a_source_that_is_too_large_keeps_outputs_or_lacks_helpers_is_refused(training):
    folder, change = training
    path = folder / "04_grpo_training.ipynb"
    shutil.copy(REPO / "notebooks" / path.name, path)
    outputs, helpers = change()
    assert "expected no stored outputs" in outputs and "expected a cell with helpers/ packed" in helpers
    # 250,000 letters beyond ASCII are 500,000 bytes in a file, but six times their number as the client writes them
    notebook = kaggle.self_contained(notebook_of(path), b"")
    notebook.cells[0].source += "é" * 250_000
    nbformat.write(notebook, path)
    assert path.stat().st_size < kaggle.LIMIT
    assert re.search(r"expected less than 1,000,000 bytes, got 1,\d{3},\d{3}: keep weights and data out", *change())
    path.write_text("no notebook")
    assert "expected a notebook in" in change()[0]


def command(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KAGGLE_")} | variables
    done = [sys.executable, "-m", "helpers.kaggle", *map(str, arguments)]
    return subprocess.run(done, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300)


def test_the_commands_build_and_check_and_refuse_the_placeholder_of_the_owner(tmp_path):
    assert "python -m helpers.kaggle build --owner NAME" in command("--out", tmp_path, "check").stderr
    assert command("--out", tmp_path, "build").returncode == 0
    refused = command("--out", tmp_path, "check")
    assert refused.returncode == 1 and refused.stderr.count("got 'OWNER/") == 5 and "build with --owner NAME" in refused.stderr
    assert command("--out", tmp_path, "build", KAGGLE_USERNAME="somebody").returncode == 0
    done = command("--out", tmp_path, "check")
    assert done.returncode == 0 and "checked 5" in done.stdout


# The set-up cell, away from the repository


SHOW = """
import helpers
print(helpers.__file__, os.environ["CUDA_VISIBLE_DEVICES"], "torch" in sys.modules, Path.cwd(), machine.place(), sep="\\n")
"""


@pytest.mark.parametrize("platform", PLATFORMS)
def test_in_an_empty_folder_a_built_notebook_is_set_up_from_itself_without_a_network(built, empty, platform):
    notebook = notebook_of(built / ("colab" if platform == "colab" else f"kaggle/{NAMES[0]}") / f"{NAMES[0]}.ipynb")
    done = run("\n".join([packed_cell(notebook), set_up_cell(notebook), SHOW]), empty, PLATFORMS[platform])
    assert done.returncode == 0, done.stderr
    *lost, said, file, gpus, torch_imported, folder, place = done.stdout.splitlines()
    assert bool(lost) == (platform != "elsewhere")  # for here is neither /kaggle/working nor Google Drive
    assert said.startswith("game market, preset tiny, seed 7; Python 3.") and ", torch " in said and ", trl 1.14.2" in said
    assert Path(file).is_relative_to(empty.parent / "tmp") and folder == str(empty)
    assert (gpus, torch_imported, place) == ("0", "False", platform)
    assert list(empty.iterdir()) == []  # nothing was missing, so pip was not asked; and /kaggle/working stays clean


def test_a_choice_of_gpus_made_before_is_kept(built, empty):
    notebook = notebook_of(built / "colab" / f"{NAMES[0]}.ipynb")
    done = run("\n".join([packed_cell(notebook), set_up_cell(notebook), SHOW]), empty, {"CUDA_VISIBLE_DEVICES": "3"})
    assert done.stdout.splitlines()[2] == "3"


@pytest.mark.parametrize("platform", ["kaggle", "colab"])
def test_on_a_platform_only_what_is_missing_is_installed_and_its_own_torch_is_kept(built, empty, platform):
    notebook = notebook_of(built / "colab" / f"{NAMES[0]}.ipynb")
    done = run(needing(notebook, "parley-absent==1.0"), empty, PLATFORMS[platform])
    assert done.returncode == 0, done.stderr
    asked = (empty / "pip-asked.txt").read_text().split()
    assert asked[0] == "install" and asked[asked.index("-c") + 2 :] == ["parley-absent==1.0"]
    kept = dict(line.split("==") for line in (empty / "pip-kept.txt").read_text().splitlines())
    assert kept["torch"] == machine.version("torch") and kept["numpy"] == machine.version("numpy")
    assert "installing parley-absent==1.0 ..." in done.stdout and "restart" not in done.stdout + done.stderr


def test_elsewhere_what_is_missing_is_named_and_nothing_is_installed(built, empty):
    done = run(needing(notebook_of(built / "colab" / f"{NAMES[0]}.ipynb"), "parley-absent==1.0"), empty)
    assert done.returncode == 0 and "not installed as tested: parley-absent==1.0 (`make setup`" in done.stdout
    assert list(empty.iterdir()) == []


def test_packages_for_a_gpu_are_asked_for_where_one_is_found(built, empty):
    (empty.parent / "stubs" / "nvidia-smi").write_text("#!/bin/sh\n")
    (empty.parent / "stubs" / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{empty.parent / 'stubs'}:{os.environ['PATH']}"}
    notebook = notebook_of(built / "colab" / f"{NAMES[0]}.ipynb")
    code = needing(notebook, "bitsandbytes==99")
    assert run(code, empty, PLATFORMS["kaggle"] | path).returncode == 0
    assert "bitsandbytes==99" in (empty / "pip-asked.txt").read_text().splitlines()
    (empty / "pip-asked.txt").unlink()
    assert run(code, empty, PLATFORMS["kaggle"]).returncode == 0
    assert not (empty / "pip-asked.txt").exists()


def test_when_pip_fails_its_reason_and_the_remedy_are_told(built, empty):
    code = needing(notebook_of(built / "colab" / f"{NAMES[0]}.ipynb"), "parley-absent==1.0")
    done = run(code, empty, PLATFORMS["kaggle"] | {"PIP_FAILS": "1"})
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "RuntimeError: expected pip to install parley-absent==1.0, got 'ERROR: No matching distribution found for it': "
        "switch the notebook's internet on and run this again"
    )


def test_without_packed_helpers_or_a_folder_above_the_pinned_tag_is_cloned(empty):
    origin = empty.parent / "origin"
    shutil.copytree(REPO / "helpers", origin / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "requirements-gpu.txt", origin)
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for step in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "all"), ("tag", machine.TAG)):
        subprocess.run(["git", *step], cwd=origin, check=True)
    (origin / "helpers" / "later.py").touch()
    subprocess.run(["git", "add", "."], cwd=origin, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "after the tag"], cwd=origin, check=True)
    cell = set_up_cell(notebook_of(REPO / "notebooks" / f"{NAMES[0]}.ipynb"))
    done = run(cell.replace(machine.REPOSITORY, origin.as_uri()) + SHOW, empty)
    assert done.returncode == 0, done.stderr
    file = Path(done.stdout.splitlines()[1])
    assert file.is_relative_to(empty.parent / "tmp") and not (file.parent / "later.py").exists()
    assert (file.parent / "tiny" / "market" / "model.safetensors").exists()


def test_when_nothing_is_reachable_the_set_up_cell_says_what_to_do(empty):
    cell = set_up_cell(notebook_of(REPO / "notebooks" / f"{NAMES[0]}.ipynb"))
    nowhere = (empty / "nowhere").as_uri()
    done = run(cell.replace(machine.REPOSITORY, nowhere), empty)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"FileNotFoundError: expected helpers/ here or above, or {nowhere} at {machine.TAG}: open this notebook"
    )


def test_the_projects_address_is_the_same_wherever_it_is_written():
    cell = set_up_cell(notebook_of(REPO / "notebooks" / f"{NAMES[0]}.ipynb"))
    assert f'tag, repository = "{machine.TAG}", "{machine.REPOSITORY}"' in cell
    for path in (REPO / "README.md", *REPO.glob("notebooks/*.ipynb")):
        found = set(re.findall(r"github(?:\.com)?/([\w-]+/[\w-]+)/blob", path.read_text(encoding="utf-8")))
        assert found == {machine.REPOSITORY.removeprefix("https://github.com/")}, path


def test_requirements_are_missing_when_absent_too_old_or_meant_for_here_only():
    lines = [
        "# a comment",
        "",
        "numpy>=1.0",
        "numpy>=999",
        "absent-here  # why",
        "other==1; python_version < '3'",
        "unsloth==1.0",
    ]
    assert machine.missing(lines, gpu=False) == ["numpy>=999", "absent-here"]
    assert machine.missing(lines, gpu=True) == ["numpy>=999", "absent-here", "unsloth==1.0"]


def test_the_list_for_platforms_never_asks_for_a_package_that_is_kept():
    names = {machine.Requirement(line).name for line in machine.REQUIREMENTS.read_text().splitlines() if line[0] != "#"}
    assert not names & set(machine.KEPT) and names > machine.FOR_GPU


# The embedded model's weights


TINY = REPO / "helpers" / "tiny" / "market" / "model.safetensors"


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A folder that lacks the weights, and an empty /kaggle/input; the tag and the hub are closed ports."""
    folder, inputs = tmp_path / "market", tmp_path / "input"
    folder.mkdir()
    inputs.mkdir()
    (folder / "model.sha256").write_text(machine.sha256(TINY))
    monkeypatch.setattr(machine, "INPUTS", inputs)
    monkeypatch.setattr(machine, "REPOSITORY", "http://127.0.0.1:9/repository")
    monkeypatch.setattr(machine, "HUB", "http://127.0.0.1:9/hub")
    return folder, inputs


def test_weights_that_are_there_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_text("mine")
    machine.fetch_weights(tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


@pytest.mark.parametrize(
    "mounted", ["parley-tiny", "datasets/somebody/parley-tiny/deeper", "notebooks/somebody/parley-grpo-training"]
)
def test_weights_come_from_a_kaggle_input_wherever_it_is_mounted_and_other_models_are_passed_over(bare, mounted):
    folder, inputs = bare
    for place, data in (("another/model.safetensors", b"other"), (f"{mounted}/model.safetensors", TINY.read_bytes())):
        (inputs / place).parent.mkdir(parents=True)
        (inputs / place).write_bytes(data)
    machine.fetch_weights(folder)
    assert (folder / "model.safetensors").read_bytes() == TINY.read_bytes()


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("REPOSITORY", f"/raw/{machine.TAG}/helpers/tiny/market/model.safetensors"),
        ("HUB", "/resolve/main/market/model.safetensors"),
    ],
)
def test_weights_come_from_the_pinned_tag_or_the_hub(bare, monkeypatch, address, wanted):
    folder, _ = bare
    with server(lambda path, body: (200, "application/octet-stream", TINY.read_bytes())) as (url, seen):
        monkeypatch.setattr(machine, address, url)
        machine.fetch_weights(folder)
    assert [path for path, _, _ in seen] == [wanted]
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "model.sha256"}
    assert (folder / "model.safetensors").read_bytes() == TINY.read_bytes()


def test_without_weights_anywhere_one_line_says_where_was_looked_and_what_to_do(bare, monkeypatch):
    folder, inputs = bare
    with server(lambda path, body: (200, "text/html", b"please sign in")) as (url, _):
        monkeypatch.setattr(machine, "REPOSITORY", url)
        with pytest.raises(FileNotFoundError) as error:
            machine.fetch_weights(folder)
    told = str(error.value)
    assert "\n" not in told and f"below {inputs}" in told and f"{url}/raw/" in told and "(other weights)" in told
    assert "http://127.0.0.1:9/hub/resolve/main/market/model.safetensors ([Errno 111] Connection refused)" in told
    assert "switch the notebook's internet on, or add a Kaggle dataset" in told
    assert {path.name for path in folder.iterdir()} == {"model.sha256"}


@pytest.mark.slow
def test_in_an_empty_folder_the_embedded_model_loads_from_a_kaggle_input_and_results_name_the_commit(built, empty):
    notebook = notebook_of(built / "kaggle" / "04_grpo_training" / "04_grpo_training.ipynb")
    inputs = empty.parent / "input" / "datasets" / "somebody" / "parley-tiny"
    inputs.mkdir(parents=True)
    shutil.copy(TINY, inputs)
    load = f"""
machine.INPUTS = Path({str(empty.parent / "input")!r})
from helpers.evaluate import commit
from helpers.models import load
model, tokenizer = load(preset)
print(commit(), model.num_parameters())
"""
    done = run("\n".join([packed_cell(notebook), set_up_cell(notebook), load]), empty, PLATFORMS["kaggle"])
    assert done.returncode == 0, done.stderr
    parameters = json.loads(TINY.with_name("made_from.json").read_text())["parameters"]
    assert done.stdout.splitlines()[-1] == f"{kaggle.commit()} {parameters}"


@pytest.fixture
def execute(built, empty, monkeypatch):
    """A function that runs a built notebook through papermill in the empty folder and gives what it printed; `inputs` takes the
    place of /kaggle/input."""
    (empty.parent / "stubs" / "pip.py").unlink()

    def run_there(name, platform, inputs=None, **parameters):
        more = PLATFORMS[platform] | {"PARLEY_HEADLESS": "1", "JUPYTER_PREFER_ENV_PATH": "1", "CUDA_VISIBLE_DEVICES": ""}
        for key in set(os.environ) - set(ours := environment(empty, more)):
            monkeypatch.delenv(key)
        for key, value in ours.items():
            monkeypatch.setenv(key, value)
        path = built / (f"colab/{name}.ipynb" if platform == "colab" else f"kaggle/{name}/{name}.ipynb")
        notebook = notebook_of(path)
        for cell in notebook.cells:
            if inputs and "machine.prepare()" in cell.source:
                cell.source += f"\nmachine.INPUTS = Path({str(inputs)!r})"
        nbformat.write(notebook, empty.parent / "given.ipynb")
        done = papermill.execute_notebook(
            str(empty.parent / "given.ipynb"),
            str(empty.parent / "done.ipynb"),
            parameters,
            kernel_name="python3",
            cwd=str(empty),
            progress_bar=False,
        )
        assert done.metadata.papermill.exception is None
        outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
        return "\n".join(output.get("text", "") or output.data.get("text/plain", "") for output in outputs)

    return run_there


@pytest.mark.slow
@pytest.mark.parametrize(("name", "platform"), [(NAMES[0], "kaggle"), (NAMES[1], "colab"), (NAMES[2], "kaggle")])
def test_papermill_runs_a_built_notebook_in_an_empty_folder(execute, name, platform):
    said = execute(name, platform, **({"EPISODES": 4} if name == NAMES[1] else {}))
    assert "game market, preset tiny, seed 0; Python" in said


@pytest.mark.slow
def test_papermill_runs_built_04_in_an_empty_folder_and_05_in_another_where_it_finds_what_04_left(execute, empty):
    inputs = empty.parent / "input"
    (inputs / "parley-tiny").mkdir(parents=True)
    shutil.copy(TINY, inputs / "parley-tiny")
    warm = {"OVERRIDES": "warmup_steps=2, prompts=8, refresh=2"}  # so that the cells for a preset with a warm start run too
    said = execute("04_grpo_training", "kaggle", inputs, STEPS=2, **warm)
    assert "game market, preset tiny, seed 0; Python" in said and "after the warm start" in said
    assert "2 steps, " in said and "here; finished" in said
    left = inputs / "notebooks" / "somebody" / "parley-grpo-training"
    left.mkdir(parents=True)
    (empty / "runs").rename(left / "runs")
    assert list(empty.iterdir()) == []
    said = execute("05_evaluation", "kaggle", inputs, EPISODES=4, **warm)
    assert f"the adapter of {left}/runs/latest (the newest of Kaggle's inputs" in said and "2 steps trained" in said
    assert "against the warm start:" in said
    assert json.loads((empty / "runs" / "latest" / "summary.json").read_text())["commit"] == kaggle.commit()


# A folder that outlives the session


@pytest.mark.parametrize(("platform", "below"), [("kaggle", "runs/latest"), ("colab", "parley/runs/latest"), ("elsewhere", None)])
def test_a_run_lies_where_the_platform_keeps_files(tmp_path, monkeypatch, capsys, platform, below):
    for name in [name for name in os.environ if name.startswith(("KAGGLE_", "COLAB_"))]:
        monkeypatch.delenv(name)
    for name, value in PLATFORMS[platform].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "KEEPS", {name: tmp_path / name for name in machine.KEEPS})
    (tmp_path / "kaggle").mkdir()
    (tmp_path / "colab").mkdir()
    assert machine.run_folder("runs/latest") == (tmp_path / platform / below if below else Path("runs/latest"))
    assert machine.run_folder("/elsewhere/run") == Path("/elsewhere/run")
    assert capsys.readouterr().out == ""
    (tmp_path / "colab").rmdir()  # Google Drive is not mounted
    lost = machine.run_folder("runs/latest")
    assert platform != "colab" or lost == Path("runs/latest")
    assert ("will be lost" in capsys.readouterr().out) == (platform == "colab")
    assert machine.budget_s(0) == {"elsewhere": None}.get(platform, 11 * 3600.0) and machine.budget_s(2) == 120
    assert machine.budget_s(2, 50.0) == 70 and machine.budget_s(0, 60.0) == {"elsewhere": None}.get(platform, 11 * 3600.0 - 60)


# The official client


MINE = {"KAGGLE_USERNAME": "somebody", "KAGGLE_KEY": "not-a-key"}


def push(built, tmp_path, url, name="04_grpo_training", mine=MINE):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "sitecustomize.py").write_text(CLIENT_TO_STUB)
    only = {"NO_PROXY": "127.0.0.1", "HTTPS_PROXY": "http://127.0.0.1:9"}  # the stub or nobody, whatever the client does
    here = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "stub"), "STUB": url}
    return command("--out", built, "push", name, **here, **mine, **only)


has_client = pytest.mark.skipif(importlib.util.find_spec("kaggle") is None, reason=f"needs {kaggle.CLIENT}")
TAKEN = json.dumps({"versionNumber": 1, "url": "/code/somebody/parley-grpo-training", "ref": "/somebody/x"}).encode()


@has_client
@pytest.mark.parametrize("name", ["04_grpo_training", "05_evaluation"])
def test_the_official_client_pushes_a_built_folder_whole(built, tmp_path, name):
    with server(lambda path, body: (200, "application/json", TAKEN)) as (url, seen):
        done = push(built, tmp_path, url, name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Kernel version 1 successfully pushed" in done.stdout and "not-a-key" not in done.stdout + done.stderr
    [(path, headers, body)] = seen
    assert path == "/v1/kernels.KernelsApiService/SaveKernel"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"somebody:not-a-key").decode()
    sent, metadata = json.loads(body), json.loads((built / "kaggle" / name / "kernel-metadata.json").read_text())
    same = {"slug": "id", "newTitle": "title", "language": "language", "kernelType": "kernel_type", "isPrivate": "is_private"}
    same |= {"enableGpu": "enable_gpu", "enableInternet": "enable_internet", "machineShape": "machine_shape"}
    same |= {"dockerImagePinningType": "docker_image_pinning_type"}
    assert {key: sent[key] for key in same} == {key: metadata[field] for key, field in same.items()}
    assert sent.get("kernelDataSources", []) == (["somebody/parley-grpo-training"] if name == "05_evaluation" else [])
    assert len(sent["text"]) < kaggle.LIMIT
    stored, text = notebook_of(built / "kaggle" / name / f"{name}.ipynb"), json.loads(sent["text"])
    assert [cell["source"] for cell in text["cells"]] == [cell.source for cell in stored.cells]


@has_client
@pytest.mark.parametrize(
    "answer", [(200, json.dumps({"error": "too large"}).encode()), (400, b'{"code": 400, "message": "bad"}')]
)
def test_a_kernel_that_kaggle_refuses_is_told_though_the_client_may_exit_with_0(built, tmp_path, answer):
    with server(lambda path, body: (answer[0], "application/json", answer[1])) as (url, _):
        done = push(built, tmp_path, url)
    assert done.returncode == 1 and "parley: expected Kaggle to take 04_grpo_training" in done.stderr


@has_client
def test_without_a_token_nothing_is_sent_and_the_client_says_how_to_get_one(built, tmp_path):
    with server(lambda path, body: (200, "application/json", TAKEN)) as (url, seen):
        done = push(built, tmp_path, url, mine={})
    assert done.returncode == 1 and "Authentication required" in done.stdout and seen == []
    assert "parley: expected Kaggle to take 04_grpo_training" in done.stderr


@has_client
def test_a_slug_is_the_one_that_the_client_makes(built):
    from slugify import slugify

    for path in built.glob("kaggle/*/kernel-metadata.json"):
        title = json.loads(path.read_text())["title"]
        assert kaggle.slug(title) == slugify(title)


def test_push_checks_first_and_says_when_the_client_is_missing(training, monkeypatch):
    folder, change = training
    out = folder.parent
    (out / "kaggle").mkdir()
    folder.rename(out / "kaggle" / folder.name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(kaggle.KaggleError, match="it is not installed: pip install kaggle=="):
        kaggle.main(["--out", str(out), "push", folder.name])
    (out / "kaggle" / folder.name / "04_grpo_training.ipynb").unlink()
    with pytest.raises(kaggle.KaggleError, match="expected the notebook"):
        kaggle.main(["--out", str(out), "push", folder.name])
