"""The examples run as they stand, alone and on ranks, with the same result."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pace import daily

import microtrain as mt
from microtrain.distributed import in_process

ROOT = Path(__file__).parent.parent
LOOP = ROOT / "examples" / "custom_loop.py"
LANGUAGE = ROOT / "examples" / "word_language_model.py"


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def losses(printed: str) -> list[float]:
    """The loss that each line ends with."""
    return [float(line.split()[-1]) for line in printed.splitlines()]


@pytest.mark.slow
def test_the_custom_loop_learns_and_prints_the_same_on_two_ranks(mpirun, tmp_path):
    (tmp_path / "two").mkdir()
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    alone = subprocess.run([sys.executable, LOOP], timeout=60, **given)
    assert alone.returncode == 0, alone.stderr
    first = losses(alone.stdout)
    assert len(first) == 10
    assert first[-1] < first[0] / 4
    job = mpirun(2, LOOP, cwd=tmp_path / "two")
    assert job.returncode == 0, job.stderr
    for found, loss in zip(losses(job.stdout), first, strict=True):
        assert abs(found - loss) < 2e-4


def test_the_custom_loop_goes_on_where_it_was_killed(tmp_path):
    command = [sys.executable, "-u", LOOP]
    given = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "text": True}
    (tmp_path / "whole").mkdir()
    whole = subprocess.run(command, cwd=tmp_path / "whole", timeout=60, **given).stdout
    with subprocess.Popen(command, cwd=tmp_path, **given) as process:
        for _ in range(5):
            process.stdout.readline()
        process.kill()
    again = subprocess.run(command, cwd=tmp_path, timeout=60, **given).stdout
    assert 0 < len(again.splitlines()) <= 7
    assert whole.endswith(again)


def test_the_pages_show_the_files_that_are_there():
    page = (ROOT / "docs" / "your-loop.md").read_text()
    (shown,) = re.findall(r"a part of examples/custom_loop.py.*?```python\n(.*?)```", page, re.S)
    assert shown in LOOP.read_text()
    config = (ROOT / "configs" / "linreg.yaml").read_text().rstrip()
    assert config in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_custom_loop_says_that_it_was_done_before(mpirun, tmp_path):
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    first = subprocess.run([sys.executable, LOOP], timeout=60, **given)
    assert (first.returncode, first.stderr) == (0, "")
    again = mpirun(2, LOOP, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("all 10 epochs are already done")
    told = f"restored {Path('checkpoints') / 'step-000010'}, step 10\n"
    assert again.stderr.count(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", daily([1, 2, 3, 4], 3))
def test_a_program_with_mpi_of_its_own_learns_the_same_on_every_number_of_ranks(
    mpirun, tmp_path, ranks
):
    job = mpirun(ranks, ROOT / "examples" / "own_mpi.py", cwd=tmp_path)
    assert (job.returncode, job.stderr) == (0, "")
    (found,) = losses(job.stdout)
    assert found == pytest.approx(0.0695, abs=2e-4)
    again = mpirun(ranks % 4 + 1, ROOT / "examples" / "own_mpi.py", cwd=tmp_path)
    assert (again.returncode, losses(again.stdout)) == (0, [found])
    assert again.stderr.count("restored surrogate/step-000010, step 10") == 1


# Programs that communicate ------------------------------------------------------------------------

HEAT = ROOT / "examples" / "heat_equation.py"


def heat(monkeypatch):
    monkeypatch.syspath_prepend(str(HEAT.parent))
    return importlib.import_module(HEAT.stem)


@pytest.mark.parametrize("ranks", daily([1, 2, 3, 4], 4))
def test_the_gradient_of_the_heat_equation_is_that_of_one_rank(monkeypatch, ranks):
    example = heat(monkeypatch)

    def gradient(comm):
        plate = example.Plate(comm)
        measured = plate.temperatures(plate.conductivity())
        k = mt.tensor(0.5 + 0.02 * plate.x + 0.01 * plate.y**1.2, requires_grad=True)
        plate.misfit(k, measured).backward()
        return plate, k.grad.numpy()

    ((_, alone),) = in_process.run(1, gradient)
    whole = np.full(alone.shape, np.nan)
    for plate, part in in_process.run(ranks, gradient):
        whole[plate.x, plate.y] = part
    assert abs(whole - alone).max() <= 1e-12 * abs(alone).max() > 0


@pytest.mark.parametrize("ranks", daily([1, 2, 4], 1))
def test_the_heat_equation_finds_the_conductivity_on_every_number_of_ranks(mpirun, tmp_path, ranks):
    job = mpirun(ranks, HEAT, cwd=tmp_path, timeout=200)
    assert (job.returncode, job.stderr) == (0, "")
    words = job.stdout.split()
    off, before = float(words[7]), float(words[8].strip("()"))
    assert off < 0.03 * before
    assert words[4].strip(",") == "9.49e-05"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", daily([1, 2, 3, 4], 4))
def test_training_beside_a_simulation_learns_what_it_sends(mpirun, tmp_path, ranks):
    job = mpirun(ranks, ROOT / "examples" / "beside_a_simulation.py", cwd=tmp_path, timeout=120)
    assert (job.returncode, job.stderr) == (0, "")
    words = job.stdout.split()
    assert float(words[4]) < 0.15 * float(words[-1])


# The word language model --------------------------------------------------------------------------


def perplexities(printed: str) -> list[list[float]]:
    """Of each epoch, of the text that is trained on and of the other one."""
    lines = [line.replace(",", "").split() for line in printed.splitlines()]
    return [[float(words[3]), float(words[-1])] for words in lines]


def language_model(file, *arguments):
    done = subprocess.run(
        [sys.executable, file, *arguments], capture_output=True, text=True, timeout=600,
        env={**ENVIRONMENT, "TORCHDYNAMO_DISABLE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return perplexities(done.stdout)


@pytest.mark.slow
def test_the_word_language_model_learns_which_verb_agrees():
    found = language_model(LANGUAGE, "--epochs", "8")
    assert found[-1][1] < 7 < 25 < found[0][1]


@pytest.mark.slow
def test_the_word_language_model_learns_with_dropout_and_one_matrix():
    options = "--epochs 3 --tied --dropout 0.2 --cell GRU --size 32".split()
    found = language_model(LANGUAGE, *options)
    assert found[-1][1] < 9


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--tied --layers 1", "--cell GRU", "--cell RNN --lr 2"])
def test_the_word_language_model_is_that_of_torch_with_other_imports(options, tmp_path):
    pytest.importorskip("torch")
    code = LANGUAGE.read_text()
    for ours, theirs in (
        ("\nimport microtrain as mt\n", "\nimport torch as mt\n"),
        ("\nfrom microtrain import nn\n", "\nfrom torch import nn\n"),
    ):
        assert code.count(ours) == 1
        code = code.replace(ours, theirs)
    other = tmp_path / "with_torch.py"
    other.write_text(code)
    found = language_model(LANGUAGE, *options.split())
    expected = language_model(other, *options.split())
    assert len(found) == len(expected) == 6
    # The first epochs are the same; then rounding grows, as it does between two machines.
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert found[-1] == pytest.approx(expected[-1], rel=0.05)


# The deep ensemble --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_deep_ensemble_is_better_than_its_networks_and_counts_its_intervals(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    command = [sys.executable, ROOT / "examples" / "deep_ensemble.py", "--plot", "c.png"]
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=120, **given)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    likelihood, *held = [[float(cell.strip("%")) for cell in line[-2:]] for line in lines[2:7]]
    assert likelihood[1] < likelihood[0]
    shares = [ensemble for _, ensemble in held]
    assert shares == sorted(shares)
    assert 75 < shares[2] < 97  # of intervals of 90 %
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


# Burgers' equation --------------------------------------------------------------------------------

BURGERS = ROOT / "examples" / "burgers.py"
SHORT = ("--steps", "3", "--points", "16")


def burgers(printed: str) -> tuple[list[float], float]:
    """The residuals and the relative error."""
    *residuals, error = losses(printed)
    return residuals, error


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_burgers_equation_has_the_same_residual_on_every_number_of_ranks(mpirun, tmp_path, ranks):
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    alone = subprocess.run([sys.executable, BURGERS, *SHORT], timeout=120, **given)
    assert (alone.returncode, alone.stderr) == (0, "")
    job = mpirun(ranks, BURGERS, *SHORT, cwd=tmp_path)
    assert (job.returncode, job.stderr) == (0, "")
    expected, error = burgers(alone.stdout)
    found, again = burgers(job.stdout)
    assert found == pytest.approx(expected, rel=0.02)  # three steps of up to 20 iterations each
    assert again == pytest.approx(error, rel=0.02)
    assert found[-1] < found[0]


@pytest.mark.slow
def test_burgers_equation_is_solved():
    done = subprocess.run(
        [sys.executable, BURGERS], capture_output=True, text=True, timeout=600, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    residuals, error = burgers(done.stdout)
    assert residuals[-1] < 5e-4
    assert error < 1e-2


def test_the_solution_to_compare_with_solves_burgers_equation():
    import importlib.util

    spec = importlib.util.spec_from_file_location("burgers", BURGERS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    t, x, h = np.linspace(0.05, 0.95, 7)[:, None], np.linspace(-0.9, 0.9, 13), 1e-4
    t, x = (a.ravel() for a in np.broadcast_arrays(t, x))
    u = module.exact(t, x)
    u_t = (module.exact(t + h, x) - module.exact(t - h, x)) / (2 * h)
    right, left = module.exact(t, x + h), module.exact(t, x - h)
    u_x, u_xx = (right - left) / (2 * h), (right - 2 * u + left) / h**2
    assert np.abs(u_t + u * u_x - module.NU * u_xx).max() < 1e-3 * np.abs(u_t).max()
    near_start = module.exact(np.full(13, 1e-6), np.linspace(-1, 1, 13))
    np.testing.assert_allclose(near_start, -np.sin(np.pi * np.linspace(-1, 1, 13)), atol=1e-4)


# Pictures -----------------------------------------------------------------------------------------

DRAWN = """burgers dcgan deep_ensemble heat_equation reinforce time_sequence_prediction vae
word_language_model""".split()


@pytest.fixture
def plotted(monkeypatch, tmp_path, capsys):
    """Runs an example with `--plot`: its names, the axes that it draws, what it prints."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")

    def run(name, *options):
        file = tmp_path / "drawn.png"
        monkeypatch.setattr(sys, "argv", [name, *options, "--plot", str(file)])
        names = runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        (number,) = pyplot.get_fignums()
        figure = pyplot.figure(number)
        png = file.read_bytes()
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        size = np.array(struct.unpack(">II", png[16:24]))
        assert size[0] >= 500
        dots_per_inch = size / figure.get_size_inches()
        assert dots_per_inch[0] == pytest.approx(dots_per_inch[1])  # the whole figure
        return names, figure.axes, capsys.readouterr().out.splitlines()

    pyplot.close("all")
    yield run
    pyplot.close("all")


def image(axis):
    return np.asarray(axis.images[0].get_array())


def test_the_vae_draws_digits_beside_their_reconstructions(plotted):
    pytest.importorskip("sklearn")
    names, axes, lines = plotted("vae", "--epochs", "8")
    digits, again, decoded = (image(axis).reshape(8, 12, 8).swapaxes(0, 1) for axis in axes)
    data = names["load_digits"]().images[1536:1548] / 16
    np.testing.assert_array_equal(digits, data.astype(np.float32))
    errors = ((again[:, None] - digits) ** 2).mean((2, 3))  # of all pairs
    assert np.diag(errors).mean() < 0.7 * errors.mean()
    assert 0 <= decoded.min() < 0.1 < 0.7 < decoded.max() <= 1
    assert decoded.std(0).mean() > 0.03  # not twelve times the same
    assert lines[-1].startswith("test loss")


@pytest.mark.slow
def test_the_dcgan_draws_the_digit_that_it_prints_beside_real_ones(plotted):
    pytest.importorskip("sklearn")
    names, axes, lines = plotted("dcgan", "--epochs", "1", "--compile")
    real, drawn = (image(a).reshape(6, 18, 6, 18)[:, 1:-1, :, 1:-1].swapaxes(1, 2) for a in axes)
    np.testing.assert_array_equal(real.reshape(36, 1, 16, 16), names["images"]()[:36])
    first = ["".join(" .:*#"[int((v + 1) * 2.49)] for v in row) for row in drawn[0, 0]]
    assert first == lines[-16:]


def test_the_time_sequences_draw_the_waves_whose_loss_they_print(plotted):
    small = "--steps 2 --waves 6 --length 12 --hidden 4".split()
    names, axes, lines = plotted("time_sequence_prediction", *small)
    waves = names["waves"](6, 25)[:3]
    off = []
    for axis, wave in zip(axes, waves, strict=True):
        truth, ahead, alone = (line.get_xydata() for line in axis.lines)
        np.testing.assert_array_equal(truth[:, 1], wave)
        assert [*ahead[:, 0], *alone[:, 0]] == [*range(1, 25)]
        off.append(ahead[:, 1] - wave[1:13])
        assert np.ptp(alone[:, 1]) > 0
    assert f"{np.square(off).mean():.3e}" == lines[-1].split()[-1]


def test_the_policy_draws_the_lengths_that_it_prints(plotted):
    _, (axis,), lines = plotted("reinforce", "--iterations", "4")
    *carts, mean = (line.get_ydata() for line in axis.lines)
    assert [f"{length:.1f}" for length in mean] == [line.split()[4] for line in lines]
    np.testing.assert_allclose(np.mean(carts, 0), mean)
    assert np.shape(carts) == (16, 4)


def test_burgers_equation_draws_its_solution_on_the_exact_one(plotted):
    names, (axis,), lines = plotted("burgers", *SHORT)
    _, *curves = axis.lines  # the first is for the legend
    assert len(curves) == 8
    off = []
    for exact, network in zip(curves[::2], curves[1::2], strict=True):
        t = float(network.get_label().split()[-1])
        x, u = exact.get_data()
        np.testing.assert_allclose(u, names["exact"](np.full(len(x), t), x))
        off.append(np.linalg.norm(network.get_ydata() - u) / np.linalg.norm(u))
    assert off[0] < 0.02  # near the start, which it has
    assert 0 < np.mean(off) < 2 * float(lines[-1].split()[-1])


def test_the_heat_equation_draws_the_conductivity_that_it_is_off_by(plotted):
    _, axes, lines = plotted("heat_equation")
    truth, found = map(image, axes[:2])
    off = np.sqrt(((found - truth) ** 2).mean())
    assert f"{off:.4f}" == lines[-1].split()[7]
    assert truth.std() > 0.2


def test_the_word_language_model_draws_verbs_that_agree(plotted):
    names, (axis,), _ = plotted("word_language_model", *"--epochs 4 --layers 1".split())
    of_one, of_two = ([bar.get_height() for bar in bars] for bars in axis.containers)
    verbs = [label.get_text() for label in axis.get_xticklabels()]
    assert verbs == [*names["VERBS"], *names["VERBS"].values()]
    assert 0.8 < sum(of_one[:4]) < sum(of_one) <= 1
    assert 0.8 < sum(of_two[4:]) < sum(of_two) <= 1


@pytest.mark.parametrize("name", DRAWN)
def test_an_example_without_matplotlib_says_so_before_it_begins(name, monkeypatch, capsys):
    file = ROOT / "examples" / f"{name}.py"
    if "sklearn" in file.read_text():
        pytest.importorskip("sklearn")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", [name, "--plot", "drawn.png"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(file), run_name="__main__")
    out, told = capsys.readouterr()
    assert out == ""
    assert told.endswith("error: --plot needs matplotlib: pip install matplotlib\n")


def test_every_example_that_draws_is_tested_and_in_the_gallery():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert [file.stem for file in files if '"--plot"' in file.read_text()] == DRAWN
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in DRAWN:
        assert re.search(rf"python examples/{name}\.py( --compile)? --plot \w+\.png`", page), name
