"""The command line: exit codes, one message for each mistake, and what is not imported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from microtrain.cli.main import COMMANDS, main
from microtrain.config.schema import Train
from microtrain.errors import UserError, absent

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """These tests look at one process's output, also where the suite itself runs under mpirun."""
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)


def in_new_process(*command, cwd=ROOT, **options):
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_check_accepts_every_configuration_that_ships(config, capsys):
    assert main(["check", str(config)]) == 0
    out, err = capsys.readouterr()
    own = "parts of your own were tried on 8 rows"
    looked = own if config.stem == "custom_model" else "the data were not read"
    assert out.startswith(f"{config}: no problems found ({looked})\n")
    assert f"next: microtrain train {config}\n" in out
    assert err == ""


def test_all_configurations_are_there():
    names = {"linreg", "two_layer_relu", "diabetes", "digits", "csv", "custom_model"}
    assert names <= {path.stem for path in CONFIGS}


def test_check_says_how_to_train(capsys):
    overrides = ["optimizer.lr=0.5", "name=a line"]
    assert main(["check", str(ROOT / "configs/linreg.yaml"), *overrides]) == 0
    assert capsys.readouterr().out.endswith("linreg.yaml optimizer.lr=0.5 'name=a line'\n")


def test_check_shows_every_problem_on_stderr_and_leaves_with_2(capsys, tmp_path):
    shutil.copy(ROOT / "configs/linreg.yaml", tmp_path / "run.yaml")
    path = str(tmp_path / "run.yaml")
    assert main(["check", path, "train.batchsize=64", "optimizer.lr=fast"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: 2 problems in {path}\n")
    assert "unknown key; did you mean batch_size?\n" in err
    assert err.endswith(f"\nhint: train takes: {', '.join(Train.__dataclass_fields__)}\n")
    assert os.listdir(tmp_path) == ["run.yaml"]


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["chek", "x"], 2, 'there is no command "chek"; did you mean check?'),
        (
            ["zzz"],
            2,
            f'there is no command "zzz" (there are: {", ".join(COMMANDS)})',
        ),
        (["check"], 2, "Missing argument 'CONFIG'."),
        (["check", "--nope", "x"], 2, "No such option"),
        (["--nope"], 2, "No such option"),
        (["check", "absent.yaml"], 2, "error: there is no file absent.yaml\n"),
        (["check", "."], 2, "error: . is a directory; name a YAML file in it\n"),
    ],
)
def test_mistakes_on_the_command_line(arguments, code, message, capsys):
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize("path", ["x" * 300, "~nobody-has-this-name/x"], ids=["long", "home"])
@pytest.mark.parametrize(
    "command, code",
    [
        ("check", 2), ("show", 2), ("train", 2), ("train configs/linreg.yaml --resume", 3),
        ("train configs/linreg.yaml --resume auto --run-dir", 5), ("init linreg", 5),
        ("resume", 3), ("evaluate", 3), ("predict --input x.csv --output -", 3), ("plot", 3),
        ("report", 3), ("verify --grad", 2),
    ],
)  # fmt: skip
def test_a_path_that_the_system_refuses(command, code, path, capsys, monkeypatch, tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~nobody-has-this-name").touch()  # so nothing can be made below it
    assert main([*command.split(), path]) == code
    assert path[:80] in capsys.readouterr().err


def test_show_takes_a_run_by_its_name(tmp_path, capsys):
    run = tmp_path / "linreg" / "2026-01-02_03-04-05"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("name: linreg  # from here\n")
    for name in (run, tmp_path / "linreg"):
        assert main(["show", str(name)]) == 0
        assert capsys.readouterr().out == "name: linreg  # from here\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["check", "--help"]])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: microtrain")


def test_help_names_every_command_that_there_is(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in out
        assert text in out


@pytest.mark.parametrize(
    ("words", "found"),
    [("microtrain re", {"resume", "report"}), ("microtrain train --re", {"--resume"})],
)
def test_commands_and_options_are_completed(words, found):
    """What the line that the help proposes does at a Tab."""
    asked = {"_MICROTRAIN_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment = {**os.environ, **asked, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "from microtrain.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {line.partition(",")[2] for line in done.stdout.split()} == found


def test_version(capsys):
    import microtrain

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"microtrain {microtrain.__version__}\n"


class Unwell(UserError):
    exit_code = 5


@pytest.mark.parametrize(
    "error, code, shown",
    [
        (Unwell("the disk is full\ntry another"), 5, "error: the disk is full\ntry another\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_of_a_command_become_an_exit_code(error, code, shown, capsys, monkeypatch):
    import click

    @click.command()
    def fail():
        raise error

    monkeypatch.setitem(COMMANDS, "fail", ("tests_of_cli_fail:fail", ""))
    module = type(sys)("tests_of_cli_fail")
    module.fail = fail
    monkeypatch.setitem(sys.modules, "tests_of_cli_fail", module)
    assert main(["fail"]) == code
    assert capsys.readouterr().err.strip("\n") == shown.strip("\n")


def test_a_bug_keeps_its_traceback(monkeypatch, tmp_path):
    (tmp_path / "buggy.py").write_text("import click\n@click.command()\ndef bug(): 1 / 0\n")
    code = (
        "import sys; from microtrain.cli import main as m\n"
        "m.COMMANDS['bug'] = ('buggy:bug', '')\nsys.exit(m.main(['bug']))"
    )
    done = in_new_process("-c", code, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.daily("[schema]")
@pytest.mark.parametrize("command", ["list runs", "show", "schema", "show configs/linreg.yaml"])
def test_an_output_without_room_is_one_message(command, folder_with_a_run):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    words = command.replace("runs", f"{folder_with_a_run}/runs").split()
    with open("/dev/full", "wb") as full:
        job = subprocess.run(
            [sys.executable, "-m", "microtrain", *words], cwd=ROOT, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    error = "error: cannot write to standard output: No space left on device\n"
    assert (job.returncode, job.stderr) == (5, error)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), "there is not enough memory"),
        (MemoryError("Unable to allocate 3 GiB"), "not enough memory: Unable to allocate 3 GiB"),
        (FileNotFoundError(2, "No such file or directory"), "the working directory was removed"),
    ],
)
def test_what_the_machine_lacks_is_one_message(raised, words, capsys, monkeypatch):
    def failing():
        raise raised

    monkeypatch.setattr("microtrain.config.reference.json_schema", failing)
    assert main(["schema"]) == 5
    assert words in capsys.readouterr().err


@pytest.mark.daily("[train]")
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_working_directory_that_was_removed_is_said(command, tmp_path):
    code = "import os; os.rmdir(os.getcwd()); from microtrain.cli.main import main; "
    code += f"raise SystemExit(main([{command!r}, {str(ROOT / 'configs/linreg.yaml')!r}]))"
    place = tmp_path / "gone"
    place.mkdir()
    job = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if "numpy/_core" in job.stderr:
        pytest.skip("this Python cannot import NumPy there")  # 3.13.0
    assert (job.returncode, "working directory was removed" in job.stderr) == (5, True), job.stderr


def test_a_package_that_cannot_be_loaded_is_not_said_to_be_absent():
    """Where memory is out, or a library of it is broken."""
    assert "numpy is not installed; pip" in absent("numpy", "x", ModuleNotFoundError("numpy"))
    said = absent("numpy", "x", ImportError("libx.so: cannot allocate memory"))
    assert said == "numpy is installed, but cannot be imported: libx.so: cannot allocate memory"


def test_only_rank_0_speaks(monkeypatch, capsys):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    # A launcher may end the job at the first exit code: that is left to rank 0.
    for arguments in (["chek"], ["check", "absent.yaml"], ["check", str(CONFIGS[0])]):
        assert main(arguments) == 0
    assert main(["train", "--nonsense"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_check_loads_neither_mpi_nor_cupy_and_help_not_even_pydantic():
    code = """
import sys
from microtrain.cli.main import main
code = main(sys.argv[1:])
heavy = {"mpi4py", "cupy", "sklearn", "matplotlib", "rich", "pydantic", "yaml"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
    for command in (["check", "configs/digits.yaml"], ["show", "configs/linreg.yaml"]):
        done = in_new_process("-c", code, *command)
        assert (done.returncode, done.stderr) == (0, "['pydantic', 'yaml']\n")
    for command in (["show", "sgd"], ["schema"]):
        done = in_new_process("-c", code, *command)
        assert (done.returncode, done.stderr) == (0, "['pydantic']\n")
    helped = in_new_process("-c", code, "--help")
    assert (helped.returncode, helped.stderr) == (0, "[]\n")


WITHOUT_TRAINING = {
    "show": ["show"],
    "a key": ["show", "train.batch_size"],
    "init": ["init", "linreg", "new"],
    "schema": ["schema"],
    "compare": ["compare", "runs/line", "runs/copy"],
    "plot": ["plot", "runs/line", "--output", "curves.png"],
    "report": ["report", "runs/line"],
    "evaluate": ["evaluate", "runs/line"],
    "predict": ["predict", "runs/line", "--input", "new.csv", "--output", "-"],
    "export": ["export", "runs/line", "--to", "npz", "--force"],
}


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    settings = ["name=line", "train.duration=1 epoch"]
    done = in_new_process(
        "-m", "microtrain", "train", str(ROOT / "configs/linreg.yaml"), *settings, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "runs/line", folder / "runs/copy", symlinks=True)
    (folder / "new.csv").write_text("x\n0.5\n")
    return folder


@pytest.mark.daily("evaluate")
@pytest.mark.parametrize("name", WITHOUT_TRAINING)
def test_what_does_not_train_loads_neither_mpi_nor_cupy(folder_with_a_run, name):
    if name in ("plot", "report"):
        pytest.importorskip("matplotlib" if name == "plot" else "jinja2")
    code = (
        "import sys; from microtrain.cli.main import main; code = main(sys.argv[1:])\n"
        "print(sorted({'mpi4py', 'cupy', 'sklearn'} & set(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = in_new_process("-c", code, *WITHOUT_TRAINING[name], cwd=folder_with_a_run)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_python_m_microtrain():
    done = in_new_process("-m", "microtrain", "check", "configs/linreg.yaml", "seed=x")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: 1 problem in configs/linreg.yaml\ncommand line  seed\n")
