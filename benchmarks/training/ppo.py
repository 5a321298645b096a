"""Proximal policy optimisation on a pole that is to be balanced, as single-file implementations write it."""
import numpy as np
import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.distributions import Categorical

ENVIRONMENTS, ROLLOUT, EPOCHS, MINIBATCH = 4, 32, 2, 64


class Poles:
    """Poles on carts: position, speed, angle, angular speed of each."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.state = self.rng.uniform(-0.05, 0.05, (ENVIRONMENTS, 4))

    def step(self, action):
        x, v, a, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        temp = (force + 0.05 * w**2 * np.sin(a)) / 1.1
        acc = (9.8 * np.sin(a) - np.cos(a) * temp) / (0.5 * (4 / 3 - 0.1 * np.cos(a)**2 / 1.1))
        self.state = np.stack([x + 0.02 * v, v + 0.02 * (temp - 0.05 * acc * np.cos(a) / 1.1), a + 0.02 * w, w + 0.02 * acc], 1)
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.2)
        self.state[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 4))
        return self.state.astype(np.float32), np.ones(ENVIRONMENTS, np.float32), done.astype(np.float32)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


torch.manual_seed(0)
agent, poles = Agent(), Poles()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)


def update(obs, actions, old_logprob, advantages, returns):
    _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions)
    ratio = (newlogprob - old_logprob).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
    loss = policy - 0.01 * entropy.mean() + 0.5 * 0.5 * ((newvalue.view(-1) - returns) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


update = by_hand(update)
observation, done = torch.tensor(poles.state, dtype=torch.float32), torch.zeros(ENVIRONMENTS)
for _iteration in range(STEPS):
    obs = torch.zeros(ROLLOUT, ENVIRONMENTS, 4)
    actions = torch.zeros(ROLLOUT, ENVIRONMENTS, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(ROLLOUT, ENVIRONMENTS) for _ in range(4))
    for step in range(ROLLOUT):
        obs[step], dones[step] = observation, done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(observation)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        seen, reward, ended = poles.step(action.numpy())
        observation, rewards[step], done = torch.tensor(seen), torch.tensor(reward), torch.tensor(ended)
    with torch.no_grad():
        following = agent.get_value(observation).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(ROLLOUT)):
            alive = 1.0 - (done if t == ROLLOUT - 1 else dones[t + 1])
            after = following if t == ROLLOUT - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * after * alive - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        returns = advantages + values
    flat = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
    for _ in range(EPOCHS):
        order = torch.randperm(ROLLOUT * ENVIRONMENTS)
        for start in range(0, ROLLOUT * ENVIRONMENTS, MINIBATCH):
            update(*(part[order[start:start + MINIBATCH]] for part in flat))
    tick()
