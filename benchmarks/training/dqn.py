"""Deep Q-learning: one action at a time, a memory of transitions, a target network that follows slowly."""
import random
from collections import deque, namedtuple

import torch
from clock import STEPS, by_hand, tick
from torch import nn

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(4, 128), nn.Linear(128, 128), nn.Linear(128, 2)

    def forward(self, x):
        return self.layer3(torch.relu(self.layer2(torch.relu(self.layer1(x)))))


torch.manual_seed(0)
random.seed(0)
policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=3e-4, amsgrad=True)
memory = deque(maxlen=10_000)
BATCH = 64


def select_action(state, epsilon):
    if random.random() > epsilon:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


def update(state, action, reward, next_states, mask):
    values = policy_net(state).gather(1, action)
    following = torch.zeros(BATCH)
    with torch.no_grad():
        following[mask] = target_net(next_states).max(1).values
    loss = nn.functional.smooth_l1_loss(values, (following * 0.99 + reward).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


update = by_hand(update)


def optimize_model():
    if len(memory) < BATCH:
        return
    batch = Transition(*zip(*random.sample(memory, BATCH)))
    mask = torch.tensor([s is not None for s in batch.next_state])
    next_states = torch.cat([s for s in batch.next_state if s is not None])
    update(torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward), next_states, mask)


state = torch.randn(1, 4)
for step in range(STEPS * 4):
    action = select_action(state, 0.05 + 0.85 * 0.99**step)
    ended = random.random() < 0.05
    next_state = None if ended else 0.9 * state + 0.1 * torch.randn(1, 4) * (1 + action.item())
    memory.append(Transition(state, action, next_state, torch.tensor([1.0])))
    state = torch.randn(1, 4) if next_state is None else next_state
    optimize_model()
    target, policy = target_net.state_dict(), policy_net.state_dict()
    for key in policy:
        target[key] = policy[key] * 0.005 + target[key] * 0.995
    target_net.load_state_dict(target)
    if step % 4 == 3:
        tick()
