"""Every slip of the fingers in every key and registered name gets the right suggestion."""

import copy
import functools
import operator
import re
from pathlib import Path

import pytest
import yaml

from microtrain.common.spelling import closest, did_you_mean
from microtrain.config.components import load, settable
from microtrain.config.document import read_file
from microtrain.config.load import load_config, load_sweep
from microtrain.config.registered import REGISTERED
from microtrain.config.schema import LISTS, OWN_KEYS, SECTIONS
from microtrain.errors import ConfigError

COMPLETE = {
    "name": "t",
    "data": "{type: synthetic_linear, samples: 100, weights: [2]}",
    "model": "linear_regression",
    "loss": "mse",
    "optimizer": "{type: sgd, lr: 0.1}",
    "train": "{duration: 2 epochs, batch_size: 10}",
}


@pytest.fixture(autouse=True)
def all_of_them(monkeypatch):
    """A file here has more mistakes than are shown to a person."""
    for module in ("check", "tree"):
        monkeypatch.setattr(f"microtrain.config.{module}.MOST", 10**6)


def slips(word):
    """One letter dropped, doubled, two neighbors swapped; `-` for `_`, and `_` left out."""
    for i in range(len(word)):
        yield word[:i] + word[i + 1 :]
        yield word[: i + 1] + word[i:]
        yield word[:i] + word[i + 1 : i + 2] + word[i] + word[i + 2 :]
        if word[i] == "_":
            yield word[:i] + "-" + word[i + 1 :]


def slips_of(known):
    """(slip, the word that was meant) for words of four letters or more, real words left out."""
    return sorted(
        {(slip, word) for word in known if len(word) >= 4 for slip in slips(word)}
        - {(word, meant) for word in known for meant in known}
    )


def keys_of_components():
    for kind, names in REGISTERED.items():
        for name in names:
            own = OWN_KEYS.get(kind, ())
            yield kind, name, [*own, *settable(load(kind, name), name)]


def messages(tmp_path, document):
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in document.items()))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


def suggestions(tmp_path, lines):
    """The number of the line to what is said there, of one file with a slip on each line."""
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    report = str(caught.value).splitlines()
    places = [(re.match(r"\S+run.yaml:(\d+):\d+ ", line), i) for i, line in enumerate(report)]
    return {int(m[1]): report[i + 2].rpartition("^ ")[2] for m, i in places if m}


def in_one_file(tmp_path, cases, head, indent):
    """Every slip on its own line below `head`: each gets its suggestion on its own line."""
    assert cases
    lines = head + [f"{indent}{slip}: 1" for slip, _ in cases]
    found = suggestions(tmp_path, lines)
    for line, (slip, meant) in enumerate(cases, len(head) + 1):
        assert found[line] == f"unknown key; did you mean {meant}?", (slip, found[line])


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_slip_in_every_key_of_a_section(section, tmp_path):
    cases = slips_of(settable(SECTIONS[section], ""))
    parts = section.split(".") if section else []
    head = [f"{'  ' * i}{part}:" for i, part in enumerate(parts)]
    in_one_file(tmp_path, cases, head, "  " * len(parts))


@pytest.mark.daily("optimizer:", "loss:")
@pytest.mark.parametrize(
    "kind, name, known",
    [pytest.param(*case, id=":".join(case[:2])) for case in keys_of_components()],
)
def test_every_slip_in_every_argument_of_every_registered_component(kind, name, known, tmp_path):
    cases = slips_of(known)
    if not cases:
        assert all(len(key) < 4 for key in known)
        return
    is_list = kind in LISTS
    head = [f"{kind}:", f"  {'- ' if is_list else ''}type: {name}"]
    in_one_file(tmp_path, cases, head, "    " if is_list else "  ")


@pytest.mark.parametrize("kind", LISTS)
def test_every_slip_in_a_list_of_registered_names_on_its_line(kind, tmp_path):
    cases = slips_of(REGISTERED[kind])
    found = suggestions(tmp_path, [f"{kind}:", *(f"  - {slip}" for slip, _ in cases)])
    for line, (slip, meant) in enumerate(cases, 2):
        assert f"did you mean {meant}?" in found[line], (slip, found[line])


@pytest.mark.parametrize("kind", sorted(kind for kind, names in REGISTERED.items() if names))
def test_every_slip_in_every_registered_name(kind):
    for slip, meant in slips_of(REGISTERED[kind]):
        with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
            load(kind, slip)


def test_a_misspelled_argument_is_shown_where_it_stands(tmp_path):
    document = COMPLETE | {"optimizer": "{type: sgd, lr: 0.1, momentun: 0.9}"}
    text = messages(tmp_path, document)
    assert "optimizer.momentun" in text
    assert "^^^^^^^^ unknown key; did you mean momentum?" in text
    assert text.splitlines()[-1].startswith("hint: sgd takes: lr, momentum")


@pytest.mark.parametrize(
    "document, found",
    [
        ({"batch_size": "64"}, "unknown key here; did you mean train.batch_size?"),
        ({"batchsize": "64"}, "unknown key here; did you mean train.batch_size?"),
        ({"lr": "0.1"}, "unknown key here; did you mean optimizer.lr?"),
        ({"samples": "10"}, "unknown key here; did you mean data.samples?"),
        ({"every": "1 epoch"}, "unknown key here; did you mean checkpoint.every or log.every?"),
        ({"epochs": "20"}, "unknown key here; did you mean train.duration?"),
        ({"mode": "min"}, "unknown key; did you mean model?"),
        ({"train.batch_size": "3"}, "write train: {batch_size: ...}"),
        ({"data.split.train": "0.5"}, "write data: {split: {train: ...}}"),
        ({"optimizer": "{type: sgd, lr: 1, betas: 2}"}, "^^^^^ unknown key\n"),
        ({"loss": "{type: mse, nope: 3}"}, "^^^^ unknown key\n"),
        ({"checkpoint": "{metrics: r2}"}, "unknown key here; did you mean metrics?"),
        ({"optim": "sgd"}, "unknown key; did you mean optimizer?"),
        ({"optimizer": "{type: sgd, learning_rate: 1}"}, "did you mean optimizer.lr?"),
        ({"zebra": "1"}, "^^^^^ unknown key\n"),
        ({"device": "gpu"}, 'expected auto, cpu or cuda, got the text "gpu"; did you mean cuda?'),
        ({"dtype": "flaot64"}, "did you mean float64?"),
        ({"train": "{duration: 1 epoch, batch_size: 2, shuffle: off}"}, "did you mean false?"),
    ],
)
def test_a_key_in_the_wrong_place_and_words_of_other_tools(document, found, tmp_path):
    assert found in messages(tmp_path, COMPLETE | document)


def test_a_misspelled_required_key_is_one_problem_not_two(tmp_path):
    document = COMPLETE | {"train": "{duration: 2 epochs, batchsize: 10}"}
    assert messages(tmp_path, document).startswith("1 problem in ")


def test_no_suggestion_where_nothing_is_near():
    assert closest("x", ["batch_size", "lr"]) is None
    assert did_you_mean("temperature", ["lr", "momentum"]) == ""


def test_a_slip_is_nearer_than_another_word():
    assert closest("adamm", ["adamw", "adam"]) == "adam"
    assert closest("rmes", ["mse", "rmse"]) == "rmse"


SHIPPED = sorted(Path(__file__).parents[2].glob("configs/*.yaml"))


def keys_of(plain, above=()):
    """The paths of all keys of a tree that a section or a component has."""
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        path = (*above, key)
        if isinstance(key, str) and path[:2] not in [("data", "columns"), ("sweep", "random")]:
            yield path
        if isinstance(value, dict | list):
            yield from keys_of(value, path)


def mistyped(plain, path):
    """The tree with this key mistyped in each way, or at the wrong level, and where it then is."""
    *above, key = path
    middle = len(key) // 2
    ways = [
        key[:middle] + key[middle + 1 :],
        key[: middle + 1] + key[middle:],
        key[: middle - 1] + key[middle] + key[middle - 1] + key[middle + 1 :],
        key.upper(),
        key.replace("_", "-"),
    ]
    names = settable(SECTIONS[""], "")
    for slip in dict.fromkeys(ways):
        changed = copy.deepcopy(plain)
        section = functools.reduce(operator.getitem, above, changed)
        entries = {slip if k == key else k: v for k, v in section.items()}
        if slip not in section and not (not above and slip in names):
            section.clear()
            section.update(entries)
            yield changed, (*above, slip), key
    if above and key not in (*names, "type", "mode") and isinstance(above[-1], str):
        changed = copy.deepcopy(plain)
        changed[key] = functools.reduce(operator.getitem, above, changed).pop(key)
        yield changed, (key,), ".".join(path)


@pytest.mark.daily("linreg", "digits]")
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda path: path.stem)
def test_every_key_of_every_shipped_file_mistyped_is_one_error_at_its_place(shipped, tmp_path):
    for each in shipped.parent.glob("*.*"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    plain = read_file(shipped, shipped.name, []).plain()
    cases = [case for path in keys_of(plain) for case in mistyped(plain, path)]
    assert len(cases) > 20
    for changed, path, meant in cases:
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
        place = read_file(tmp_path / "run.yaml", "run.yaml", [])
        place = functools.reduce(lambda node, key: node.value[key], path, place).key
        with pytest.raises(ConfigError) as caught:
            load_sweep(tmp_path / "run.yaml")
        text = str(caught.value)
        assert text.startswith("1 problem in "), (path, text)
        assert f"run.yaml:{place.line}:{place.column}  {'.'.join(map(str, path))}\n" in text, text
        assert meant in re.search(r"did you mean (.*)\?", text)[1].split(" or "), (path, text)
