"""A surrogate in a program with MPI of its own: some ranks simulate, others train on what they get.

Runs on any number of ranks, one included: `mpirun -n 4 python examples/own_mpi.py`.
"""

import numpy as np
from mpi4py import MPI

import microtrain as mt

POINTS, EPOCHS = 2000, 10


def simulate(x):
    """What takes hours in your program."""
    return np.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


world = MPI.COMM_WORLD
trains = world.rank % 2 == 1 or world.size == 1
simulates = not trains or world.size == 1
group = world.Split(int(trains), world.rank)  # the ranks that do the same as this one

# Each of the ranks that simulate takes its share of the points, and all get the results.
x = np.random.default_rng(0).uniform(-1, 1, (POINTS, 3)).astype(np.float32)
mine = np.array_split(x, group.size)[group.rank] if simulates else x[:0]
parts = world.allgather(simulate(mine))
y = np.concatenate(parts)

if trains:
    mt.manual_seed(0)
    net = mt.nn.Sequential(mt.nn.Linear(3, 64), mt.nn.Tanh(), mt.nn.Linear(64, 1))
    model = mt.distributed.DataParallel(net, group)  # an mpi4py communicator is taken as it is
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = mt.data.DataLoader(mt.data.ArrayDataset(x, y), batch_size=50, comm=group)
    kept = {"model": model, "optimizer": optimizer}
    state = mt.restore("surrogate", loader=loader, **kept)  # of the ranks of the model
    for epoch in range(state["epoch"] + 1 if state else 0, EPOCHS):
        for xb, yb in loader:
            optimizer.zero_grad()
            mt.nn.functional.mse_loss(model(xb), yb).backward()
            optimizer.step()
        mt.save("surrogate", epoch + 1, state={"epoch": epoch}, **kept)

# The first rank that trains tells all what the network says; the first that simulates checks it.
check = np.random.default_rng(1).uniform(-1, 1, (500, 3)).astype(np.float32)
if trains:
    with mt.no_grad():
        said = net(mt.from_numpy(check)).numpy()
else:
    said = np.empty((500, 1), np.float32)
world.Bcast(said, root=1 if world.size > 1 else 0)
if world.rank == 0:
    error = np.sqrt(((said - simulate(check)) ** 2).mean())
    print(f"{POINTS} points, {EPOCHS} epochs: the surrogate is off by {error:.4f}")
group.Free()
