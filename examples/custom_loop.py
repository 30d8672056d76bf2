"""A model and a loop of your own; the same file runs alone and under `mpirun -n 4 python`."""

import numpy as np

import microtrain as mt


class Net(mt.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = mt.nn.Linear(8, 32)
        self.out = mt.nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


rng = np.random.default_rng(0)
x = rng.standard_normal((4096, 8), np.float32)
y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

comm = mt.distributed.world()  # without MPI: one process, size 1, the same code
mt.manual_seed(0)
model = mt.distributed.DataParallel(Net(), comm)
optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = mt.data.DataLoader(mt.data.ArrayDataset(x, y), batch_size=64, comm=comm)  # 64 is global

kept = {"model": model, "optimizer": optimizer}
state = mt.restore("checkpoints", loader=loader, **kept)  # None at the first start
for epoch in range(state["epoch"] + 1 if state else 0, 10):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(model(xb), yb)  # mean over this rank's samples
        loss.backward()  # gradients are global and final when this returns
        optimizer.step()
    if comm.rank == 0:
        print(f"epoch {epoch}  loss {model.loss:.4f}")  # the exact global loss of the last step
    mt.save("checkpoints", epoch + 1, state={"epoch": epoch}, **kept)  # where a restart resumes
if comm.rank == 0 and state and state["epoch"] == 9:
    print("all 10 epochs are already done; `rm -r checkpoints` to start over")
