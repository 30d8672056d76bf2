"""A policy that learns to balance a pole by its own trials; with torch only the imports are others.

Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
learning", 1992. The pole is that of Barto, Sutton and Anderson, 1983, as Gym's CartPole has it. 16
carts are driven at once; their episodes, padded to one length, go into one captured step.
"""

import argparse
from importlib.util import find_spec

import numpy as np

import microtrain as mt
from microtrain import nn, optim
from microtrain.distributions import Categorical
from microtrain.nn import functional as F

CARTS, LONGEST, GAMMA = 16, 200, 0.99


class Policy(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, state):
        return self.out(F.relu(self.hidden(state)))


def push(state, right):
    """The states of carts 0.02 s after a push of 10 N to the right or to the left, and falls."""
    _, speed, angle, turning = state.T
    force = np.where(right, 10.0, -10.0)
    sine, cosine = np.sin(angle), np.cos(angle)
    pull = (force + 0.05 * turning**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    moved = pull - 0.05 * bend * cosine / 1.1
    rates = np.stack([speed, moved, turning, bend], 1)
    state = (state + 0.02 * rates).astype(np.float32)
    return state, (abs(state[:, 0]) > 2.4) | (abs(state[:, 2]) > 0.2095)


def choose(logits):
    return Categorical(logits=logits).sample()


def play(policy, rng):
    """States, actions and which of them were still up, each (LONGEST, CARTS)."""
    state = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32)
    up = np.ones(CARTS, bool)
    states, actions, masks = [], [], []
    for _ in range(LONGEST):
        with mt.no_grad():
            action = choose(policy(mt.from_numpy(state))).numpy()
        states.append(state), actions.append(action), masks.append(up)
        state, fallen = push(state, action == 1)
        up = up & ~fallen
    return np.stack(states), np.stack(actions), np.stack(masks)


def returns(masks):
    """What each action was still worth: discounted rewards of 1, standardized."""
    found, after = np.zeros(masks.shape, np.float32), 0.0
    for t in reversed(range(len(masks))):
        found[t] = after = masks[t] * (1 + GAMMA * after)
    return (found - found[masks].mean()) / (found[masks].std() + 1e-6)


def main(iterations=60, policy=None, plot=None):
    """The losses, and the average length of the episodes, of each iteration."""
    rng = np.random.default_rng(1)
    mt.manual_seed(1)
    policy = Policy() if policy is None else policy
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)

    @mt.compile
    def step(states, actions, worth, masks):
        log_prob = Categorical(logits=policy(states)).log_prob(actions)
        loss = -(log_prob * worth * masks).sum() / masks.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses, lengths, episodes = [], [], []
    for iteration in range(iterations):
        states, actions, masks = play(policy, rng)
        worth, mask = returns(masks), masks.astype(np.float32)
        loss = step(*map(mt.from_numpy, (states, actions, worth, mask)))
        losses.append(float(loss))
        episodes.append(masks.sum(0))
        lengths.append(float(episodes[-1].mean()))
        print(f"iteration {iteration}  balanced for {lengths[-1]:.1f} of {LONGEST} steps")
    if plot:
        draw(plot, episodes, lengths)
    return losses, lengths


def draw(path, episodes, lengths):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    dots = axis.plot(episodes, ".", color="0.7", markersize=4)
    (line,) = axis.plot(lengths)
    axis.legend([dots[0], line], ["one cart", f"mean of {CARTS} carts"], loc="lower right")
    axis.set(xlabel="updates of the policy", ylabel=f"steps of 0.02 s balanced, of {LONGEST}")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--plot", metavar="FILE", help="draw the episodes (needs matplotlib)")
    args = parser.parse_args()
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    main(args.iterations, plot=args.plot)
