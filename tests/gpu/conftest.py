"""Tests that need an NVIDIA GPU, torch for CUDA, and NVRTC or nvcc; elsewhere none of them is collected."""
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
