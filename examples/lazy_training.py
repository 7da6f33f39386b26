"""Trains a small model on the CPU and on the lazy device: one line differs, and the losses do not.

    PYTHONPATH=python python examples/lazy_training.py [report.html]

It prints what the device counted and writes its report, by default to build/lazy.html.
"""

from __future__ import annotations

import sys
from pathlib import Path

import magneto
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
STEPS = 50


def train(device: str) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1))
    inputs = torch.randn(256, 16)
    targets = inputs.square().sum(1, keepdim=True)

    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)  # the line that differs

    torch.manual_seed(1)  # both draw the same numbers for dropout from here on
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()  # ends the step of the lazy device
        schedule.step()
        losses.append(loss.detach())  # not .item(): nothing has to wait for it here
    return [loss.item() for loss in losses]


def main(file: Path = ROOT / "build" / "lazy.html") -> bool:
    """Whether the losses are equal, bit by bit."""
    magneto.lazy.init()
    on_cpu, on_lazy = train("cpu"), train("lazy")
    for step in range(0, STEPS, 10):
        print(f"step {step:2}: {on_cpu[step]:9.4f} on the CPU, {on_lazy[step]:9.4f} on the lazy device")
    equal = on_cpu == on_lazy
    print(f"{STEPS} losses: {'equal' if equal else 'DIFFERENT'}\n")
    print(magneto.lazy.metrics_report())
    file.parent.mkdir(parents=True, exist_ok=True)
    print(f"The report: {magneto.lazy.report(file)}")
    return equal


if __name__ == "__main__":
    sys.exit(0 if main(*map(Path, sys.argv[1:])) else 1)
