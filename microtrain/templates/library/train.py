"""A loop of your own; the same file runs alone and as `microtrain launch -n 4 train.py`."""

import sys

import numpy as np

import microtrain as mt

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10

rng = np.random.default_rng(0)
x = rng.standard_normal((4096, 8), np.float32)
y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

comm = mt.distributed.world()  # without MPI: one process, size 1, the same code
mt.manual_seed(0)
net = mt.nn.Sequential(mt.nn.Linear(8, 64), mt.nn.ReLU(), mt.nn.Linear(64, 1))
model = mt.distributed.DataParallel(net, comm)
optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = mt.data.DataLoader(mt.data.ArrayDataset(x, y), batch_size=64, comm=comm)  # 64 is global


@mt.compile  # optional; the loop is right without it
def step(xb, yb):
    optimizer.zero_grad()
    loss = mt.nn.functional.mse_loss(model(xb), yb)  # mean over this rank's samples
    loss.backward()  # gradients are global and final when this returns
    optimizer.step()
    return loss


for epoch in range(epochs):
    for xb, yb in loader:
        step(xb, yb)
    if comm.rank == 0:
        print(f"epoch {epoch}  loss {model.loss:.4f}")  # the exact global loss of the last step
