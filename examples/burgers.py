"""Burgers' equation, u_t + u u_x = nu u_xx, solved by a network, on any number of ranks.

Raissi, Perdikaris and Karniadakis, "Physics-informed neural networks", 2019; with nu = 0.02. The
network is trained until the equation holds at many points of t in [0, 1] and x in [-1, 1], and then
compared with the exact solution. `mpirun -n 4 python examples/burgers.py` divides the points among
ranks, with the same result.
"""

import argparse
from importlib.util import find_spec

import numpy as np

import microtrain as mt
from microtrain import nn, optim

NU = 0.02


class Solution(nn.Module):
    """A network that has the right values at t = 0, where u = -sin(pi x), and at x = -1 and 1."""

    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, points):
        t, x = points.split(1, 1)
        return t * (1 - x**2) * self.net(points) - (np.pi * x).sin()


def exact(t, x):
    """The solution by the transformation of Cole and Hopf, as a quotient of two integrals."""
    nodes, weights = np.polynomial.hermite.hermgauss(200)
    y = x[:, None] - np.sqrt(4 * NU * t)[:, None] * nodes
    weights = weights * np.exp(-(1 + np.cos(np.pi * y)) / (2 * np.pi * NU))
    return -(weights * np.sin(np.pi * y)).sum(1) / weights.sum(1)


def grid(times, places):
    """Points between the ends, in rows of t and x."""
    t, x = (np.arange(n) + 0.5 for n in (times, places))
    t, x = np.meshgrid(t / times, 2 * x / places - 1)
    return np.stack([t.ravel(), x.ravel()], 1)


def main(given=None):
    """Train; returns the mean square of what the equation lacks, and the relative error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--points", type=int, default=24, help="of time; of space twice as many")
    parser.add_argument("--plot", metavar="FILE", help="draw the solution (needs matplotlib)")
    args = parser.parse_args(given)
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")

    comm = mt.distributed.world()
    mt.manual_seed(0)
    solution = Solution().double()
    model = mt.distributed.DataParallel(solution, comm)
    optimizer = optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    data = mt.data.ArrayDataset(grid(args.points, 2 * args.points))
    loader = mt.data.DataLoader(data, batch_size=len(data), comm=comm)
    ((points,),) = loader  # those of this rank

    @mt.compile
    def closure(points):
        u, gradient, u_xx = mt.func.laplacian(model, points, dims=[1], with_grad=True)
        u_t, u_x = gradient.unbind(-1)
        loss = ((u_t + u * u_x - NU * u_xx) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()  # the gradient of the mean over the points of all ranks
        return loss

    for step in range(args.steps):
        optimizer.step(lambda: closure(points))
        if comm.rank == 0 and (step + 1) % (args.steps // 10 or 1) == 0:
            print(f"step {step + 1}  residual {model.loss:.2e}")
    points = grid(50, 101)
    with mt.no_grad():
        found = solution(mt.from_numpy(points)).numpy()[:, 0]
    expected = exact(*points.T)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if comm.rank == 0:
        print(f"relative error {error:.2e}")
        if args.plot:
            draw(args.plot, *(of.reshape(101, 50) for of in (*points.T, found, expected)))
    return model.loss, error


def draw(path, t, x, found, expected):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axis.plot([], color="0.75", linewidth=5, label="exact")
    for time in (0, 12, 24, 49):
        axis.plot(x[:, time], expected[:, time], color="0.75", linewidth=5)
        axis.plot(x[:, time], found[:, time], label=f"network, t = {t[0, time]:.2f}")
    axis.legend()
    axis.set(xlabel="x", ylabel="u(t, x)")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
