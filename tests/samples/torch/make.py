"""Writes the samples of PyTorch's formats beside this file: `python make.py`, with torch."""

from pathlib import Path

import torch

HERE = Path(__file__).parent

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.linspace(-1, 1, 15).reshape(5, 3)
model(x).square().mean().backward()
optimizer.step()
base = torch.arange(24, dtype=torch.float64).reshape(4, 6)
state = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "epoch": 3,
    "notes": ["text", (1, 2.5, True, None), {7: "seven"}],
    "views": {"base": base, "columns": base[1:, ::2], "turned": base.T, "row": base[2]},
    "dtypes": {
        str(dtype).removeprefix("torch."): torch.tensor([0, 1, 2]).to(dtype)
        for dtype in (
            *(torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8),
            *(torch.int8, torch.int16, torch.int32, torch.int64),
        )
    },
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5),
    "parameter": torch.nn.Parameter(torch.tensor([1.0, 2.0])),
    "output": None,
}
with torch.no_grad():
    state["output"] = model.eval()(x)
torch.save(state, HERE / "state.pt")
torch.save({"net": {"weight": torch.tensor([1.0, 3.1415927, 1e30]).bfloat16()}}, HERE / "bf16.pt")
torch.save({"weight": torch.ones(2)}, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
