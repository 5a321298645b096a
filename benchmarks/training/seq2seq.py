"""Translation with attention as PyTorch's tutorial has it: one pair at a time, a loop over words, some of the teacher's."""
import random

import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F

WORDS, HIDDEN, START, END = 200, 64, 0, 1


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, words):
        return self.gru(self.embedding(words))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, HIDDEN), nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.Wa, self.Ua, self.Va = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)
        self.out = nn.Linear(HIDDEN, WORDS)

    def forward(self, word, hidden, outputs):
        scores = self.Va(torch.tanh(self.Wa(hidden.permute(1, 0, 2)) + self.Ua(outputs))).squeeze(2).unsqueeze(1)
        context = torch.bmm(F.softmax(scores, dim=-1), outputs)
        output, hidden = self.gru(torch.cat((self.embedding(word), context), dim=2), hidden)
        return self.out(output), hidden


torch.manual_seed(0)
random.seed(0)
encoder, decoder = Encoder(), Decoder()
encoder_optimizer, decoder_optimizer = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (encoder, decoder))
criterion = nn.NLLLoss()
pairs = [tuple(torch.randint(2, WORDS, (1, random.randint(4, 10))) for _ in range(2)) for _ in range(300)]


def train_step(source, target, teacher):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    outputs, hidden = encoder(source)
    word, scores = torch.full((1, 1), START), []
    for i in range(target.size(1)):
        output, hidden = decoder(word, hidden, outputs)
        scores.append(output)
        word = target[:, i].unsqueeze(1) if teacher else output.argmax(-1).detach()
    found = F.log_softmax(torch.cat(scores, dim=1), dim=-1)
    loss = criterion(found.view(-1, WORDS), target.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    return loss.item()


train_step = by_hand(train_step)
total = 0
for _ in range(STEPS):
    total += train_step(*random.choice(pairs), random.random() < 0.5)
    tick()
