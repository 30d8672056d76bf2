"""A run in a notebook: a bar above the rows, drawn by the page; what is public when one asks."""

import re

import pytest

from microtrain.common.threads import LAUNCH

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")
pytestmark = pytest.mark.skipif(LAUNCH.parallel, reason="starts a kernel, on one process")

MODEL = """
import numpy as np, microtrain as mt
x = np.linspace(0, 1, 400, dtype=np.float32)[:, None]
net = mt.nn.Linear(1, 1)
"""
TRAIN = """
trainer = mt.train.Trainer(
    net, (x, 2 * x + 3), loss="mse", optimizer={"type": "sgd", "lr": 0.1}, name="line",
    duration="10 epochs", batch_size=20, compile="off")
trainer.train()
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """Run one and give the messages of the kernel: (type, content) each."""
    folder = tmp_path_factory.mktemp("notebook")
    kernel, client = manager.start_new_kernel(cwd=str(folder), startup_timeout=60)

    def run(code):
        request = client.execute(code)
        messages = []
        while not messages or messages[-1] != ("status", {"execution_state": "idle"}):
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == request:
                messages.append((message["msg_type"], message["content"]))
        errors = [content for kind, content in messages if kind == "error"]
        assert not errors, "\n".join(errors[0]["traceback"])
        return messages

    run.folder, run.client = folder, client
    yield run
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def test_a_bar_stands_above_the_rows_and_goes_at_the_end(cell):
    cell(MODEL)
    messages = cell(TRAIN)
    shown = [(kind, content) for kind, content in messages if "display_data" in kind]
    assert shown[0][0] == "display_data"
    assert [kind for kind, _ in messages].index("stream") > messages.index(shown[0])
    assert {kind for kind, _ in shown[1:]} == {"update_display_data"}
    (place,) = {content["transient"]["display_id"] for _, content in shown}
    assert place
    pages = [content["data"]["text/html"] for _, content in shown]
    assert all(page.startswith('<progress value="') for page in pages[:-1])
    assert any(re.search(r"step \d+ of 200, loss [\d.e-]+, [\d,]+ samples/s", p) for p in pages)
    assert pages[-1] == ""
    printed = "".join(content["text"] for kind, content in messages if kind == "stream")
    (log,) = cell.folder.glob("runs/line/2*/log.txt")
    assert printed == log.read_text()


def test_completion_in_a_notebook_gives_the_public_names(cell):
    cell(MODEL)
    reply = cell.client.complete("mt.train.", reply=True, timeout=60)["content"]
    names = {match.removeprefix("mt.train.") for match in reply["matches"]}
    assert {"Trainer", "Callback", "every"} <= names
    assert not names & {"Any", "annotations", "observers"}


def test_modules_runs_and_trained_models_are_shown_as_tables(cell):
    def shown(code):
        (result,) = (c["data"] for kind, c in cell(code) if kind == "execute_result")
        return result

    cell(MODEL)
    net = shown("mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.ReLU(), mt.nn.Linear(4, 1))")
    assert "Sequential: 21 parameters, 84 B" in net["text/html"]
    cells = re.findall("<td[^>]*>(.*?)</td>", net["text/html"])
    assert cells[4:12] == ["0", "Linear", "16", "16", "1", "ReLU", "", ""]
    assert net["text/plain"].startswith("Sequential(\n  (0): Linear")
    assert "text/html" not in shown("mt.ones(2)")
    made = shown(TRAIN.replace("trainer.train()", "trainer"))
    assert "Linear: 2 parameters, 8 B" in made["text/html"]
    assert not [kind for kind, _ in cell("trainer.train()") if kind == "execute_result"]
    assert shown("trainer.plot()")["image/png"]
    run = shown("trainer")
    assert "finished" in run["text/html"]
    assert re.search("steps</td><td[^>]*>200</td>", run["text/html"])
    assert '<img alt="curves of' in run["text/html"]
    model = shown("mt.load(trainer.path, model=mt.nn.Linear(1, 1))")
    assert "checkpoint of step 200" in model["text/html"]
    assert re.search("Linear</td><td[^>]*>2</td><td[^>]*>2</td>", model["text/html"])
