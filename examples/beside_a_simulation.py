"""A network learns beside the simulation that it is to replace, on half of the program's ranks.

The others simulate, and send what they find as rows; nothing is written to disk, and no simulation
waits for the training. Runs on any number of ranks: `mpirun -n 4 python
examples/beside_a_simulation.py`.
"""

import numpy as np
from mpi4py import MPI

import microtrain as mt

ROUNDS, ROWS = 300, 64


def simulate(rng):
    """Pendulums: where each is let go, its friction, and where it is after 100 steps of time."""
    angle, friction = rng.uniform(-1.5, 1.5, ROWS), rng.uniform(0, 1, ROWS)
    rows, speed = [angle, friction], np.zeros(ROWS)
    for _ in range(100):
        speed = speed - 0.03 * (np.sin(angle) + friction * speed)
        angle = angle + 0.03 * speed
    return np.stack([*rows, angle], 1).astype(np.float32)


world = MPI.COMM_WORLD
trainers = range(world.size // 2) if world.size > 1 else [0]
simulators = range(world.size // 2, world.size)
trains, simulates = world.rank in trainers, world.rank in simulators
group = world.Split(0 if trains else MPI.UNDEFINED, world.rank)  # the ranks that train
if trains:
    mine = [rank for rank in simulators if rank % len(trainers) == world.rank]
    mt.manual_seed(0)
    net = mt.nn.Sequential(mt.nn.Linear(2, 32), mt.nn.Tanh(), mt.nn.Linear(32, 1))
    model = mt.distributed.DataParallel(net, group)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
rng = np.random.default_rng(world.rank)

for _ in range(ROUNDS):
    if simulates:
        to = world.rank % len(trainers)
        mt.distributed.send(mt.from_numpy(simulate(rng)), to, comm=world)
    if trains:
        rows = mt.cat([mt.distributed.recv((ROWS, 3), rank, comm=world) for rank in mine])
        optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(rows[:, :2]), rows[:, 2:]).backward()
        optimizer.step()

if world.rank == 0:
    rows = mt.from_numpy(simulate(np.random.default_rng(99)))
    with mt.no_grad():
        error = (net(rows[:, :2]) - rows[:, 2:]).square().mean().sqrt().item()
    spread = rows[:, 2].std().item()
    print(f"{ROUNDS} rounds: off by {error:.3f} where the results spread by {spread:.3f}")
