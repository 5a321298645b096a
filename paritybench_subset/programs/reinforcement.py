"""Agents: policies with distributions, duelling networks, noisy layers, recurrent critics, normalised observations."""
from __future__ import annotations

import copy
import math
from collections import deque
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical, Normal

from paritybench_subset.cases import inputs, program


def init(module, weight_init, bias_init, gain=1):
    weight_init(module.weight.data, gain=gain)
    bias_init(module.bias.data)
    return module


class NNBase(nn.Module):
    def __init__(self, recurrent, recurrent_input_size, hidden_size):
        super(NNBase, self).__init__()
        self._hidden_size = hidden_size
        self._recurrent = recurrent
        if recurrent:
            self.gru = nn.GRU(recurrent_input_size, hidden_size)
            for name, param in self.gru.named_parameters():
                if 'bias' in name:
                    nn.init.constant_(param, 0)
                elif 'weight' in name:
                    nn.init.orthogonal_(param)

    @property
    def is_recurrent(self):
        return self._recurrent

    def _forward_gru(self, x, hxs, masks):
        if x.size(0) == hxs.size(0):
            x, hxs = self.gru(x.unsqueeze(0), (hxs * masks).unsqueeze(0))
            return x.squeeze(0), hxs.squeeze(0)
        N = hxs.size(0)
        T = int(x.size(0) / N)
        x = x.view(T, N, x.size(1))
        masks = masks.view(T, N)
        hxs = hxs.unsqueeze(0)
        outputs = []
        for t in range(T):
            rnn_scores, hxs = self.gru(x[t:t + 1], hxs * masks[t].view(1, -1, 1))
            outputs.append(rnn_scores)
        return torch.cat(outputs, dim=0).view(T * N, -1), hxs.squeeze(0)


class MLPBase(NNBase):
    def __init__(self, num_inputs, recurrent=False, hidden_size=8):
        super(MLPBase, self).__init__(recurrent, num_inputs, hidden_size)
        if recurrent:
            num_inputs = hidden_size
        init_ = lambda m: init(m, nn.init.orthogonal_, lambda x: nn.init.constant_(x, 0), np.sqrt(2))
        self.actor = nn.Sequential(init_(nn.Linear(num_inputs, hidden_size)), nn.Tanh())
        self.critic = nn.Sequential(init_(nn.Linear(num_inputs, hidden_size)), nn.Tanh())
        self.critic_linear = init_(nn.Linear(hidden_size, 1))
        self.train()

    def forward(self, inputs, rnn_hxs, masks):
        x = inputs
        if self.is_recurrent:
            x, rnn_hxs = self._forward_gru(x, rnn_hxs, masks)
        hidden_critic = self.critic(x)
        hidden_actor = self.actor(x)
        return self.critic_linear(hidden_critic), hidden_actor, rnn_hxs


@program(lambda: inputs(torch.randn(6, 4), torch.randn(2, 8), torch.ones(6, 1)))
def recurrent_actor_critic():
    return MLPBase(4, recurrent=True)


class FixedNormal(Normal):
    def log_probs(self, actions):
        return super().log_prob(actions).sum(-1, keepdim=True)

    def mode(self):
        return self.mean


class DiagGaussian(nn.Module):
    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.fc_mean = nn.Linear(num_inputs, num_outputs)
        self.logstd = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x):
        action_mean = self.fc_mean(x)
        zeros = torch.zeros(action_mean.size())
        action_logstd = zeros + self.logstd
        dist = FixedNormal(action_mean, action_logstd.exp(), validate_args=False)
        action = dist.rsample() if self.training else dist.mode()
        return action, dist.log_prob(action).sum(-1)


@program(lambda: inputs(torch.randn(3, 4)))
def gaussian_policy():
    return DiagGaussian(4, 2)


class DiscretePolicy(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.affine1 = nn.Linear(state_dim, 8)
        self.action_head = nn.Linear(8, action_dim)
        self.value_head = nn.Linear(8, 1)
        self.saved_actions = deque(maxlen=2)

    def forward(self, x):
        x = F.relu(self.affine1(x))
        m = Categorical(logits=self.action_head(x))
        action = m.sample()
        self.saved_actions.append((m.log_prob(action), self.value_head(x)))
        return action, m.entropy().mean()


@program(lambda: inputs(torch.randn(3, 4)))
def categorical_policy():
    return DiscretePolicy(4, 3)


class NoisyLinear(nn.Module):
    def __init__(self, in_features, out_features, std_init=0.5):
        super(NoisyLinear, self).__init__()
        self.in_features, self.out_features, self.std_init = in_features, out_features, std_init
        self.weight_mu = nn.Parameter(torch.empty(out_features, in_features))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features))
        self.register_buffer('weight_epsilon', torch.empty(out_features, in_features))
        self.bias_mu = nn.Parameter(torch.empty(out_features))
        self.bias_sigma = nn.Parameter(torch.empty(out_features))
        self.register_buffer('bias_epsilon', torch.empty(out_features))
        self.reset_parameters()
        self.reset_noise()

    def reset_parameters(self):
        mu_range = 1 / math.sqrt(self.in_features)
        self.weight_mu.data.uniform_(-mu_range, mu_range)
        self.weight_sigma.data.fill_(self.std_init / math.sqrt(self.in_features))
        self.bias_mu.data.uniform_(-mu_range, mu_range)
        self.bias_sigma.data.fill_(self.std_init / math.sqrt(self.out_features))

    def _scale_noise(self, size):
        x = torch.randn(size)
        return x.sign().mul_(x.abs().sqrt_())

    def reset_noise(self):
        epsilon_in = self._scale_noise(self.in_features)
        epsilon_out = self._scale_noise(self.out_features)
        self.weight_epsilon.copy_(epsilon_out.ger(epsilon_in))
        self.bias_epsilon.copy_(epsilon_out)

    def forward(self, input):
        if self.training:
            return F.linear(input, self.weight_mu + self.weight_sigma * self.weight_epsilon, self.bias_mu + self.bias_sigma * self.bias_epsilon)
        else:
            return F.linear(input, self.weight_mu, self.bias_mu)


class RainbowDQN(nn.Module):
    def __init__(self, args, action_space):
        super().__init__()
        self.atoms, self.action_space = args.atoms, action_space
        self.convs = nn.Sequential(nn.Conv2d(args.history_length, 4, 3, stride=2), nn.ReLU())
        self.conv_output_size = 36
        for name, size in (('fc_h_v', None), ('fc_h_a', None), ('fc_z_v', self.atoms), ('fc_z_a', action_space * self.atoms)):
            source = self.conv_output_size if size is None else args.hidden_size
            setattr(self, name, NoisyLinear(source, size or args.hidden_size, std_init=args.noisy_std))

    def reset_noise(self):
        for name, module in self.named_children():
            if 'fc' in name:
                module.reset_noise()

    def forward(self, x, log=False):
        if self.training:
            self.reset_noise()
        x = self.convs(x)
        x = x.view(-1, self.conv_output_size)
        v = self.fc_z_v(F.relu(self.fc_h_v(x)))
        a = self.fc_z_a(F.relu(self.fc_h_a(x)))
        v, a = v.view(-1, 1, self.atoms), a.view(-1, self.action_space, self.atoms)
        q = v + a - a.mean(1, keepdim=True)
        if log:
            q = F.log_softmax(q, dim=2)
        else:
            q = F.softmax(q, dim=2)
        return q


@program(lambda: inputs(torch.rand(2, 2, 8, 8), log=True))
def rainbow():
    return RainbowDQN(SimpleNamespace(atoms=5, history_length=2, hidden_size=8, noisy_std=0.1), 3)


LOG_STD_MAX, LOG_STD_MIN = 2, -20


def mlp(sizes, activation, output_activation=nn.Identity):
    layers = []
    for j in range(len(sizes) - 1):
        act = activation if j < len(sizes) - 2 else output_activation
        layers += [nn.Linear(sizes[j], sizes[j + 1]), act()]
    return nn.Sequential(*layers)


class SquashedGaussianActor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, act_limit):
        super().__init__()
        self.net = mlp([obs_dim] + list(hidden_sizes), activation, activation)
        self.mu_layer = nn.Linear(hidden_sizes[-1], act_dim)
        self.log_std_layer = nn.Linear(hidden_sizes[-1], act_dim)
        self.act_limit = act_limit

    def forward(self, obs, deterministic=False, with_logprob=True):
        net_out = self.net(obs)
        mu = self.mu_layer(net_out)
        log_std = torch.clamp(self.log_std_layer(net_out), LOG_STD_MIN, LOG_STD_MAX)
        std = torch.exp(log_std)
        pi_distribution = Normal(mu, std)
        pi_action = mu if deterministic else pi_distribution.rsample()
        if with_logprob:
            logp_pi = pi_distribution.log_prob(pi_action).sum(axis=-1)
            logp_pi -= (2 * (np.log(2) - pi_action - F.softplus(-2 * pi_action))).sum(axis=1)
        else:
            logp_pi = None
        return self.act_limit * torch.tanh(pi_action), logp_pi


@program(lambda: inputs(torch.randn(3, 4)))
def soft_actor_critic():
    return SquashedGaussianActor(4, 2, (8, 8), nn.ReLU, act_limit=2.0)


class RunningMeanStd(nn.Module):
    def __init__(self, shape, epsilon=1e-5):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("running_var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.ones((), dtype=torch.float64))
        self.epsilon = epsilon

    def _update(self, mean, var, count, batch_mean, batch_var, batch_count):
        delta = batch_mean - mean
        tot_count = count + batch_count
        M2 = var * count + batch_var * batch_count + delta ** 2 * count * batch_count / tot_count
        return mean + delta * batch_count / tot_count, M2 / tot_count, tot_count

    def forward(self, input, unnorm=False):
        if self.training:
            mean, var = input.mean(0), input.var(0)
            self.running_mean, self.running_var, self.count = self._update(
                self.running_mean, self.running_var, self.count, mean, var, input.size()[0])
        if unnorm:
            return torch.sqrt(self.running_var.float() + self.epsilon) * torch.clamp(input, -5, 5) + self.running_mean.float()
        y = (input - self.running_mean.float()) / torch.sqrt(self.running_var.float() + self.epsilon)
        return torch.clamp(y, min=-5.0, max=5.0)


@program(lambda: inputs(torch.randn(5, 3)))
def normalised_observations():
    return RunningMeanStd((3,))


class TwinCritic(nn.Module):
    """TD3: a target that is a copy of the critics, moved towards them in each training call."""

    def __init__(self, state_dim, action_dim, tau=0.05):
        super().__init__()
        self.q1 = mlp([state_dim + action_dim, 8, 1], nn.ReLU)
        self.q2 = copy.deepcopy(self.q1).apply(self.reset)
        self.target = copy.deepcopy(nn.ModuleList([self.q1, self.q2]))
        for p in self.target.parameters():
            p.requires_grad = False
        self.tau = tau
        self.total_it = 0

    @staticmethod
    def reset(m):
        if isinstance(m, nn.Linear):
            m.reset_parameters()

    def forward(self, state, action, reward, not_done, discount=0.99):
        self.total_it += 1
        sa = torch.cat([state, action], 1)
        with torch.no_grad():
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            next_sa = torch.cat([state, (action + noise).clamp(-1, 1)], 1)
            target_Q = torch.min(self.target[0](next_sa), self.target[1](next_sa))
            target_Q = reward + not_done * discount * target_Q
        loss = F.mse_loss(self.q1(sa), target_Q) + F.mse_loss(self.q2(sa), target_Q)
        if self.training:
            with torch.no_grad():
                for online, target in ((self.q1, self.target[0]), (self.q2, self.target[1])):
                    for param, target_param in zip(online.parameters(), target.parameters()):
                        target_param.data.copy_(self.tau * param.data + (1 - self.tau) * target_param.data)
        return {"loss": loss, "step": self.total_it}


@program(lambda: inputs(torch.randn(4, 3), torch.rand(4, 2), torch.rand(4, 1), torch.ones(4, 1)))
def twin_delayed_critics():
    return TwinCritic(3, 2)


class ICM(nn.Module):
    """Curiosity: features of states, a forward and an inverse model, returned as a tuple of losses."""

    def __init__(self, feature_size, num_actions):
        super().__init__()
        self.num_actions = num_actions
        self.features = nn.Sequential(nn.Flatten(), nn.LazyLinear(feature_size), nn.ELU())
        self.inverse_net = nn.Linear(feature_size * 2, num_actions)
        self.forward_net = nn.Linear(feature_size + num_actions, feature_size)

    def forward(self, state, next_state, action):
        encode_state, encode_next_state = self.features(state), self.features(next_state)
        one_hot = torch.zeros(action.size(0), self.num_actions).scatter_(1, action.unsqueeze(1), 1.0)
        pred_action = self.inverse_net(torch.cat((encode_state, encode_next_state), 1))
        pred_next = self.forward_net(torch.cat((encode_state, one_hot), 1))
        intrinsic = 0.5 * (pred_next - encode_next_state.detach()).pow(2).sum(1)
        return F.cross_entropy(pred_action, action), intrinsic.mean(), intrinsic


@program(lambda: inputs(torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randint(0, 3, (2,))))
def curiosity():
    return ICM(5, 3)


class WorldModel(nn.Module):
    """Imagines a trajectory with a recurrent cell; the states are a list of dicts."""

    def __init__(self, state=4, hidden=6, action=2):
        super().__init__()
        self.rnn = nn.GRUCell(state + action, hidden)
        self.prior = nn.Linear(hidden, 2 * state)
        self.policy = nn.Linear(hidden, action)
        self.min_std = 0.1

    def initial(self, batch_size):
        return dict(deter=torch.zeros(batch_size, self.rnn.hidden_size), stoch=torch.zeros(batch_size, self.prior.out_features // 2))

    def forward(self, embedding, horizon=3):
        state = self.initial(embedding.size(0))
        state['stoch'] = state['stoch'] + embedding
        trajectory = []
        for _ in range(horizon):
            action = torch.tanh(self.policy(state['deter']))
            deter = self.rnn(torch.cat([state['stoch'], action], -1), state['deter'])
            mean, std = self.prior(deter).chunk(2, -1)
            std = F.softplus(std) + self.min_std
            state = {'mean': mean, 'std': std, 'stoch': mean + torch.randn_like(std) * std, 'deter': deter}
            trajectory.append(state)
        return {k: torch.stack([s[k] for s in trajectory]) for k in trajectory[0]}


@program(lambda: inputs(torch.randn(2, 4)))
def world_model():
    return WorldModel()
