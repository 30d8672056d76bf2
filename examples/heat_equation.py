"""How well does each spot of a plate conduct heat? Found from temperatures that were measured.

The plate is a grid of cells over a grid of ranks; each rank has a block of it, steps the heat
equation there, and learns the conductivity of its own cells. What it needs of its neighbors is
their border, `halo`, whose gradient goes back to them. Runs on any number of ranks, also without
MPI, with the same result: `mpirun -n 4 python examples/heat_equation.py [--plot plate.png]`.
"""

import argparse
from importlib.util import find_spec

import numpy as np

import microtrain as mt
from microtrain.distributed import all_reduce, halo

CELLS, STEPS, EVERY, DT = 16, 12, 3, 0.15  # cells of a side; time steps, of which some are measured
ROUNDS = 100


class Plate:
    """This rank's block of a plate whose walls are kept at temperature 0."""

    def __init__(self, comm):
        self.comm = comm
        first = max(d for d in range(1, comm.size + 1) if comm.size % d == 0 and d * d <= comm.size)
        self.grid = (comm.size // first, first)
        place = np.unravel_index(comm.rank, self.grid)
        both = zip(self.grid, place, strict=True)
        parts = [np.array_split(np.arange(CELLS), ranks)[i] for ranks, i in both]
        self.x, self.y = np.meshgrid(*parts, indexing="ij")

    def conductivity(self):
        """What is to be found: a good conductor with an insulating stripe."""
        far = np.hypot(self.x - 10.3, self.y - 5.2) / 4
        stripe = np.exp(-(((self.x + self.y - 22) / 3) ** 2))
        return mt.tensor(0.7 + 0.8 * np.exp(-(far**2)) - 0.4 * stripe)

    def heated(self):
        """The temperatures at the beginning of four experiments, each with another hot spot."""
        spots = [(4, 4), (4, 11), (11, 4), (11, 11)]
        found = [np.exp(-((self.x - a) ** 2 + (self.y - b) ** 2) / 20) for a, b in spots]
        return mt.tensor(np.stack(found))

    def halo(self, field, dims):
        return halo(field, dims, grid=self.grid, comm=self.comm)

    def temperatures(self, conductivity):
        """Those at the times of a measurement, of all experiments: (times, experiments, x, y)."""
        k = self.halo(conductivity, (0, 1))
        across = (k[1:, 1:-1] + k[:-1, 1:-1]) / 2  # through the faces between two cells
        along = (k[1:-1, 1:] + k[1:-1, :-1]) / 2
        u, found = self.heated(), []
        for step in range(1, STEPS + 1):
            wide = self.halo(u, (1, 2))  # zeros beyond the walls, which are that cold
            flow = across * (wide[:, 1:, 1:-1] - wide[:, :-1, 1:-1])
            other = along * (wide[:, 1:-1, 1:] - wide[:, 1:-1, :-1])
            u = u + DT * (flow[:, 1:] - flow[:, :-1] + other[:, :, 1:] - other[:, :, :-1])
            if step % EVERY == 0:
                found.append(u)
        return mt.stack(found)

    def misfit(self, conductivity, measured):
        """This rank's share of the mean squared error: the sum over the ranks is the whole."""
        count = STEPS // EVERY * 4 * CELLS**2
        return ((self.temperatures(conductivity) - measured) ** 2).sum() / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="a picture of the plate (needs matplotlib)")
    arguments = parser.parse_args()
    if arguments.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    comm = mt.distributed.world()
    plate = Plate(comm)
    truth = plate.conductivity()
    with mt.no_grad():
        measured = plate.temperatures(truth)

    k = mt.nn.Parameter(mt.full(truth.shape, 0.7, dtype=mt.float64))
    optimizer = mt.optim.Adam([k], lr=0.02)

    @mt.compile
    def step():
        optimizer.zero_grad()
        loss = plate.misfit(k, measured)
        loss.backward()  # every rank's: with the gradients that come from its neighbors
        optimizer.step()
        return loss

    def error():
        with mt.no_grad():
            return all_reduce(((k - truth) ** 2).sum() / CELLS**2).sqrt().item()

    before = error()
    for _ in range(ROUNDS):
        loss = step()
    after, loss = error(), all_reduce(loss).sqrt().item()
    if comm.rank == 0:
        print(f"temperatures are off by {loss:.2e}, conductivities by {after:.4f} ({before:.4f})")
    if arguments.plot:
        blocks = comm.gather_object((plate.x, plate.y, truth.numpy(), k.detach().numpy()))
        if comm.rank == 0:
            plot(blocks, arguments.plot)


def plot(blocks, file):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
    ticks = range(0, CELLS, 5)
    for axis, title, number in zip(axes, ("true", "found"), (2, 3), strict=True):
        whole = np.empty((CELLS, CELLS))
        for block in blocks:
            whole[block[0], block[1]] = block[number]
        image = axis.imshow(whole, vmin=0.2, vmax=1.5)
        axis.set(title=title, xlabel="cell", ylabel="cell", xticks=ticks, yticks=ticks)
    figure.colorbar(image, ax=axes, label="conductivity", shrink=0.8)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
